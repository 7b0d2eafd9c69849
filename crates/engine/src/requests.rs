//! Requests of devices on their way through a core, replica's or client's.

use crate::frontend::{Errno, FrontendOp, NOT_SERVED};
use mainstay_api::metrics::RequestKind;
use mainstay_replica::{Op, RequestError, RequestId};
use mainstay_types::{Range, VolumeId};

/// Most requests of a device that are admitted and not completed. The FUSE frontend lets the kernel
/// have [`crate::frontend::BACKGROUND_MAX`] outstanding. Processes that wait for a request of their
/// own have theirs beside these (R18).
pub const REQUESTS_MAX: usize = 4 * crate::frontend::BACKGROUND_MAX as usize;

const _: () = assert!(REQUESTS_MAX >= crate::frontend::TASKS_MAX);

/// Requests in places that are used again, so that a request costs no allocation. The number of a
/// request is its place and how often that was used before: an answer to an earlier one finds
/// nothing.
pub struct Requests<T> {
    places: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Default for Requests<T> {
    fn default() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Requests<T> {
    pub fn add(&mut self, pending: T) -> RequestId {
        // Frontends bound how many there are, see REQUESTS_MAX.
        let place = self.free.pop().unwrap_or(self.places.len() as u32);
        if place as usize == self.places.len() {
            self.places.push((0, None));
        }
        let (uses, found) = &mut self.places[place as usize];
        *uses = uses.wrapping_add(1);
        *found = Some(pending);
        RequestId(u64::from(*uses) << 32 | u64::from(place))
    }

    /// Requests that are not answered.
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn place(&mut self, id: RequestId) -> Option<&mut Option<T>> {
        let (place, uses) = (id.0 as u32, (id.0 >> 32) as u32);
        let (_, found) = self.places.get_mut(place as usize).filter(|(newest, _)| *newest == uses)?;
        Some(found)
    }

    pub fn get_mut(&mut self, id: RequestId) -> Option<&mut T> {
        self.place(id)?.as_mut()
    }

    pub fn take(&mut self, id: RequestId) -> Option<T> {
        let pending = self.place(id)?.take()?;
        self.free.push(id.0 as u32);
        Some(pending)
    }
}

/// Request for a core: its kind, its bytes, and the operation.
///
/// # Errors
/// The range of a request for extents, which is no operation of a core.
pub fn operation(volume: VolumeId, op: FrontendOp) -> Result<(RequestKind, u64, Op), Range> {
    let range = |offset, len| Range { volume, offset, len };
    Ok(match op {
        FrontendOp::Read { offset, len } => (RequestKind::Read, len, Op::Read { range: range(offset, len) }),
        FrontendOp::Write { offset, payload } => {
            let len = payload.len() as u64;
            (RequestKind::Write, len, Op::Write { range: range(offset, len), payload })
        }
        FrontendOp::Discard { offset, len } => {
            (RequestKind::Discard, len, Op::Discard { range: range(offset, len) })
        }
        FrontendOp::WriteZeroes { offset, len } => {
            (RequestKind::WriteZeroes, len, Op::WriteZeroes { range: range(offset, len) })
        }
        FrontendOp::Flush => (RequestKind::Flush, 0, Op::Flush),
        FrontendOp::Extents { offset, len } => return Err(range(offset, len)),
    })
}

/// Error number that users of a device see.
pub fn errno(error: RequestError) -> Errno {
    match error {
        RequestError::Range | RequestError::Snapshot => libc::EINVAL,
        RequestError::NotPrimary | RequestError::NotAttached => NOT_SERVED,
        RequestError::Busy | RequestError::StoreFailed | RequestError::Unreadable | RequestError::Copies => {
            libc::EIO
        }
    }
}

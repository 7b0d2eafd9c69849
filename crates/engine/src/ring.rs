//! The reactor: one io_uring per shard, through which all disk, network and device operations go.
//!
//! Guarantees:
//! - The ring owns memory that the kernel may touch from submission to completion, and file
//!   descriptors stay open as long. Both come back with the [`Completion`].
//! - Dropping the ring cancels the operations in flight and waits for them. Memory that the kernel
//!   does not give back in time is leaked, never freed under its hands.
//! - The generation of a slot tells a completion of an earlier life of the slot.
//!
//! The shard's loop:
//! ```text
//! loop { ring.turn(deadline, &mut completions)?; for c in completions.drain(..) { dispatch by c.owner } }
//! ```
//! Everything that was submitted during a turn enters the kernel with the next one, in one system
//! call.

// Talking to io_uring means handing raw pointers to the kernel; every such place is in this module.
#![allow(unsafe_code)]

mod op;
mod setup;
mod spin;
#[cfg(test)]
mod tests;
mod urgent;

pub use self::op::{Op, Place, advance};
pub use self::spin::Spin;
use self::urgent::{Haste, Urgent, WEIGHT};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use mainstay_types::Time;
use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

pub use mainstay_devices::clock::boot_now as now;

pub use mainstay_devices::Fd;

/// Offset for [`Op::Read`] and [`Op::Write`] on a descriptor that has no positions (a device, a
/// pipe).
pub const STREAM_OFFSET: u64 = u64::MAX;

/// Most pieces that one vectored operation passes to the kernel (IOV_MAX). More may be given: the
/// operation then completes short and the caller continues it.
pub const PIECES_MAX: usize = 1024;

/// Size of the submission queue; when it is full the ring enters the kernel early.
const ENTRIES: u32 = 512;
/// How long [`Ring::turn_gathering`] waits for all that is due before it takes less, in
/// microseconds, while an urgent completion may come that does not end the wait by itself. That
/// completion is held up for this time at most.
const GATHER_US: u32 = 50;
/// How long it waits otherwise, in microseconds. A turn may take another completion for that of an
/// operation that ends while it is submitted. This is also the longest wait when a send did not end
/// so, because the socket had no room.
const PATIENCE_US: u32 = 1000;
/// A wait without a time limit, where one has to be given.
const FOR_EVER: Duration = Duration::from_secs(86_400);
/// How long dropping a ring waits for operations that the kernel cannot cancel.
const DRAIN_MS: u64 = 10_000;
const WAKE_DATA: u64 = u64::MAX;
const CANCEL_DATA: u64 = u64::MAX - 1;
const EMPTY_DATA: u64 = u64::MAX - 2;
const SLOT_BITS: u32 = 24;

/// Why a ring could not be made or has stopped working.
#[derive(Debug, Error)]
pub enum RingError {
    #[error("this kernel has no io_uring; Mainstay needs Linux 6.1 or newer")]
    Missing(#[source] io::Error),
    #[error(
        "io_uring is not permitted here: it is disabled by the sysctl kernel.io_uring_disabled (now {sysctl}) or by the \
         container's seccomp profile; set the sysctl to 0 or allow the io_uring system calls"
    )]
    Forbidden {
        sysctl: String,
        #[source]
        source: io::Error,
    },
    #[error("this kernel's io_uring lacks {0}; Mainstay needs Linux 6.1 or newer")]
    Unsupported(&'static str),
    #[error("not enough locked memory for an io_uring; raise the limit (LimitMEMLOCK, ulimit -l)")]
    Memory(#[source] io::Error),
    #[error("io_uring: {what} failed")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Part of the engine that submitted an operation and gets its completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Owner {
    /// A replica's files, see [`crate::disk`].
    Disk = 1,
    /// The connections between engines, see [`crate::transport`].
    Transport = 2,
    /// Devices.
    Frontend = 3,
    /// The shard itself.
    Shard = 4,
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    pub owner: Owner,
    /// Tag that was given to [`Ring::submit`].
    pub tag: u64,
    /// Bytes moved, where the operation moves bytes.
    pub result: io::Result<u32>,
    /// The operation, with its buffers.
    pub op: Op,
}

/// Names an operation in flight, for [`Ring::cancel`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpHandle(u64);

struct Slot {
    generation: u32,
    tag: u64,
    owner: Owner,
    op: Option<Op>,
    haste: Haste,
    /// Addresses through which the kernel reads the pieces of `op`. The list is kept to be filled
    /// again.
    iovecs: Vec<libc::iovec>,
    message: libc::msghdr,
}

/// Wakes the ring's thread out of [`Ring::turn`]. May be cloned and used on any thread.
#[derive(Clone)]
pub struct Waker {
    event: Fd,
}

impl Waker {
    /// Makes the current or the next [`Ring::turn`] return with `true`.
    pub fn wake(&self) {
        let one = 1u64;
        // SAFETY: the descriptor is open as long as `self` and the eight bytes are on this stack.
        // It cannot fail, and would block only after 2^64 - 2 wake-ups that the ring has not read.
        unsafe { libc::write(self.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

/// An io_uring and the operations in flight on it. Belongs to the thread that made it.
pub struct Ring {
    uring: IoUring,
    // Boxed because the kernel holds pointers into a slot while the list may grow.
    #[expect(clippy::vec_box, reason = "the kernel holds pointers into a slot while the list grows")]
    slots: Vec<Box<Slot>>,
    free: Vec<u32>,
    in_flight: usize,
    /// Entries that found no place in the submission queue.
    backlog: VecDeque<squeue::Entry>,
    /// Operations that change a disk and were submitted since the last turn. They enter the kernel
    /// after everything else: to start them is work, and peers and users of devices must not wait
    /// for that.
    last: Vec<squeue::Entry>,
    event: Fd,
    event_value: Box<u64>,
    /// While a read of it is in flight.
    event_armed: Option<Haste>,
    spin: Spin,
    urgent: Urgent,
    patience_us: u32,
    /// Operations among those that enter the kernel next that end while they enter it.
    instant: usize,
    /// The kernel says without being entered that there is work for this thread; else a poll enters
    /// it each time.
    tells_work: bool,
    /// The kernel can wait for several completions and still return with fewer after a while (Linux
    /// 6.12).
    gathers: bool,
    /// The ring accepts submissions from its own thread only (SINGLE_ISSUER).
    not_send: PhantomData<*const ()>,
}

impl Ring {
    /// Makes a ring for the calling thread.
    pub fn new() -> Result<Self, RingError> {
        let (uring, tells_work) = setup::build()?;
        setup::check_features(&uring)?;
        let gathers = uring.params().is_feature_min_timeout();
        // SAFETY: eventfd takes no pointers.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if event < 0 {
            return Err(RingError::System { what: "eventfd", source: io::Error::last_os_error() });
        }
        // SAFETY: the descriptor was just made and has no other owner.
        let event = Arc::new(unsafe { OwnedFd::from_raw_fd(event) });
        Ok(Self {
            uring,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: 0,
            backlog: VecDeque::new(),
            last: Vec::new(),
            event,
            event_value: Box::new(0),
            event_armed: None,
            spin: Spin::never(),
            urgent: Urgent::default(),
            patience_us: PATIENCE_US,
            instant: 0,
            tells_work,
            gathers,
            not_send: PhantomData,
        })
    }

    /// When [`turn`](Self::turn) polls for completions before it sleeps. Saves the cost of a
    /// wake-up (tens of microseconds on an idle virtual processor) where a processor can be spared.
    /// Never at first.
    pub fn set_spin(&mut self, spin: Spin) {
        self.spin = spin;
    }

    /// How long this ring has polled so far.
    #[must_use]
    pub fn polled(&self) -> Duration {
        self.spin.polled()
    }

    /// For other threads.
    #[must_use]
    pub fn waker(&self) -> Waker {
        Waker { event: Arc::clone(&self.event) }
    }

    /// Operations that have not completed yet.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Urgent operations in flight: the end of each ends a wait for other completions. 0 where the
    /// kernel cannot wait for several.
    #[must_use]
    pub fn urgent_in_flight(&self) -> usize {
        self.urgent.in_flight()
    }

    /// Queues an operation; it enters the kernel with the next [`turn`](Self::turn). An operation
    /// that brings something (a read, a receive, a command, readiness) is urgent: its end ends a
    /// wait for other completions.
    ///
    /// # Panics
    /// When a read or receive would leave its buffer, or a vectored operation has no pieces.
    pub fn submit(&mut self, owner: Owner, tag: u64, op: Op) -> OpHandle {
        let many = matches!(op, Op::Read { .. }) && self.urgent.are_many();
        let haste = if op.brings() { self.hurry(!many) } else { Haste::Patient };
        self.submit_as(owner, tag, op, haste)
    }

    /// Queues an operation as [`submit`](Self::submit) does, but never as an urgent one. What it
    /// brings can wait for a moment, for other completions that are due.
    pub fn submit_patient(&mut self, owner: Owner, tag: u64, op: Op) -> OpHandle {
        self.submit_as(owner, tag, op, Haste::Patient)
    }

    fn hurry(&mut self, heavy: bool) -> Haste {
        if !self.gathers {
            // Without gathering, the ring waits for one completion only.
            return Haste::Patient;
        }
        let room = |ring: &mut Self| {
            let queue = ring.uring.submission();
            ring.backlog.is_empty() && queue.capacity() - queue.len() > WEIGHT
        };
        let heavy = heavy && (room(self) || (self.uring.submit().is_ok() && room(self)));
        self.urgent.begin(heavy)
    }

    fn submit_as(&mut self, owner: Owner, tag: u64, op: Op, haste: Haste) -> OpHandle {
        if let Op::Read { buffer, at, len, .. } | Op::Receive { buffer, at, len, .. } = &op {
            let end = at.checked_add(*len);
            assert!(
                end.is_some_and(|end| end <= buffer.capacity()) && *len > 0,
                "read outside of its buffer"
            );
        }
        if let Op::Write { pieces, .. } | Op::Send { pieces, .. } = &op {
            assert!(!pieces.is_empty(), "nothing to write");
        }
        if let Op::Scatter { staging, places, .. } = &op {
            let fits = |place: &Place| {
                let capacity = place.buffer.as_ref().unwrap_or(staging).capacity();
                place.len > 0 && place.at.checked_add(place.len).is_some_and(|end| end <= capacity)
            };
            assert!(
                !places.is_empty() && places.len() <= PIECES_MAX && places.iter().all(fits),
                "a place outside of its buffer"
            );
        }
        let index = self.free.pop().unwrap_or_else(|| {
            let index = u32::try_from(self.slots.len()).expect("bounded by the assertion below");
            assert!(index < 1 << SLOT_BITS, "too many operations in flight");
            self.slots.push(Box::new(Slot::empty()));
            index
        });
        // As a rule: a socket may have no room, see PATIENCE_US.
        self.instant += usize::from(matches!(op, Op::Send { .. } | Op::Write { offset: STREAM_OFFSET, .. }));
        let slot = &mut self.slots[index as usize];
        slot.tag = tag;
        slot.owner = owner;
        slot.haste = haste;
        let data = (owner as u64) << 56 | u64::from(index) << 32 | u64::from(slot.generation);
        let last = op.changes_a_disk();
        let entry = slot.prepare(op).user_data(data);
        self.in_flight += 1;
        if last {
            self.last.push(entry);
        } else {
            self.push_as(entry, haste);
        }
        OpHandle(data)
    }

    /// Asks the kernel to end an operation early. Its completion still comes, with an error or with
    /// success.
    pub fn cancel(&mut self, handle: OpHandle) {
        self.push(&opcode::AsyncCancel::new(handle.0).build().user_data(CANCEL_DATA));
    }

    /// Submits what is queued, waits until something completes, `deadline` passes or a [`Waker`] is
    /// used, and appends what has completed to `out`. Returns whether a waker was used. Does not
    /// wait when completions are there already.
    pub fn turn(&mut self, deadline: Option<Time>, out: &mut Vec<Completion>) -> Result<bool, RingError> {
        self.turn_gathering(deadline, 1, out)
    }

    /// Does a [`turn`](Self::turn) that waits for `due` completions together: they are expected
    /// soon, and little can be done with fewer. This saves wake-ups and system calls.
    ///
    /// Sends and answers to devices end while they enter the kernel, and their completions would
    /// end the wait at once. So the ring waits for as many more, where the kernel can. An urgent
    /// completion ([`urgent`]) ends the wait at once if the sends have ended. After [`PATIENCE_US`]
    /// any completion does.
    ///
    /// In two cases the ring waits for all that are due only if no submitted operation ends so, and
    /// for [`GATHER_US`] at most. The cases: something urgent is in flight that might not end the
    /// wait, or a processor is left over to poll on.
    pub fn turn_gathering(
        &mut self,
        deadline: Option<Time>,
        due: usize,
        out: &mut Vec<Completion>,
    ) -> Result<bool, RingError> {
        self.urgent.turn();
        if self.event_armed.is_none() {
            let haste = self.hurry(true);
            self.event_armed = Some(haste);
            let place = (&raw mut *self.event_value).cast::<u8>();
            let entry = opcode::Read::new(types::Fd(self.event.as_raw_fd()), place, 8).build();
            self.push_as(entry.user_data(WAKE_DATA), haste);
        }
        loop {
            self.wait(deadline, due)?;
            let (before, empty) = (out.len(), self.urgent.left_behind());
            let woken = self.reap(out);
            let only_empty = out.len() == before && self.urgent.left_behind() < empty;
            if woken || !only_empty {
                return Ok(woken);
            }
        }
    }

    fn wait(&mut self, deadline: Option<Time>, due: usize) -> Result<(), RingError> {
        if !self.uring.completion().is_empty() {
            return self.enter(Some(Duration::ZERO), 1, 0);
        }
        let nothing_new = self.urgent.left_behind();
        // A wait for all that is due is long, and a ring that polls does so for what comes soon.
        let patient = due > 1 && !self.urgent.any_is_light() && !self.spin.is_possible();
        let (wanted, soon_us) = match self.instant {
            instant if patient => (instant + due.min(1 + WEIGHT) + nothing_new, self.patience_us),
            0 if nothing_new == 0 => (due.max(1), GATHER_US),
            instant => (instant + 1 + nothing_new, self.patience_us),
        };
        if self.spin.polls() {
            self.wait_polling(deadline, wanted, soon_us)
        } else {
            self.enter(time_left(deadline), wanted, soon_us)
        }
    }

    /// Waits until a deadline as [`enter`](Self::enter) does, but polls for completions for a while
    /// before it sleeps. It gathers for no longer than `enter`.
    fn wait_polling(&mut self, deadline: Option<Time>, wanted: usize, soon_us: u32) -> Result<(), RingError> {
        let start = Instant::now();
        let window = self.spin.window(start);
        // Where the kernel cannot gather, a poll does not either: it is never later than a sleep.
        let wanted = if self.gathers { wanted } else { 1 };
        let soon = Duration::from_micros(soon_us.into());
        let mut polled = Duration::ZERO;
        if !window.is_zero() {
            if self.has_more() {
                self.enter(Some(Duration::ZERO), 1, 0)?;
            }
            loop {
                let ready = self.uring.completion().len();
                polled = start.elapsed();
                if ready >= wanted || (ready > 0 && polled >= soon) {
                    self.spin.waited(polled, polled, true);
                    return Ok(());
                }
                if polled >= window || deadline.is_some_and(|deadline| deadline <= now()) {
                    break;
                }
                if self.has_work() {
                    self.enter(Some(Duration::ZERO), 1, 0)?;
                } else {
                    std::hint::spin_loop();
                }
            }
        }
        // The rest of the time to gather. Not zero, which would be to wait for one.
        let left = soon_us.saturating_sub(polled.as_micros() as u32).max(1);
        self.enter(time_left(deadline), wanted, left)?;
        let came = !self.uring.completion().is_empty();
        self.spin.waited(start.elapsed(), polled, came);
        Ok(())
    }

    /// Whether something is to be submitted.
    fn has_more(&mut self) -> bool {
        !self.last.is_empty() || !self.backlog.is_empty() || !self.uring.submission().is_empty()
    }

    /// Whether the kernel has completions to tell that it makes only when it is entered. Read from
    /// memory that it shares with us.
    fn has_work(&mut self) -> bool {
        let queue = self.uring.submission();
        !self.tells_work || queue.taskrun() || queue.cq_overflow()
    }

    /// Enters the kernel: submits everything, runs deferred work, waits for `wanted` completions or
    /// `wait`; for one if the others do not come within `soon_us`.
    fn enter(&mut self, wait: Option<Duration>, wanted: usize, soon_us: u32) -> Result<(), RingError> {
        let mut last = std::mem::take(&mut self.last);
        for entry in last.drain(..) {
            self.push(&entry);
        }
        self.last = last;
        self.refill();
        self.instant = 0;
        let mut gathers = self.gathers && wanted > 1;
        // Without a time limit the kernel ends the wait once it has gathered, even nothing.
        let wait = if gathers { Some(wait.unwrap_or(FOR_EVER)) } else { wait };
        let spec = types::Timespec::from(wait.unwrap_or_default());
        let mut args = types::SubmitArgs::new();
        let mut soon_us = soon_us;
        if let Some(wait) = wait {
            args = args.timespec(&spec);
            // The kernel looks at the deadline only after this.
            soon_us = soon_us.min(u32::try_from(wait.as_micros()).unwrap_or(u32::MAX));
        }
        gathers &= soon_us > 0;
        if gathers {
            args = args.min_wait_usec(soon_us);
        }
        let wanted = if gathers { wanted } else { 1 };
        let result = self.uring.submitter().submit_with_args(wanted, &args);
        match result {
            Ok(_) => Ok(()),
            // Time is up; a signal; the completion queue must be emptied first; memory is short for
            // now: what was not submitted stays queued for the next turn.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN | libc::ENOMEM)
                ) =>
            {
                Ok(())
            }
            Err(source) => Err(RingError::System { what: "entering the ring", source }),
        }
    }

    fn reap(&mut self, out: &mut Vec<Completion>) -> bool {
        let mut woken = false;
        let Self { uring, slots, free, in_flight, event_armed, urgent, .. } = self;
        for entry in uring.completion() {
            match entry.user_data() {
                WAKE_DATA => {
                    urgent.end(event_armed.take().unwrap_or(Haste::Patient));
                    woken = true;
                }
                CANCEL_DATA => {}
                EMPTY_DATA => urgent.empty_ended(),
                data => {
                    let (completion, haste) = finish(slots, free, in_flight, data, &entry);
                    urgent.end(haste);
                    out.push(completion);
                }
            }
        }
        woken
    }

    /// Queues an operation, and what follows it if it is urgent.
    fn push_as(&mut self, entry: squeue::Entry, haste: Haste) {
        if haste != Haste::Heavy {
            return self.push(&entry);
        }
        self.push(&entry.flags(squeue::Flags::IO_HARDLINK));
        for follows in (0..WEIGHT).rev() {
            let empty = opcode::Nop::new().build().user_data(EMPTY_DATA);
            let linked = if follows > 0 { squeue::Flags::IO_HARDLINK } else { squeue::Flags::empty() };
            self.push(&empty.flags(linked));
        }
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: as in `refill`.
        if self.backlog.is_empty() && unsafe { self.uring.submission().push(entry) }.is_ok() {
            return;
        }
        self.backlog.push_back(entry.clone());
        if self.refill() {
            return;
        }
        // The queue is full: enter early. An operation that still finds no place waits for the next
        // turn, where a failure that lasts is reported.
        if self.uring.submit().is_ok() {
            self.refill();
        }
    }

    /// Moves entries into the submission queue; false when it is full.
    fn refill(&mut self) -> bool {
        if self.backlog.is_empty() {
            return true;
        }
        let mut queue = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: everything that the entry points to is owned by its slot, or by `self` for
            // the wake-up, until the completion has been reaped; `Drop` waits for the completions
            // or leaks the memory.
            if unsafe { queue.push(entry) }.is_err() {
                return false;
            }
            self.backlog.pop_front();
        }
        true
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let until = types::Timespec::from(Duration::from_millis(DRAIN_MS));
        // Nothing below may panic; an error only means that fewer operations end early.
        let _ = self.enter(Some(Duration::ZERO), 1, 0);
        let _ = self.uring.submitter().register_sync_cancel(Some(until), types::CancelBuilder::any());
        let end = Instant::now() + Duration::from_millis(DRAIN_MS);
        let mut completions = Vec::new();
        while (self.in_flight > 0 || self.event_armed.is_some()) && Instant::now() < end {
            if self.enter(Some(Duration::from_millis(10)), 1, 0).is_err() {
                break;
            }
            self.reap(&mut completions);
            completions.clear();
        }
        if self.in_flight > 0 || self.event_armed.is_some() {
            // The kernel may still write there: better lost than used twice.
            std::mem::forget(std::mem::take(&mut self.slots));
            std::mem::forget(std::mem::take(&mut self.event_value));
        }
    }
}

impl Slot {
    fn empty() -> Self {
        Self {
            generation: 0,
            tag: 0,
            owner: Owner::Shard,
            op: None,
            haste: Haste::Patient,
            iovecs: Vec::new(),
            // SAFETY: `msghdr` consists of integers and pointers, for which zero is a value.
            message: unsafe { std::mem::zeroed() },
        }
    }
}

fn finish(
    slots: &mut [Box<Slot>],
    free: &mut Vec<u32>,
    in_flight: &mut usize,
    data: u64,
    entry: &cqueue::Entry,
) -> (Completion, Haste) {
    let index = (data >> 32) as u32 & ((1 << SLOT_BITS) - 1);
    let slot = &mut slots[index as usize];
    // Only a fault of the kernel or of this file can break this, and then memory is no longer safe.
    assert!(
        slot.generation == data as u32 && slot.owner as u64 == data >> 56,
        "completion of an unknown operation"
    );
    let mut op = slot.op.take().expect("a slot in use holds its operation");
    slot.generation = slot.generation.wrapping_add(1);
    free.push(index);
    *in_flight -= 1;
    let result = if entry.result() < 0 {
        Err(io::Error::from_raw_os_error(-entry.result()))
    } else {
        Ok(entry.result() as u32)
    };
    if let (Op::Accept { accepted, .. }, Ok(fd)) = (&mut op, &result) {
        // SAFETY: the kernel made this descriptor for this completion, and it has no other owner.
        *accepted = Some(unsafe { OwnedFd::from_raw_fd(*fd as i32) });
    }
    (Completion { owner: slot.owner, tag: slot.tag, result, op }, slot.haste)
}

/// `None`: for ever.
fn time_left(deadline: Option<Time>) -> Option<Duration> {
    deadline.map(|deadline| Duration::from_micros(deadline.0.saturating_sub(now().0)))
}

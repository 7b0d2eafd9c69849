//! The layer between the bytes on a socket and the bytes of frames. Encryption is another
//! implementation of [`Stream`]; frames never see the socket.

use super::DownReason;
use bytes::Bytes;
use std::collections::VecDeque;

/// Takes the bytes of frames out of what a socket delivers.
pub(super) type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), DownReason>;

pub(super) trait Stream {
    /// Whether the socket carries the bytes of frames as they are, so that payload may be received
    /// in place.
    fn is_plain(&self) -> bool;

    /// Hands what `wire` holds for the frames to `frames`.
    fn open(&mut self, wire: &[u8], frames: Sink<'_>) -> Result<(), DownReason>;

    /// Turns as much of `frames` as may be sent now into bytes for the socket, after whatever the
    /// layer has to say itself. May leave `frames` alone (before a handshake has ended) and may add
    /// nothing.
    fn seal(&mut self, frames: &mut VecDeque<Bytes>, wire: &mut VecDeque<Bytes>) -> Result<(), DownReason>;
}

/// Frames as they are.
pub(super) struct Plain;

impl Stream for Plain {
    fn is_plain(&self) -> bool {
        true
    }

    fn open(&mut self, wire: &[u8], frames: Sink<'_>) -> Result<(), DownReason> {
        frames(wire)
    }

    fn seal(&mut self, frames: &mut VecDeque<Bytes>, wire: &mut VecDeque<Bytes>) -> Result<(), DownReason> {
        wire.append(frames);
        Ok(())
    }
}

//! Copying between the two connections of a session.
//!
//! Guarantees
//! - Bytes arrive in order, each once, and the end of one direction is passed on after its last
//!   byte. The other direction goes on: a half-closed connection is a working one.
//! - A session holds at most [`PIECE_BYTES`] in each direction, and nothing while both directions
//!   are idle. A reader that takes nothing stops the router from reading for it.
//! - An error of either connection ends the session, which resets both.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are read at once, and the most that a direction holds.
pub const PIECE_BYTES: usize = 64 << 10;
/// Pieces of one direction after which other sessions have a turn.
const PIECES_MAX: usize = 16;

/// Counts of one session. One thread writes them, and others read them.
#[derive(Default, Debug)]
pub struct Meter {
    /// Bytes that were read from the client.
    pub from_client: AtomicU64,
    /// Bytes that were read from the server.
    pub from_server: AtomicU64,
    /// Whether the last bytes came from the server: it has answered, as far as a router sees.
    pub answered: AtomicBool,
    /// Whether the session holds bytes that a connection has not taken yet.
    pub holds: AtomicBool,
}

impl Meter {
    /// Bytes of both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.from_client.load(Ordering::Relaxed) + self.from_server.load(Ordering::Relaxed)
    }
}

/// State of a direction after a turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// One of its connections has to be waited for.
    Waits,
    /// The direction could go on, and others have a turn first.
    HasMore,
    /// Its source has ended, and its sink knows that.
    Over,
}

/// Bytes on their way in one direction.
#[derive(Default, Debug)]
pub struct Direction {
    /// Bytes for the sink. Those before `taken` it has.
    held: Vec<u8>,
    taken: usize,
    /// The source has no more bytes than those that are there.
    pub closing: bool,
    /// Whether it has a place in the queue of its lane: it has had its turn, and could go on.
    pub queued: bool,
    ended: bool,
    told: bool,
}

impl Direction {
    /// A direction that begins with these bytes.
    #[must_use]
    pub fn beginning_with(held: Vec<u8>) -> Self {
        Self { held, ..Self::default() }
    }

    #[must_use]
    pub fn holds(&self) -> bool {
        self.taken < self.held.len()
    }

    #[must_use]
    pub fn is_over(&self) -> bool {
        self.told
    }

    /// Copies until one of the connections has to be waited for. Both are non-blocking and report
    /// edges: what is left unread here without waiting would not be reported again.
    ///
    /// # Errors
    /// When a connection fails.
    pub fn copy(
        &mut self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        passage: &mut [u8],
        mut count: impl FnMut(usize),
    ) -> io::Result<Turn> {
        for _ in 0..PIECES_MAX {
            while self.holds() {
                match to.write(&self.held[self.taken..]) {
                    Ok(0) => return Err(ErrorKind::WriteZero.into()),
                    Ok(taken) => self.taken += taken,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Turn::Waits),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            // Gives its memory back: an idle session has none.
            (self.held, self.taken) = (Vec::new(), 0);
            if self.ended {
                if !self.told {
                    to.shutdown(Shutdown::Write)?;
                    self.told = true;
                }
                return Ok(Turn::Over);
            }
            let read = match from.read(passage) {
                Ok(0) => {
                    self.ended = true;
                    continue;
                }
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Turn::Waits),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            count(read);
            let taken = match to.write(&passage[..read]) {
                Ok(taken) => taken,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => 0,
                Err(error) => return Err(error),
            };
            self.held.extend_from_slice(&passage[taken..read]);
            // There was less than asked for, so whatever comes next is reported. The end is not, if
            // it was reported together with these bytes.
            if read < passage.len() && !self.closing && !self.holds() {
                return Ok(Turn::Waits);
            }
        }
        Ok(Turn::HasMore)
    }
}

/// Adds to a count that only this thread writes.
pub fn add(count: &AtomicU64, bytes: usize) {
    count.store(count.load(Ordering::Relaxed) + bytes as u64, Ordering::Relaxed);
}

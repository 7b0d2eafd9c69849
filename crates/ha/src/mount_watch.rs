//! A mounted file system while its service runs: whether it answers, and whether it has room (R28).
//!
//! | state | left by | to |
//! |---|---|---|
//! | answers | a look without an answer in time | silent since that look |
//! | silent since a moment | an answer | answers |
//! | silent since a moment | [`GIVE_UP_MS`] without an answer | the same; each look says to leave the node |
//!
//! Invariants
//! - One late answer has no consequence but words. Only a silence without any answer in between,
//!   [`GIVE_UP_MS`] long, makes the service leave its node. In place there is no way to mend it.
//! - A full file system never makes the service leave: it would be as full elsewhere.

use mainstay_types::{Time, reach};

/// Silence after which the service leaves the node, in milliseconds. Longer than the engine takes
/// to end a wait for a disk or a replica of its own accord.
const GIVE_UP_MS: u64 = 60_000;
/// A file system is full if it has less room than this for its users, or than a hundredth of its
/// size, whichever is less.
const ROOM_BYTES: u64 = 16 << 20;
const ROOM_PART: u64 = 100;

/// Room in a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    pub bytes: u64,
    /// Bytes that programs without privileges can still use.
    pub free_bytes: u64,
    /// Most files that it can have; 0 if there is no limit.
    pub files: u64,
    pub free_files: u64,
}

impl Room {
    /// `was`: it counted as full before. A full file system needs twice the room to count as not
    /// full, so that a file that is written and removed does not make a pair of events.
    fn is_full(self, was: bool) -> bool {
        let least = ROOM_BYTES.min(self.bytes / ROOM_PART);
        let least = if was { least.saturating_mul(2) } else { least.max(1) };
        self.bytes > 0 && (self.free_bytes < least || (self.files > 0 && self.free_files == 0))
    }
}

/// Consequence of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MountNews {
    pub full: bool,
    /// No answer came in time.
    pub silent: bool,
    /// Since this many milliseconds without an answer: the service is to leave the node.
    pub given_up: Option<u64>,
}

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub struct MountWatch {
    silent_since: Option<Time>,
    full: bool,
}

impl MountWatch {
    /// Takes in the answer to a look that began at `now`: `None` without one. The room is `None` if
    /// the kernel does not tell.
    pub fn look(&mut self, now: Time, answer: Option<Option<Room>>) -> MountNews {
        let Some(room) = answer else {
            let since = *self.silent_since.get_or_insert(now);
            let ms = now.ms_since(since);
            if ms >= GIVE_UP_MS {
                reach!("ha: a file system does not answer");
            }
            return MountNews { full: self.full, silent: true, given_up: (ms >= GIVE_UP_MS).then_some(ms) };
        };
        self.silent_since = None;
        if let Some(room) = room {
            self.full = room.is_full(self.full);
        }
        MountNews { full: self.full, ..MountNews::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn room(mib: u64, free_bytes: u64) -> Room {
        Room { bytes: mib * MIB, free_bytes, files: 0, free_files: 0 }
    }

    #[test]
    fn a_file_system_is_full_before_the_last_byte_and_a_little_room_does_not_end_that() {
        let mut watch = MountWatch::default();
        let mut full = |room| watch.look(Time(0), Some(Some(room))).full;
        assert!(!full(room(300, 4 * MIB)));
        assert!(full(room(300, 2 * MIB)));
        assert!(full(room(300, 4 * MIB)), "twice the room is needed");
        assert!(!full(room(300, 7 * MIB)));
        assert!(!full(room(1 << 24, 17 * MIB)), "a large one is full with 16 MiB, not with a hundredth");
        assert!(full(room(1 << 24, 15 * MIB)));
        assert!(full(Room { files: 1000, free_files: 0, ..room(300, 200 * MIB) }), "no file more");
        assert!(!full(Room { files: 1000, free_files: 1, ..room(300, 200 * MIB) }));
        assert!(!full(room(0, 0)), "a file system that has no size is not full");
    }

    #[test]
    fn only_a_silence_without_any_answer_makes_the_service_leave() {
        let mut watch = MountWatch::default();
        let at = |ms| Time(0).plus_ms(ms);
        for ms in (0..59_000).step_by(2_000) {
            let news = watch.look(at(ms), None);
            assert_eq!((news.silent, news.given_up), (true, None), "{ms}");
        }
        assert_eq!(watch.look(at(59_000), Some(None)), MountNews::default());
        for ms in (60_000..120_000).step_by(2_000) {
            assert_eq!(watch.look(at(ms), None).given_up, None, "{ms}");
        }
        assert_eq!(watch.look(at(120_000), None).given_up, Some(60_000));
        assert_eq!(watch.look(at(122_000), None).given_up, Some(62_000), "the machine may not have listened");
        // The last known room stays known.
        assert!(watch.look(at(123_000), Some(Some(room(300, 0)))).full);
        assert!(watch.look(at(124_000), None).full);
    }
}

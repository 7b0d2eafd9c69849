//! Urgent operations: the end of one ends a wait at once, although the ring waits for more
//! completions.
//!
//! The kernel counts completions and does not know their purpose. A ring that waits for three of
//! them (the own journal and two acknowledgements) must not wake up at the first. It must wake up
//! at a request of a device: that is *urgent*. So empty operations follow an urgent one
//! ([`WEIGHT`]; they are linked, so that they end with it). Its end alone is then as many
//! completions as the ring waits for. That costs some tenths of a microsecond.
//!
//! They are linked only if they enter the kernel together. An urgent operation that found no room
//! for its empty ones is *light*. While one is in flight the ring does not wait for long
//! ([`Urgent::any_is_light`]). A read is light, too, while urgent operations come many at once
//! ([`FEW`]), as they end waits anyway. A read does not stay armed for as long as nothing comes, as
//! tags of ublk and receives on quiet connections do.

/// Empty operations that follow an urgent one. Together they end a wait for up to `WEIGHT + 1`
/// completions.
pub const WEIGHT: usize = 2;

/// Most urgent operations that may end in one turn, if empty operations are to follow the reads of
/// the next turn.
const FEW: usize = 2;

/// How an operation in flight ends a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// Together with what else is due.
    Patient,
    /// At once, unless the ring waits for more than one completion.
    Light,
    /// At once.
    Heavy,
}

/// Counts of the urgent operations on one ring.
#[derive(Default, Debug)]
pub struct Urgent {
    /// Urgent operations that have ended in this turn.
    ended: usize,
    light: usize,
    heavy: usize,
    /// Empty operations that have not ended.
    empty: usize,
}

impl Urgent {
    /// A turn begins.
    pub fn turn(&mut self) {
        self.ended = 0;
    }

    /// Whether urgent operations come many at once.
    pub fn are_many(&self) -> bool {
        self.ended > FEW
    }

    /// How an urgent operation that begins now ends a wait. With `room` it is followed by empty
    /// ones.
    pub fn begin(&mut self, room: bool) -> Haste {
        if room {
            self.heavy += 1;
            self.empty += WEIGHT;
            Haste::Heavy
        } else {
            self.light += 1;
            Haste::Light
        }
    }

    pub fn end(&mut self, haste: Haste) {
        match haste {
            Haste::Patient => return,
            Haste::Light => self.light -= 1,
            Haste::Heavy => self.heavy -= 1,
        }
        self.ended += 1;
    }

    pub fn empty_ended(&mut self) {
        self.empty = self.empty.saturating_sub(1);
    }

    /// Whether something urgent might have to wait for a wait for several things.
    pub fn any_is_light(&self) -> bool {
        self.light > 0
    }

    /// Urgent operations in flight.
    pub fn in_flight(&self) -> usize {
        self.light + self.heavy
    }

    /// Empty operations whose urgent one has ended: they end when the kernel is entered, and say
    /// nothing.
    pub fn left_behind(&self) -> usize {
        self.empty.saturating_sub(self.heavy * WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heavy_completion_leaves_its_empty_operations_behind() {
        let mut urgent = Urgent::default();
        let (light, heavy) = (urgent.begin(false), urgent.begin(true));
        assert_eq!((light, heavy), (Haste::Light, Haste::Heavy));
        assert_eq!((urgent.any_is_light(), urgent.left_behind()), (true, 0));
        urgent.end(light);
        urgent.end(Haste::Patient);
        assert!(!urgent.any_is_light());
        urgent.end(heavy);
        assert_eq!(urgent.left_behind(), WEIGHT);
        (0..WEIGHT).for_each(|_| urgent.empty_ended());
        assert_eq!(urgent.left_behind(), 0);
    }

    #[test]
    fn two_in_a_turn_are_not_many() {
        let mut urgent = Urgent::default();
        for many in [false, false, true] {
            let haste = urgent.begin(true);
            urgent.end(haste);
            assert_eq!(urgent.are_many(), many);
        }
        urgent.turn();
        assert!(!urgent.are_many());
    }
}

//! What ends a wait at once although more is waited for.
//!
//! The kernel counts completions and knows nothing of what they are. Who waits for three of them (the own journal and two acknowledgements) is
//! not to be woken up by the first, but is by a request of a device: that is *urgent*. So an urgent operation is followed by empty ones
//! ([`WEIGHT`]; linked, so that they end with it), and its end alone is as many completions as are waited for.
//!
//! That costs some tenths of a microsecond for each, so it is done only where what is urgent comes one by one ([`FEW`]); many at once end waits
//! anyway. An urgent operation without it is *light*, and while one is in flight nobody waits for long ([`Urgent::any_is_light`]).

/// Empty operations that follow an urgent one: it ends a wait for one completion more than these.
pub const WEIGHT: usize = 2;
/// Urgent operations that ended in one turn, at most, for the next to be followed by empty ones.
const FEW: usize = 2;

/// How an operation in flight ends a wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// Together with what else is due.
    Patient,
    /// At once, if nobody waits for more than one thing.
    Light,
    /// At once.
    Heavy,
}

/// Counts what is urgent on one ring.
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

    /// How an urgent operation that begins now ends a wait.
    pub fn begin(&mut self) -> Haste {
        if self.ended <= FEW {
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

    /// Empty operations whose urgent one has ended: they end when the kernel is entered, and say nothing.
    pub fn left_behind(&self) -> usize {
        self.empty.saturating_sub(self.heavy * WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_heavy_only_where_that_saves_something() {
        let mut urgent = Urgent::default();
        let many = [urgent.begin(), urgent.begin(), urgent.begin()];
        assert_eq!(many, [Haste::Heavy; 3]);
        assert_eq!((urgent.any_is_light(), urgent.left_behind()), (false, 0));
        many.into_iter().for_each(|haste| urgent.end(haste));
        assert_eq!(urgent.left_behind(), 3 * WEIGHT);
        assert_eq!(urgent.begin(), Haste::Light, "many at once end waits anyway");
        assert!(urgent.any_is_light());
        (0..3 * WEIGHT).for_each(|_| urgent.empty_ended());
        assert_eq!(urgent.left_behind(), 0);
        urgent.turn();
        urgent.end(Haste::Light);
        urgent.end(Haste::Patient);
        assert!(!urgent.any_is_light());
        assert_eq!(urgent.begin(), Haste::Heavy, "one alone, in a new turn");
    }
}

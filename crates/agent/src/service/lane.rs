//! Order of the changes to one part of a service: its address, its processes, or its mount.
//!
//! A step makes the part and an undo takes it away, each on a thread of its own. The thread may be
//! slow to begin and may hang in a system call.
//!
//! Guarantees
//! - Numbers are given in the order in which the machine decided. A newer number calls off all
//!   older ones.
//! - One maker works at a time. It has the newest number, and works only while no undo is at work.
//!   If a maker is called off while it works, it takes away what it made before it counts as gone.
//! - An undo succeeds only when no maker is at work, and no maker that was called off can begin.
//!   Then no work that was under way can take effect any more (R19). Work that is still under way
//!   after the undo's patience counts as there.
//! - No lock is held during the work. So giving a number never waits. Taking away waits only for
//!   work that may still take effect.

use crate::threads::lock;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub const CALLED_OFF: &str = "it was called off";
const IN_FLIGHT: &str = "what was called off is still on its way";

#[derive(Debug, Default)]
pub struct Lane {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    newest: u64,
    making: bool,
    undoing: u32,
}

/// How an undo deals with a maker that is still at work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Haste {
    /// Waits for its end first.
    Orderly,
    /// Takes away at once what is there already, and again after the maker's end.
    AtOnce,
}

impl Lane {
    /// Calls off all that was decided before, and says under which number the newcomer works.
    pub fn number(&self) -> u64 {
        let mut state = lock(&self.state);
        state.newest += 1;
        self.changed.notify_all();
        state.newest
    }

    /// Whether `number` was not called off.
    pub fn is_newest(&self, number: u64) -> bool {
        lock(&self.state).newest == number
    }

    /// Does `work`, which makes the thing. If the work was called off meanwhile, `revoke` takes the
    /// thing away again.
    ///
    /// # Errors
    /// The errors of `work`, or that it was called off.
    pub fn make<T>(
        &self,
        number: u64,
        work: impl FnOnce() -> Result<T, String>,
        revoke: impl FnOnce(),
    ) -> Result<T, String> {
        let busy = |state: &mut State| state.newest == number && (state.making || state.undoing > 0);
        let mut state =
            self.changed.wait_while(lock(&self.state), busy).unwrap_or_else(PoisonError::into_inner);
        if state.newest != number {
            return Err(CALLED_OFF.into());
        }
        state.making = true;
        drop(state);
        let result = work();
        let mut state = lock(&self.state);
        let called_off = state.newest != number;
        if called_off {
            drop(state);
            revoke();
            state = lock(&self.state);
        }
        state.making = false;
        self.changed.notify_all();
        if called_off { Err(CALLED_OFF.into()) } else { result }
    }

    /// Does `work`, which takes the thing away and may be done twice.
    ///
    /// # Errors
    /// The errors of `work`, that it was called off, or that a maker is still at work after
    /// `patience`.
    pub fn undo(
        &self,
        number: u64,
        haste: Haste,
        patience: Duration,
        mut work: impl FnMut() -> Result<(), String>,
    ) -> Result<(), String> {
        let deadline = Instant::now() + patience;
        let in_flight = {
            let mut state = lock(&self.state);
            if state.newest != number {
                return Err(CALLED_OFF.into());
            }
            state.undoing += 1;
            state.making
        };
        let result = (|| {
            if in_flight {
                if haste == Haste::AtOnce {
                    work()?;
                }
                self.wait_for_maker(number, deadline)?;
            }
            work()
        })();
        lock(&self.state).undoing -= 1;
        self.changed.notify_all();
        result
    }

    fn wait_for_maker(&self, number: u64, deadline: Instant) -> Result<(), String> {
        let patience = deadline.saturating_duration_since(Instant::now());
        let busy = |state: &mut State| state.newest == number && state.making;
        let (state, _) = self
            .changed
            .wait_timeout_while(lock(&self.state), patience, busy)
            .unwrap_or_else(PoisonError::into_inner);
        match (state.newest == number, state.making) {
            (false, _) => Err(CALLED_OFF.into()),
            (true, true) => Err(IN_FLIGHT.into()),
            (true, false) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{JoinHandle, spawn};

    const LONG: Duration = Duration::from_secs(20);

    /// A lane, and the thing that is made and taken away on it.
    #[derive(Clone, Default)]
    struct Thing {
        lane: Arc<Lane>,
        there: Arc<AtomicBool>,
    }

    /// A maker whose system call hangs until it is released.
    struct Hanging {
        release: Sender<()>,
        thread: JoinHandle<Result<(), String>>,
    }

    impl Thing {
        fn hang(&self) -> Hanging {
            let (thing, number) = (self.clone(), self.lane.number());
            let (release, released): (Sender<()>, Receiver<()>) = channel();
            let (entered, inside) = channel();
            let thread = spawn(move || {
                let work = || {
                    entered.send(()).unwrap();
                    released.recv().unwrap();
                    thing.there.store(true, Ordering::SeqCst);
                    Ok(())
                };
                thing.lane.make(number, work, || thing.there.store(false, Ordering::SeqCst))
            });
            inside.recv().unwrap();
            Hanging { release, thread }
        }

        fn make(&self, number: u64) -> Result<(), String> {
            let work = || {
                self.there.store(true, Ordering::SeqCst);
                Ok(())
            };
            self.lane.make(number, work, || self.there.store(false, Ordering::SeqCst))
        }

        fn undo(&self, haste: Haste, patience: Duration) -> Result<(), String> {
            self.lane.undo(self.lane.number(), haste, patience, || {
                self.there.store(false, Ordering::SeqCst);
                Ok(())
            })
        }

        fn is_there(&self) -> bool {
            self.there.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn an_undo_does_not_succeed_while_a_maker_may_still_land() {
        for haste in [Haste::Orderly, Haste::AtOnce] {
            let thing = Thing::default();
            let hanging = thing.hang();
            assert_eq!(thing.undo(haste, Duration::from_millis(20)), Err(IN_FLIGHT.into()), "{haste:?}");
            let patient = {
                let thing = thing.clone();
                spawn(move || thing.undo(haste, LONG).map(|()| thing.is_there()))
            };
            hanging.release.send(()).unwrap();
            assert_eq!(hanging.thread.join().unwrap(), Err(CALLED_OFF.into()));
            assert_eq!(patient.join().unwrap(), Ok(false), "{haste:?}");
            assert!(!thing.is_there());
        }
    }

    #[test]
    fn a_maker_whose_caller_has_given_up_takes_its_work_back() {
        let thing = Thing::default();
        let hanging = thing.hang();
        assert!(thing.undo(Haste::AtOnce, Duration::ZERO).is_err());
        hanging.release.send(()).unwrap();
        assert_eq!(hanging.thread.join().unwrap(), Err(CALLED_OFF.into()));
        assert!(!thing.is_there());
        assert_eq!(thing.undo(Haste::AtOnce, Duration::ZERO), Ok(()));
    }

    #[test]
    fn a_step_whose_thread_comes_late_makes_nothing() {
        let thing = Thing::default();
        let number = thing.lane.number();
        assert_eq!(thing.undo(Haste::Orderly, Duration::ZERO), Ok(()));
        assert_eq!(thing.make(number), Err(CALLED_OFF.into()));
        assert!(!thing.is_there());
    }

    #[test]
    fn an_undo_whose_thread_comes_late_takes_nothing_away() {
        let thing = Thing::default();
        let late = thing.lane.number();
        assert_eq!(thing.make(thing.lane.number()), Ok(()));
        let undone = thing.lane.undo(late, Haste::AtOnce, Duration::ZERO, || panic!("it was called off"));
        assert_eq!(undone, Err(CALLED_OFF.into()));
        assert!(thing.is_there());
    }

    #[test]
    fn a_maker_waits_for_an_undo_that_is_still_at_work() {
        let thing = Thing::default();
        let (release, released) = channel::<()>();
        let (entered, inside) = channel();
        let (slow, number) = (thing.clone(), thing.lane.number());
        let undo = spawn(move || {
            slow.lane.undo(number, Haste::Orderly, LONG, || {
                entered.send(()).unwrap();
                released.recv().unwrap();
                slow.there.store(false, Ordering::SeqCst);
                Ok(())
            })
        });
        inside.recv().unwrap();
        let maker = {
            let (thing, number) = (thing.clone(), thing.lane.number());
            spawn(move || thing.make(number))
        };
        std::thread::sleep(Duration::from_millis(20));
        assert!(!thing.is_there(), "the undo would take it away");
        release.send(()).unwrap();
        assert_eq!(undo.join().unwrap(), Ok(()));
        assert_eq!(maker.join().unwrap(), Ok(()));
        assert!(thing.is_there());
    }
}

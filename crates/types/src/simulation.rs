//! Hooks for the simulator in the cores: they leave a rule out, and report which places of the code
//! were reached.
//!
//! Only tests and the simulator turn on the feature `simulation`. Without it a planted bug is the
//! constant `false` and a mark is nothing. `mainstay-tests` proves that the product is built
//! without it.

/// A bug that can be planted to prove that it would be caught. The number is its place in [`BUGS`].
pub use bugs::{BUGS, Bug, BugInfo};

mod bugs;

/// Whether `bug` is planted on this thread.
#[cfg(not(feature = "simulation"))]
#[inline(always)]
#[must_use]
pub const fn planted(_bug: Bug) -> bool {
    false
}

#[cfg(feature = "simulation")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
}

/// Whether `bug` is planted on this thread.
#[cfg(feature = "simulation")]
#[inline]
#[must_use]
pub fn planted(bug: Bug) -> bool {
    PLANTED.with(|cell| cell.get() == Some(bug))
}

/// Plants a bug on this thread, instead of the one that was planted before.
#[cfg(feature = "simulation")]
pub fn plant(bug: Option<Bug>) {
    PLANTED.with(|cell| cell.set(bug));
}

/// A place in a core, counted when it is reached.
#[cfg(feature = "simulation")]
#[derive(Debug)]
pub struct Mark {
    pub name: &'static str,
    count: std::sync::atomic::AtomicU64,
    known: std::sync::Once,
}

#[cfg(feature = "simulation")]
#[allow(clippy::disallowed_types, reason = "tests and the simulator only; nothing is decided by it")]
static MARKS: std::sync::Mutex<Vec<&'static Mark>> = std::sync::Mutex::new(Vec::new());

#[cfg(feature = "simulation")]
impl Mark {
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, count: std::sync::atomic::AtomicU64::new(0), known: std::sync::Once::new() }
    }

    /// Counts one more visit.
    pub fn hit(&'static self) {
        self.count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.known.call_once(|| MARKS.lock().expect("nothing panics under this lock").push(self));
    }
}

/// How often each mark that was ever reached in this process was reached.
#[cfg(feature = "simulation")]
#[must_use]
pub fn reached() -> std::collections::BTreeMap<&'static str, u64> {
    let marks = MARKS.lock().expect("nothing panics under this lock");
    let mut reached = std::collections::BTreeMap::new();
    for mark in marks.iter() {
        *reached.entry(mark.name).or_default() += mark.count.load(std::sync::atomic::Ordering::Relaxed);
    }
    reached
}

/// `reach!("replica: a joiner is given up")`: says that the core was here. The simulator's coverage
/// report lists every mark of the sources with how often it was reached. Nothing in the product.
#[cfg(feature = "simulation")]
#[macro_export]
macro_rules! reach {
    ($name:literal) => {{
        static MARK: $crate::simulation::Mark = $crate::simulation::Mark::new($name);
        MARK.hit();
    }};
}

/// `reach!("replica: a joiner is given up")`: nothing in the product.
#[cfg(not(feature = "simulation"))]
#[macro_export]
macro_rules! reach {
    ($name:literal) => {};
}

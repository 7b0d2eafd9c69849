//! One run: a plan in, an outcome out.

use crate::oracle::Violation;
use crate::plan::Plan;
use crate::trace::Line;
use crate::world::World;
use mainstay_types::simulation::{Bug, plant};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Keep the texts of the trace.
    pub keep_lines: bool,
    /// Keep the messages of engines to each other among these texts, too.
    pub messages: bool,
    /// A rule that is left out.
    pub bug: Option<Bug>,
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The first thing that was wrong; a broken assertion of a core counts as `panic`.
    pub violation: Option<Violation>,
    /// Over everything that happened, in order.
    pub hash: u64,
    pub events: u64,
    pub simulated_us: u64,
    /// Number of times that a fault was injected or an event was seen, by name.
    pub counters: BTreeMap<&'static str, u64>,
    pub lines: Vec<Line>,
    /// Writes that were acknowledged to clients.
    pub acknowledged: u64,
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

static HOOK: Once = Once::new();

/// Runs `plan` to its end, or to the first violation.
#[must_use]
pub fn run(plan: &Plan, options: &RunOptions) -> Outcome {
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                PANIC.with(|text| *text.borrow_mut() = info.to_string());
            } else {
                before(info);
            }
        }));
    });
    let heal_at_us = plan.heal_at_ms * 1000;
    let mut world = World::new(plan.clone(), options.keep_lines);
    if options.messages {
        world.show_messages();
    }
    plant(options.bug);
    QUIET.set(true);
    let result = catch_unwind(AssertUnwindSafe(|| {
        world.run_until(heal_at_us);
        if world.violation().is_none() {
            world.settle();
        }
    }));
    QUIET.set(false);
    plant(None);
    let violation = match result {
        Ok(()) => world.violation().cloned(),
        Err(_) => Some(Violation { id: "panic", text: PANIC.with(|text| text.borrow().clone()) }),
    };
    let trace = world.trace();
    Outcome {
        violation,
        hash: trace.hash(),
        events: trace.events(),
        simulated_us: world.now_us(),
        counters: trace.counters().clone(),
        lines: trace.lines().to_vec(),
        acknowledged: world.acknowledged(),
    }
}

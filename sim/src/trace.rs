//! Trace of a run: a hash over everything that happens and, when a reader wants them, lines of
//! text.

use mainstay_types::NodeId;
use std::collections::BTreeMap;

/// Part of a node or of the cluster that acts in a line.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// A machine as a whole: power, pauses, clocks.
    Machine,
    Engine,
    Agent,
    Disk,
    Network,
    Service,
    Client,
    /// The control plane's log.
    Control,
    /// The plan that injects faults.
    Fault,
    /// Findings of the oracles.
    Oracle,
    /// A message of one engine to another. Only a line, never an event: there are too many of them.
    Message,
}

/// One line of a trace.
#[derive(Clone, Debug)]
pub struct Line {
    /// True time since the beginning of the run, in microseconds.
    pub at_us: u64,
    /// `None`: it concerns no single node.
    pub node: Option<NodeId>,
    pub part: Part,
    pub text: String,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    lines: Option<Vec<Line>>,
    /// Messages between engines are among the lines.
    messages: bool,
    /// Number of times that a fault was injected or an event was seen. Names are stable, for the
    /// counters page.
    counters: BTreeMap<&'static str, u64>,
}

impl Trace {
    /// `keep_lines`: texts are made and kept.
    #[must_use]
    pub fn new(keep_lines: bool) -> Self {
        Self { lines: keep_lines.then(Vec::new), ..Self::default() }
    }

    /// Something happened. `numbers` go into the hash and must say what it was; `text` is made only
    /// if lines are kept.
    pub fn event(
        &mut self,
        at_us: u64,
        node: Option<NodeId>,
        part: Part,
        numbers: &[u64],
        text: impl FnOnce() -> String,
    ) {
        self.events += 1;
        let mut hash =
            self.hash ^ at_us ^ (u64::from(node.unwrap_or_default().0) << 48) ^ ((part as u64) << 40);
        for number in numbers {
            hash = (hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
        self.hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at_us, node, part, text: text() });
        }
    }

    /// Messages between engines become lines, too, if lines are kept at all.
    pub fn show_messages(&mut self) {
        self.messages = self.lines.is_some();
    }

    /// Texts are made and kept.
    #[must_use]
    pub fn keeps_lines(&self) -> bool {
        self.lines.is_some()
    }

    #[must_use]
    pub fn shows_messages(&self) -> bool {
        self.messages
    }

    /// A line that is not an event: the run and its hash are the same without it.
    pub fn remark(&mut self, at_us: u64, node: Option<NodeId>, part: Part, text: String) {
        if let Some(lines) = &mut self.lines {
            lines.push(Line { at_us, node, part, text });
        }
    }

    /// Counts under a stable name, such as `F25 power cut`.
    pub fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }

    #[must_use]
    pub fn counters(&self) -> &BTreeMap<&'static str, u64> {
        &self.counters
    }

    #[must_use]
    pub fn lines(&self) -> &[Line] {
        self.lines.as_deref().unwrap_or_default()
    }
}

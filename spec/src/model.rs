//! The model as the checker sees it: the steps, and the invariants after each of them.

use crate::rules::Mutation;
use crate::state::{Budget, EPOCHS, NOBODY, NODES, Out, State, Violation, has};
use stateright::{Model, Property};

/// Bounds of a run, which explores everything within them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    pub nodes: u8,
    pub writes: u8,
    pub epochs: u8,
    pub crashes: u8,
    /// Changes of the ISS other than by promotion or a new disk.
    pub changes: u8,
    /// Disks replaced by empty ones.
    pub disks: u8,
    /// Copies begun although the target was whole.
    pub copies: u8,
    /// Whether connections are lost and made again while both ends live, any number of times.
    /// Otherwise only a crash loses a connection. Then a message that is lost without a crash
    /// counts as late for ever.
    pub reconnects: bool,
}

/// The protocol within bounds, whole or with one rule left out.
#[derive(Clone, Debug)]
pub struct Spec {
    pub bounds: Bounds,
    pub mutation: Option<Mutation>,
    /// Whether states that differ in the names of nodes only are one. Steps then name nodes that
    /// change from state to state, so this is for runs that are not expected to find anything.
    pub symmetry: bool,
    steps: Vec<Step>,
}

/// Step that may happen next. The first field names the node that takes it, or the epoch of the
/// primary that does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    Begin { epoch: u8, ahead: u8 },
    Learn { node: u8, ahead: u8 },
    Renounce { node: u8 },
    Demote { node: u8 },
    Write { node: u8 },
    Flush { node: u8 },
    Attach { node: u8, peer: u8 },
    Deliver { node: u8, epoch: u8 },
    Answered { epoch: u8, peer: u8 },
    AskShrink { node: u8, peer: u8 },
    Join { node: u8, peer: u8 },
    AskGrow { node: u8, peer: u8 },
    GiveUpJoin { node: u8, peer: u8 },
    BeginCopy { node: u8, peer: u8 },
    EndCopy { node: u8, peer: u8 },
    LandShrink { node: u8 },
    LandGrow { node: u8 },
    DropMember { node: u8 },
    FailOver { to: u8 },
    Vacate,
    PromoteIdle { to: u8 },
    HandOver { to: u8 },
    Register { node: u8 },
    Crash { node: u8 },
    LoseDisk { node: u8 },
}

impl Bounds {
    /// Why the model has no room for these bounds.
    pub fn validate(&self) -> Result<(), String> {
        let limits = [
            ("nodes", self.nodes, 2, NODES as u8),
            ("writes", self.writes, 0, 7),
            ("epochs", self.epochs, 1, EPOCHS as u8),
            ("crashes", self.crashes, 0, 9),
            ("changes", self.changes, 0, 5),
            ("disks", self.disks, 0, 2),
            ("copies", self.copies, 0, 3),
        ];
        for (name, value, min, max) in limits {
            if !(min..=max).contains(&value) {
                return Err(format!("{name} must be {min} to {max}"));
            }
        }
        if self.writes + self.epochs > crate::log::LOG_MAX {
            return Err("writes and epochs together must be at most 8".into());
        }
        Ok(())
    }
}

impl Spec {
    /// `bounds` must be valid.
    #[must_use]
    pub fn new(bounds: Bounds, mutation: Option<Mutation>, symmetry: bool) -> Self {
        Self { bounds, mutation, symmetry, steps: steps(bounds) }
    }

    #[must_use]
    pub fn planted(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    fn after(&self, state: &State, step: Step) -> Option<State> {
        match step {
            Step::Begin { epoch, ahead } => self.begin(state, epoch, ahead),
            Step::Learn { node, ahead } => self.learn(state, node, ahead),
            Step::Renounce { node } => self.renounce(state, node),
            Step::Demote { node } => self.demote(state, node),
            Step::Write { node } => self.write(state, node),
            Step::Flush { node } => self.flush(state, node),
            Step::Attach { node, peer } => self.attach(state, node, peer),
            Step::Deliver { node, epoch } => self.deliver(state, epoch, node),
            Step::Answered { epoch, peer } => self.answered(state, epoch, peer),
            Step::AskShrink { node, peer } => self.ask_shrink(state, node, peer),
            Step::Join { node, peer } => self.join(state, node, peer),
            Step::AskGrow { node, peer } => self.ask_grow(state, node, peer),
            Step::GiveUpJoin { node, peer } => self.give_up_join(state, node, peer),
            Step::BeginCopy { node, peer } => self.begin_copy(state, node, peer),
            Step::EndCopy { node, peer } => self.end_copy(state, node, peer),
            Step::LandShrink { node } => self.land_shrink(state, node),
            Step::LandGrow { node } => self.land_grow(state, node),
            Step::DropMember { node } => self.drop_member(state, node),
            Step::FailOver { to } => self.fail_over(state, to),
            Step::Vacate => self.vacate(state),
            Step::PromoteIdle { to } => self.promote_idle(state, to),
            Step::HandOver { to } => self.hand_over(state, to),
            Step::Register { node } => self.register(state, node),
            Step::Crash { node } => self.crash(state, node),
            Step::LoseDisk { node } => self.lose_disk(state, node),
        }
    }

    /// Looks at the whole state, which no node can see.
    fn examine(&self, state: &mut State) {
        let record = state.record;
        if record.iss == 0 {
            state.violate(Violation::Empty);
        }
        for node in (0..self.bounds.nodes).filter(|node| has(record.iss, *node)) {
            let replica = state.node(node);
            // A new disk after a loss is not the member; R9 has to notice that.
            let member = replica.second == has(record.second, node);
            if member && !(replica.whole && replica.durable_log().starts_with(state.done)) {
                state.violate(Violation::Soundness);
            }
        }
        for node in 0..self.bounds.nodes {
            let replica = *state.node(node);
            if replica.leads == 0 {
                continue;
            }
            if replica.leads == record.epoch && record.primary != NOBODY {
                if !replica.log.starts_with(state.done) {
                    state.violate(Violation::Promotion);
                } else if replica.serves && replica.commit < state.done.end() {
                    state.violate(Violation::Serving);
                }
            }
            // A secondary takes entries for committed when it is told so, as far as its log
            // reaches.
            for peer in (0..self.bounds.nodes).filter(|peer| *peer != node) {
                let told = state.talk(replica.leads, peer).out == Out::Entries;
                let theirs = state.node(peer).durable_log().prefix(replica.commit);
                if told && !(theirs.starts_with(state.done) || state.done.starts_with(theirs)) {
                    state.violate(Violation::Agreement);
                }
            }
        }
    }
}

fn steps(bounds: Bounds) -> Vec<Step> {
    let mut steps = Vec::new();
    let nodes = 0..bounds.nodes;
    // One version more than all changes and new disks.
    let versions = bounds.changes + bounds.disks + 1;
    for epoch in 1..=bounds.epochs {
        steps.extend((0..versions).map(|ahead| Step::Begin { epoch, ahead }));
        for node in nodes.clone() {
            steps.extend([Step::Deliver { node, epoch }, Step::Answered { epoch, peer: node }]);
        }
    }
    for node in nodes.clone() {
        steps.extend((1..versions).map(|ahead| Step::Learn { node, ahead }));
        steps.extend([
            Step::Renounce { node },
            Step::Demote { node },
            Step::Write { node },
            Step::Flush { node },
            Step::LandShrink { node },
            Step::LandGrow { node },
            Step::DropMember { node },
            Step::FailOver { to: node },
            Step::PromoteIdle { to: node },
            Step::HandOver { to: node },
            Step::Register { node },
            Step::Crash { node },
            Step::LoseDisk { node },
        ]);
        for peer in nodes.clone().filter(|peer| *peer != node) {
            steps.extend([
                Step::Attach { node, peer },
                Step::AskShrink { node, peer },
                Step::Join { node, peer },
                Step::AskGrow { node, peer },
                Step::GiveUpJoin { node, peer },
                Step::BeginCopy { node, peer },
                Step::EndCopy { node, peer },
            ]);
        }
    }
    steps.push(Step::Vacate);
    steps
}

impl Model for Spec {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let bounds = self.bounds;
        let budget = Budget {
            writes: bounds.writes,
            crashes: bounds.crashes,
            changes: bounds.changes,
            disks: bounds.disks,
            copies: bounds.copies,
        };
        vec![State::initial(bounds.nodes, budget)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Step>) {
        // After a violation nothing is of interest.
        if state.violated.is_none() {
            actions.extend_from_slice(&self.steps);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = self.after(state, step)?;
        next.settle(!self.planted(Mutation::NoEpochCheck), !self.planted(Mutation::ResumeEpoch));
        self.examine(&mut next);
        Some(if self.symmetry { next.representative(self.bounds.nodes) } else { next })
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($name:literal, $violation:ident) => {
                Property::always($name, |_, state: &State| state.violated != Some(Violation::$violation))
            };
        }
        vec![
            never!("S6 no two entries are committed at one index", Agreement),
            never!("S7 no position of an epoch is given away twice", Sequencer),
            never!("S8 every recorded member holds every acknowledged entry durably", Soundness),
            never!("S9 a fenced primary acknowledges nothing that the later epoch lacks", Fence),
            never!("R5 the newest primary holds every acknowledged entry", Promotion),
            never!("R6 the newest primary knows all that was acknowledged before it serves", Serving),
            never!("R7 no primary cuts what was acknowledged in its epoch or before", Cut),
            never!("R11 the ISS is never empty", Empty),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Log;

    /// S8 sees most mistakes first. So the other invariants are shown states that only they can
    /// see.
    #[test]
    fn the_rarer_violations_are_seen_too() {
        let bounds = Bounds {
            nodes: 2,
            writes: 0,
            epochs: 2,
            crashes: 0,
            changes: 0,
            disks: 0,
            copies: 0,
            reconnects: false,
        };
        let spec = Spec::new(bounds, None, false);
        let initial = spec.init_states()[0];
        let log = |epoch| {
            let mut log = Log::default();
            log.push(epoch);
            log
        };

        let mut empty = initial;
        empty.record.iss = 0;
        spec.examine(&mut empty);
        assert_eq!(empty.violated, Some(Violation::Empty));

        let mut lacking = initial;
        lacking.record.iss = 0b10;
        (lacking.done, lacking.nodes[1].log, lacking.nodes[1].durable) = (log(1), log(1), 1);
        lacking.nodes[0].leads = 1;
        spec.examine(&mut lacking);
        assert_eq!(lacking.violated, Some(Violation::Promotion));

        let mut fenced = initial;
        (fenced.done, fenced.eras[0].log) = (log(2), log(1));
        (fenced.nodes[0].leads, fenced.nodes[0].log, fenced.nodes[0].durable) = (1, log(1), 1);
        spec.advance_commit(&mut fenced, 0);
        assert_eq!(fenced.violated, Some(Violation::Fence));

        let mut cutting = initial;
        (cutting.done, cutting.done_in) = (log(1), log(1));
        (cutting.nodes[1].session, cutting.nodes[1].log) = (2, log(1));
        cutting.talk_mut(2, 1).out = Out::Cut(0);
        let cut = spec.deliver(&cutting, 2, 1).unwrap();
        assert_eq!(cut.violated, Some(Violation::Cut));
        // An entry may go if only a later epoch acknowledged it.
        cutting.done_in = log(3);
        assert_eq!(spec.deliver(&cutting, 2, 1).unwrap().violated, None);
    }
}

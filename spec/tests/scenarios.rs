//! Good days of the protocol, step by step: the model must allow them, and every kind of step must
//! happen.

use mainstay_spec::state::{Link, Out, State};
use mainstay_spec::{Bounds, Spec, Step, Step::*};
use stateright::Model;
use std::collections::BTreeSet;

const A: u8 = 0;
const B: u8 = 1;
const C: u8 = 2;

struct Play {
    spec: Spec,
    state: State,
    kinds: BTreeSet<String>,
}

impl Play {
    fn new(nodes: u8) -> Self {
        let bounds = Bounds {
            nodes,
            writes: 3,
            epochs: 4,
            crashes: 2,
            changes: 4,
            disks: 1,
            copies: 1,
            reconnects: true,
        };
        bounds.validate().unwrap();
        let spec = Spec::new(bounds, None, false);
        let state = spec.init_states()[0];
        Self { spec, state, kinds: BTreeSet::new() }
    }

    /// Takes the steps, each of which must be possible.
    fn go(&mut self, steps: impl IntoIterator<Item = Step>) -> &mut Self {
        for step in steps {
            let mut offered = Vec::new();
            self.spec.actions(&self.state, &mut offered);
            assert!(offered.contains(&step), "{step:?} is not among the steps");
            let Some(next) = self.spec.next_state(&self.state, step) else {
                panic!("{step:?} is not possible in {:#?}", self.state);
            };
            assert_eq!(next.violated, None, "after {step:?}");
            self.state = next;
            let kind = format!("{step:?}");
            self.kinds.insert(kind.split(' ').next().unwrap_or_default().to_string());
        }
        self
    }

    fn refuses(&mut self, step: Step) -> &mut Self {
        assert!(
            self.spec.next_state(&self.state, step).is_none(),
            "{step:?} is possible in {:#?}",
            self.state
        );
        self
    }

    fn log(&self, node: u8) -> String {
        format!("{:?}", self.state.node(node).log)
    }

    fn done(&self) -> String {
        format!("{:?}", self.state.done)
    }

    /// The primary of `epoch` attaches `peer`, which has no tail to cut, and feeds it `entries`.
    fn feed(&mut self, epoch: u8, peer: u8, entries: usize) -> &mut Self {
        let node = self.state.era(epoch).node;
        self.go([Attach { node, peer }, Deliver { node: peer, epoch }, Answered { epoch, peer }]);
        self.go(std::iter::repeat_n(Deliver { node: peer, epoch }, entries));
        self.go([Answered { epoch, peer }])
    }

    /// A leads epoch 1 and has committed its epoch start on both.
    fn two() -> Self {
        let mut play = Self::new(2);
        play.go([Begin { epoch: 1, ahead: 0 }]).feed(1, B, 1).go([Flush { node: A }]);
        assert_eq!(play.done(), "[1]");
        play
    }
}

/// A's unacknowledged write is cut when it returns to B, and A becomes a member again.
fn rejoin() -> Play {
    let mut play = Play::two();
    play.go([Write { node: A }, Flush { node: A }, FailOver { to: B }, Begin { epoch: 2, ahead: 0 }]);
    // A's earlier messages arrive too late.
    play.refuses(Deliver { node: B, epoch: 1 });
    play.go([Flush { node: B }, Write { node: B }, Renounce { node: A }]);
    assert_eq!((play.log(A).as_str(), play.log(B).as_str()), ("[1 1]", "[1 2 2]"));
    play.go([Attach { node: B, peer: A }, Deliver { node: A, epoch: 2 }, Answered { epoch: 2, peer: A }]);
    assert_eq!(play.state.talk(2, A).out, Out::Cut(1));
    play.go([Deliver { node: A, epoch: 2 }, Answered { epoch: 2, peer: A }]);
    play.go([Join { node: B, peer: A }]).refuses(AskGrow { node: B, peer: A });
    play.go([Flush { node: B }]);
    assert_eq!(play.done(), "[1 2]", "commits wait for a joiner");
    play.go([Deliver { node: A, epoch: 2 }, Deliver { node: A, epoch: 2 }, Answered { epoch: 2, peer: A }]);
    assert_eq!(play.done(), "[1 2 2]");
    play.go([AskGrow { node: B, peer: A }]).refuses(GiveUpJoin { node: B, peer: A });
    play.go([LandGrow { node: A }, Learn { node: B, ahead: 1 }]);
    assert_eq!((play.state.record.iss, play.log(A).as_str()), (0b11, "[1 2 2]"));
    play
}

/// The primary waits for a failed member until it knows of its removal.
fn shrink() -> Play {
    let mut play = Play::two();
    play.go([Write { node: A }, Flush { node: A }, AskShrink { node: A, peer: B }, LandShrink { node: B }]);
    assert_eq!(play.done(), "[1]", "R3");
    play.go([Learn { node: A, ahead: 1 }]);
    assert_eq!(play.done(), "[1 1]");
    play.refuses(FailOver { to: B });
    play.go([Join { node: A, peer: B }, GiveUpJoin { node: A, peer: B }]);
    play
}

/// A restarted primary does not go on in its epoch; it hands over, to itself or another.
fn restart() -> Play {
    let mut play = Play::two();
    play.go([Write { node: A }, Crash { node: A }]);
    assert_eq!(play.log(A), "[1]");
    play.refuses(Begin { epoch: 1, ahead: 0 });
    play.go([HandOver { to: B }, Begin { epoch: 2, ahead: 0 }, Flush { node: B }]);
    assert_eq!(play.done(), "[1]", "A stays a member and has not attached");
    play.feed(2, A, 1);
    assert_eq!(play.done(), "[1 2]");
    play.go([Demote { node: B }, HandOver { to: A }, Begin { epoch: 3, ahead: 0 }]);
    play.go([Vacate, Renounce { node: A }, PromoteIdle { to: B }]);
    assert_eq!((play.state.record.epoch, play.state.record.iss), (4, 0b11));
    play
}

/// A new disk is no member, starts empty, and gets a copy.
fn new_disk() -> Play {
    let mut play = Play::two();
    play.go([LoseDisk { node: B }]).refuses(Attach { node: A, peer: B });
    play.go([Register { node: B }]);
    assert_eq!(play.state.record.iss, 0b01);
    play.go([Learn { node: A, ahead: 1 }, Attach { node: A, peer: B }, Deliver { node: B, epoch: 1 }]);
    play.go([Answered { epoch: 1, peer: B }, BeginCopy { node: A, peer: B }, Write { node: A }]);
    assert!(!play.state.node(B).whole);
    play.refuses(Join { node: A, peer: B });
    play.go([Deliver { node: B, epoch: 1 }, Answered { epoch: 1, peer: B }, Flush { node: A }]);
    // Interrupted: it must be copied again.
    play.go([Crash { node: B }, Attach { node: A, peer: B }, Deliver { node: B, epoch: 1 }]);
    play.go([Answered { epoch: 1, peer: B }]);
    assert_eq!(play.state.talk(1, B).link, Link::Stale);
    play.go([BeginCopy { node: A, peer: B }, EndCopy { node: A, peer: B }, Join { node: A, peer: B }]);
    play.go([AskGrow { node: A, peer: B }, LandGrow { node: B }, Learn { node: A, ahead: 1 }]);
    assert_eq!((play.state.record.iss, play.log(B).as_str()), (0b11, "[1 1]"));
    // The old primary's disk may go now.
    play.go([FailOver { to: B }, Begin { epoch: 2, ahead: 0 }, Flush { node: B }]);
    assert_eq!(play.done(), "[1 1 2]");
    play
}

/// Three replicas: one is declared dead, the others go on.
fn three() -> Play {
    let mut play = Play::new(3);
    play.go([Begin { epoch: 1, ahead: 0 }]).feed(1, B, 1).go([Flush { node: A }, DropMember { node: C }]);
    assert_eq!(play.done(), "[]");
    play.go([Learn { node: A, ahead: 1 }, Write { node: A }]);
    assert_eq!(play.done(), "[1]");
    play
}

#[test]
fn the_model_plays_its_scenarios_and_takes_every_kind_of_step() {
    let kinds: BTreeSet<String> = [rejoin(), shrink(), restart(), new_disk(), three()]
        .into_iter()
        .flat_map(|play| play.kinds)
        .collect();
    let spec = Play::new(3).spec;
    let mut all = Vec::new();
    spec.actions(&spec.init_states()[0], &mut all);
    let all: BTreeSet<String> = all
        .into_iter()
        .map(|step| format!("{step:?}").split(' ').next().unwrap_or_default().to_string())
        .collect();
    assert_eq!(all, kinds);
}

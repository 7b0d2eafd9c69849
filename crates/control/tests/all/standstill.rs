//! A node whose engine or journal stands still gives its lease up (R19): when, and only when
//! another node could go on.

use crate::common::{A, B, R, W, die, ready};
use mainstay_control::lease::{self, Heartbeat, LeaseMachine, View};
use mainstay_control::standstill::{JournalWait, Measured, STANDS_STILL_MS, Standstill, Still, Turn};
use mainstay_control::state::State;
use mainstay_types::{NodeId, Time};

const LOOK_MS: u64 = 500;

/// The agent of A, which looks every half second.
struct Looks {
    now: Time,
    state: State,
    core: Standstill,
}

impl Looks {
    fn new(state: State) -> Self {
        Self { now: Time(0).plus_ms(10_000), state, core: Standstill::default() }
    }

    fn at(&mut self, after_ms: u64, seen: &Measured) -> Option<Turn> {
        self.now = self.now.plus_ms(after_ms);
        self.core.look(self.now, A, &self.state, seen)
    }

    /// Looks while `seen` stands still from now on. Returns the turn, and when it came.
    fn until_turn(&mut self, ms: u64, seen: impl Fn(u64) -> Measured) -> Option<(u64, Turn)> {
        (0..=ms / LOOK_MS).find_map(|look| {
            let after_ms = if look == 0 { 0 } else { LOOK_MS };
            self.at(after_ms, &seen(look * LOOK_MS)).map(|turn| (look * LOOK_MS, turn))
        })
    }
}

fn engine(ms: u64) -> Measured {
    Measured { engine_ms: ms, journals: Vec::new() }
}

fn journal(ms: u64, answering: &[NodeId]) -> Measured {
    let answering = answering.iter().copied().collect();
    Measured { engine_ms: 0, journals: vec![JournalWait { resource: R, ms, answering }] }
}

#[test]
fn a_node_whose_engine_stands_still_gives_its_lease_up() {
    let mut looks = Looks::new(ready());
    let (ms, turn) = looks.until_turn(10_000, engine).expect("it gives its lease up");
    assert_eq!((ms, turn), (STANDS_STILL_MS, Turn::GivesUp(Still::Engine)));
    assert!(turn.words(&looks.state).contains("its engine does not answer"));
    assert_eq!(looks.at(LOOK_MS, &engine(3000)), None);
    assert_eq!(looks.core.gives_up(), Some(Still::Engine));
    assert_eq!(looks.at(LOOK_MS, &engine(0)), Some(Turn::HoldsAgain(Still::Engine)));
}

#[test]
fn a_node_whose_journal_hangs_gives_its_lease_up_if_a_member_answers() {
    let mut looks = Looks::new(ready());
    let hangs = Turn::GivesUp(Still::Journal(R));
    assert_eq!(looks.until_turn(10_000, |ms| journal(ms, &[])), None, "all members wait");
    let mut looks = Looks::new(ready());
    assert_eq!(looks.until_turn(10_000, |ms| journal(ms, &[W])), None, "no member answers");
    let mut looks = Looks::new(ready());
    let (ms, turn) = looks.until_turn(10_000, |ms| journal(ms, &[B])).expect("it gives its lease up");
    assert_eq!((ms, turn), (STANDS_STILL_MS, hangs));
    assert!(turn.words(&looks.state).contains("the journal of db"));
    // The guard has acted: no replica leads here, and the journal is not told of any more.
    for _ in 0..6 {
        assert_eq!(looks.at(LOOK_MS, &engine(0)), None, "the others need their time");
    }
    looks.at(LOOK_MS, &journal(4000, &[B]));
    die(&mut looks.state, A);
    assert_eq!(looks.at(LOOK_MS, &engine(0)), Some(Turn::HoldsAgain(Still::Journal(R))), "B has taken over");
}

#[test]
fn a_journal_that_completes_writes_again_ends_it() {
    let mut looks = Looks::new(ready());
    looks.until_turn(10_000, |ms| journal(ms, &[B])).expect("it gives its lease up");
    assert_eq!(looks.at(LOOK_MS, &journal(20, &[B])), Some(Turn::HoldsAgain(Still::Journal(R))));
}

/// Without a majority the death is never recorded. The node asks again when the others have had
/// their time, and gives up again if its journal still hangs.
#[test]
fn a_node_that_no_majority_declares_dead_asks_for_a_lease_again() {
    let mut looks = Looks::new(ready());
    looks.until_turn(10_000, |ms| journal(ms, &[B])).expect("it gives its lease up");
    let (ms, turn) = looks.until_turn(20_000, |_| engine(0)).expect("it asks again");
    assert_eq!(turn, Turn::HoldsAgain(Still::Journal(R)));
    assert!(ms >= 4000, "after {ms} ms");
}

#[test]
fn a_node_keeps_its_lease_if_no_other_node_could_take_over() {
    let mut state = ready();
    die(&mut state, B);
    let mut looks = Looks::new(state);
    assert_eq!(looks.until_turn(20_000, engine), None);
    assert_eq!(looks.until_turn(20_000, |ms| journal(ms, &[B])), None);
    let mut secondary = Looks::new(ready());
    die(&mut secondary.state, A);
    assert_eq!(secondary.until_turn(20_000, engine), None, "it leads nothing");
}

/// A machine that was suspended, or an agent that was stopped: the answer may wait to be read.
#[test]
fn time_in_which_the_agent_did_not_run_does_not_count() {
    let mut looks = Looks::new(ready());
    assert_eq!(looks.at(0, &engine(200)), None);
    assert_eq!(looks.at(3_600_000, &engine(3_600_000)), None, "it has just woken up");
    assert_eq!(looks.at(LOOK_MS, &engine(3_600_500)), None);
    assert_eq!(looks.at(LOOK_MS, &engine(0)), None);
    assert_eq!(looks.until_turn(STANDS_STILL_MS - LOOK_MS, engine), None);
}

fn vote(machine: &mut LeaseMachine, now: Time, gives_up: bool) -> bool {
    let heartbeat =
        Heartbeat { generation: 1, session: 9, seq: now.0, holds: true, gives_up, suspects: Vec::new() };
    machine.handle(now, lease::Event::Heartbeat { from: A, heartbeat });
    let mut acknowledged = false;
    while let Some(effect) = machine.poll() {
        acknowledged |= matches!(effect, lease::Effect::SendAck { to: A, .. });
    }
    acknowledged
}

#[test]
fn a_voter_suspects_a_node_that_gives_its_lease_up_as_if_it_were_silent() {
    let state = ready();
    let mut voter = LeaseMachine::new(B, 1, [], Time(1));
    voter.handle(Time(1), lease::Event::View(View::of(&state)));
    let mut suspected = None;
    for step in 0..200u64 {
        let now = Time(1).plus_ms(step * 20);
        let gives_up = step >= 50;
        if step % 10 == 0 {
            assert_eq!(vote(&mut voter, now, gives_up), !gives_up, "at {step}");
        }
        voter.handle(now, lease::Event::Tick);
        while let Some(effect) = voter.poll() {
            if matches!(effect, lease::Effect::PersistSuspect(suspect) if suspect.node == A) {
                suspected.get_or_insert(step * 20);
            }
        }
    }
    let after_ms = suspected.expect("it is suspected");
    let lease_ms = state.settings.lease_ms + state.settings.margin_ms;
    assert!((800 + lease_ms..=1100 + lease_ms).contains(&after_ms), "at {after_ms} ms");
}

#[test]
fn a_holder_that_gives_its_lease_up_lets_it_run_out() {
    let state = ready();
    let mut holder = LeaseMachine::new(A, 9, [], Time(1));
    holder.handle(Time(1), lease::Event::View(View::of(&state)));
    let mut until = Time(0);
    let mut told = 0;
    for step in 0..100u64 {
        let now = Time(1).plus_ms(step * 50);
        if step == 20 {
            holder.handle(now, lease::Event::GivesUp(true));
        }
        holder.handle(now, lease::Event::Tick);
        while let Some(effect) = holder.poll() {
            match effect {
                lease::Effect::SendHeartbeat { to, heartbeat } => {
                    told += u64::from(heartbeat.gives_up);
                    let Heartbeat { generation, session, seq, .. } = heartbeat;
                    let ack = lease::Ack { generation, session, seq };
                    // An older version acknowledges it all the same.
                    holder.handle(now, lease::Event::Ack { from: to, ack });
                }
                lease::Effect::LeaseUntil(now) => until = now,
                _ => {}
            }
        }
    }
    assert!(told > 0);
    assert!(until <= Time(1).plus_ms(1000 + state.settings.lease_ms), "{until:?}");
}

/// Only the leader of the log proposes a death. If it gives its own lease up, nobody else can.
#[test]
fn a_leader_that_gives_its_lease_up_says_itself_that_it_is_dead() {
    let state = ready();
    for gives_up in [false, true] {
        let mut holder = LeaseMachine::new(A, 9, [], Time(1));
        holder.handle(Time(1), lease::Event::View(View::of(&state)));
        holder.handle(Time(1), lease::Event::GivesUp(gives_up));
        let mut proposed = Vec::new();
        for (seq, from) in [(1, B), (2, W)] {
            let own = lease::Suspect { node: A, generation: 1 };
            let heartbeat = Heartbeat {
                generation: 1,
                session: u64::from(from.0),
                seq,
                holds: true,
                gives_up: false,
                suspects: vec![own],
            };
            holder.handle(Time(1), lease::Event::Heartbeat { from, heartbeat });
            let mut dead = false;
            while let Some(effect) = holder.poll() {
                dead |= matches!(effect, lease::Effect::ProposeDead(suspect) if suspect == own);
            }
            proposed.push(dead);
        }
        assert_eq!(proposed, [false, gives_up], "a majority is two of three");
    }
}

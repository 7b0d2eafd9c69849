//! One cause is told once. Among the stalls only causes are told, and not what follows from them. A
//! cause that flaps does not begin and end as an event every few seconds.

use crate::stalls::{Stall, Stalled};
use crate::state::State;
use mainstay_types::{NodeId, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// Time for which a stall must not be seen before it counts as over, in milliseconds. An answer now
/// and then ends nothing.
const OVER_MS: u64 = 2000;
/// Longest such time, of a stall that keeps coming back, in milliseconds.
const OVER_MAX_MS: u64 = 600_000;
/// Factor by which that time grows with every return.
const OVER_FACTOR: u64 = 6;
/// Time without a return after which a stall counts as a new one, in milliseconds.
const CALM_MS: u64 = 3_600_000;

/// The causes among `stalls`. Leaves out stalls that follow from another one, and stalls of nodes
/// that count as dead.
#[must_use]
pub fn causes(state: &State, mut stalls: Vec<Stall>) -> Vec<Stall> {
    let of = |pick: fn(&Stalled) -> Option<NodeId>| -> BTreeSet<NodeId> {
        stalls.iter().filter_map(|stall| pick(&stall.what)).collect()
    };
    let disks = of(|what| if let Stalled::LogDisk(node) = what { Some(*node) } else { None });
    let cropped = of(|what| if let Stalled::Cropped(node, _) = what { Some(*node) } else { None });
    let unheard: BTreeSet<(NodeId, NodeId)> = stalls
        .iter()
        .filter_map(|stall| match stall.what {
            Stalled::Unheard(node, other) => Some((node, other)),
            _ => None,
        })
        .collect();
    stalls.retain(|stall| match stall.what {
        Stalled::Voter(node) => !disks.contains(&node) && !cropped.contains(&node),
        Stalled::Unheard(node, other) => {
            state.alive(node) && state.alive(other) && !(other < node && unheard.contains(&(other, node)))
        }
        Stalled::Cropped(node, other) => {
            state.alive(other) && !unheard.contains(&(node, other)) && !unheard.contains(&(other, node))
        }
        _ => true,
    });
    stalls
}

/// Something to be told as an event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    Begun(Stall),
    Over(Stall),
}

impl News {
    /// Severity, subject and text of the event.
    #[must_use]
    pub fn words(&self, state: &State) -> (Severity, String, String) {
        match self {
            Self::Begun(stall) => (stall.severity(), stall.subject(state), stall.words(state)),
            Self::Over(stall) => {
                let text = format!("no longer the case: {}", stall.words(state));
                (Severity::Info, stall.subject(state), text)
            }
        }
    }
}

#[derive(Debug)]
struct Telling {
    /// Whether it was told, and not yet that it is over.
    is_told: bool,
    /// Age when it was seen last, in milliseconds.
    ms: u64,
    /// Time at which it was seen last, in milliseconds.
    seen_ms: u64,
    /// Time without it after which it is told as over, in milliseconds.
    over_ms: u64,
}

/// Stalls that were told. If a stall comes back soon after it ended, its end is told ever later. So
/// a stall that flaps does not cause a pair of events every few seconds.
#[derive(Debug, Default)]
pub struct Tellings(BTreeMap<Stalled, Telling>);

impl Tellings {
    /// Takes in what is seen at `now_ms`, a time that only rises. Returns what is to be told.
    pub fn note(&mut self, seen: &[Stall], now_ms: u64) -> Vec<News> {
        let mut news = Vec::new();
        for stall in seen {
            let new = Telling { is_told: false, ms: 0, seen_ms: now_ms, over_ms: OVER_MS / OVER_FACTOR };
            let telling = self.0.entry(stall.what.clone()).or_insert(new);
            (telling.ms, telling.seen_ms) = (stall.ms, now_ms);
            if !telling.is_told {
                telling.is_told = true;
                telling.over_ms = (telling.over_ms.saturating_mul(OVER_FACTOR)).clamp(OVER_MS, OVER_MAX_MS);
                news.push(News::Begun(stall.clone()));
            }
        }
        for (what, telling) in self.0.iter_mut().filter(|(_, telling)| telling.is_told) {
            if now_ms.saturating_sub(telling.seen_ms) >= telling.over_ms {
                telling.is_told = false;
                news.push(News::Over(Stall { what: what.clone(), ms: telling.ms }));
            }
        }
        self.0.retain(|_, telling| telling.is_told || now_ms.saturating_sub(telling.seen_ms) < CALM_MS);
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Links, Node};
    use mainstay_types::NodeStatus;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn two_nodes() -> State {
        let mut state = State::default();
        for (id, name) in [(A, "a"), (B, "b")] {
            let node = Node {
                id,
                name: name.into(),
                agent_addr: format!("10.0.0.{}:7400", id.0),
                engine_addr: String::new(),
                status: NodeStatus::Alive,
                generation: 1,
                voter: true,
                witness: false,
                candidate: false,
                replaces: None,
                voters_seen: 0,
                nonce: 0,
                links: Links::default(),
                maintenance: None,
                level: 0,
                cordon: None,
            };
            state.nodes.insert(id, node);
        }
        state
    }

    fn stall(what: Stalled) -> Stall {
        Stall { what, ms: 20_000 }
    }

    #[test]
    fn a_disk_that_hangs_or_a_link_that_loses_large_packets_is_the_only_cause_that_is_told() {
        let mut state = two_nodes();
        let kept = |state: &State, list: &[Stalled]| -> Vec<Stalled> {
            let list = list.iter().cloned().map(stall).collect();
            causes(state, list).into_iter().map(|stall| stall.what).collect()
        };
        let disk = Stalled::LogDisk(B);
        assert_eq!(kept(&state, &[Stalled::Voter(B), disk.clone()]), std::slice::from_ref(&disk));
        assert_eq!(kept(&state, &[Stalled::Voter(A), disk.clone()]), [Stalled::Voter(A), disk]);
        let cropped = Stalled::Cropped(B, A);
        assert_eq!(kept(&state, &[Stalled::Voter(B), cropped.clone()]), std::slice::from_ref(&cropped));
        let apart = Stalled::Unheard(A, B);
        let both = [cropped, Stalled::Unheard(B, A), apart.clone()];
        assert_eq!(kept(&state, &both), std::slice::from_ref(&apart), "a cut link is told once");
        state.nodes.get_mut(&B).unwrap().status = NodeStatus::Dead;
        assert_eq!(kept(&state, &[apart]), [], "a dead node is told as dead");
    }

    #[test]
    fn a_link_that_loses_large_packets_is_told_with_a_command_that_can_be_pasted() {
        let state = two_nodes();
        let advice = stall(Stalled::Cropped(A, B)).advice(&state);
        assert!(advice.what.contains("large packets from b have not reached it for 20 s"), "{advice:?}");
        assert!(advice.remedy.contains("`ping -M do -c 3 -s 1472 10.0.0.1` on b"), "{advice:?}");
        let advice = stall(Stalled::Voter(B)).advice(&state);
        assert!(advice.remedy.contains("`ping -M do -c 3 -s 1472 10.0.0.2`"), "{advice:?}");
    }

    #[test]
    fn a_cause_that_flaps_for_hours_is_a_few_events_and_an_end_is_told_soon() {
        let mut tellings = Tellings::default();
        let seen = [stall(Stalled::Voter(B))];
        assert!(matches!(&tellings.note(&seen, 0)[..], [News::Begun(_)]));
        assert_eq!(tellings.note(&[], 1000), [], "an answer now and then ends nothing");
        assert!(matches!(&tellings.note(&[], 2000)[..], [News::Over(_)]));
        // Three hours: there for 3 s, and away for 5 s.
        let mut told = 0;
        for at in (3000..3 * 3_600_000).step_by(500) {
            let seen = if at % 8000 < 3000 { &seen[..] } else { &[] };
            told += tellings.note(seen, at).len();
        }
        assert!(told <= 3, "{told} events");
        let end = 3 * 3_600_000 + OVER_MAX_MS;
        tellings.note(&[], end);
        tellings.note(&[], end + CALM_MS);
        assert!(matches!(&tellings.note(&seen, end + CALM_MS + 1)[..], [News::Begun(_)]));
        assert!(matches!(&tellings.note(&[], end + CALM_MS + 2001)[..], [News::Over(_)]), "it was calm");
    }
}

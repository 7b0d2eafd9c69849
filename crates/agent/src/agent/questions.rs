//! Questions to all nodes about what no record has: engines, pools, and requests that wait.
//!
//! Guarantees
//! - Who decides by the answers asks anew ([`Agent::ask_all`]).
//! - A view may be made of answers that were asked for a moment earlier ([`Agent::asked_lately`]),
//!   if they are of the same nodes, and if no change went through this agent in between. So who
//!   changes something and looks sees it. The moment is [`MOMENT`], or [`REST`] times as long as
//!   the answers took if that is longer, up to [`MOMENT_MAX`].
//! - Questions for views are asked one after the other. Who comes meanwhile has the next answers.

use super::{ASK_TIMEOUT, Agent, OWN_QUESTIONS_MAX, with_notices};
use crate::member::Member;
use crate::messages::{Call, CallReply};
use crate::raft::View;
use crate::threads::{lock, spawn};
use crate::views::Live;
use mainstay_api::engine::{Reply, Request};
use mainstay_control::advice::Advice;
use mainstay_control::state::State;
use mainstay_trust::Expect;
use mainstay_types::{NodeId, NodeStatus};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Age of answers that a view is still made of. Each node is asked over connections of their own,
/// which costs milliseconds of processor time, and more with many resources. A reader who asks all
/// the time shall not cause more of that than this allows.
const MOMENT: Duration = Duration::from_millis(100);
const MOMENT_MAX: Duration = Duration::from_millis(500);
const REST: u32 = 5;

/// The last answers of all nodes, for views.
#[derive(Default)]
pub(super) struct Latest {
    /// Held while nodes are asked.
    answers: Mutex<Option<Answers>>,
    /// Number of changes that went through this agent.
    changes: AtomicU64,
    advised: Mutex<Option<Advised>>,
}

/// The advice that followed from a record and answers.
struct Advised {
    state: Arc<State>,
    has_leader: bool,
    live: Arc<Live>,
    advice: Arc<[Advice]>,
}

struct Answers {
    /// Until when views are made of them.
    until: Instant,
    changes: u64,
    nodes: BTreeSet<NodeId>,
    live: Arc<Live>,
}

impl Latest {
    /// The last answers if they may be shown to a reader who came at `now`, otherwise those that
    /// `ask` returns.
    fn or(&self, now: Instant, nodes: BTreeSet<NodeId>, ask: impl FnOnce() -> Live) -> Arc<Live> {
        let mut answers = lock(&self.answers);
        let changes = self.changes.load(Ordering::Acquire);
        if let Some(last) = &*answers
            && last.changes == changes
            && last.nodes == nodes
            && now <= last.until
        {
            return last.live.clone();
        }
        let began = Instant::now();
        let live = Arc::new(ask());
        let until = began + moment(began.elapsed());
        *answers = Some(Answers { until, changes, nodes, live: live.clone() });
        live
    }

    fn changed(&self) {
        self.changes.fetch_add(1, Ordering::Release);
    }
}

/// How long answers are fresh that took so long.
fn moment(took: Duration) -> Duration {
    (took * REST).clamp(MOMENT, MOMENT_MAX)
}

impl Agent {
    /// The answers of all living nodes for a view, no older than the head of this file says.
    #[must_use]
    pub fn asked_lately(self: &Arc<Self>, member: &Member, view: &View) -> Arc<Live> {
        let alive = view.state.nodes.values().filter(|node| node.status == NodeStatus::Alive);
        let nodes = alive.map(|node| node.id).collect();
        self.latest.or(Instant::now(), nodes, || self.ask_all(member, view))
    }

    /// The advice for a record and answers. `advise` makes it, and is not called again for the
    /// same ones.
    pub(crate) fn advised(
        &self,
        state: &Arc<State>,
        has_leader: bool,
        live: &Arc<Live>,
        advise: impl FnOnce() -> Vec<Advice>,
    ) -> Arc<[Advice]> {
        if let Some(last) = &*lock(&self.latest.advised)
            && last.has_leader == has_leader
            && Arc::ptr_eq(&last.state, state)
            && Arc::ptr_eq(&last.live, live)
        {
            return last.advice.clone();
        }
        let advice: Arc<[Advice]> = advise().into();
        let (state, live) = (state.clone(), live.clone());
        *lock(&self.latest.advised) = Some(Advised { state, has_leader, live, advice: advice.clone() });
        advice
    }

    /// A change that went through this agent has ended: what comes after it has to see it.
    pub fn note_change(&self) {
        self.latest.changed();
    }

    /// Asks every living node about its engine and its pool, all at once.
    #[must_use]
    pub fn ask_all(self: &Arc<Self>, member: &Member, view: &View) -> Live {
        let (sender, answers) = sync_channel(256);
        let mut asked = 0;
        for node in view.state.nodes.values().filter(|node| node.status == NodeStatus::Alive) {
            let holds = !node.witness && !node.candidate;
            let of_holders = [Call::Engine(Request::Status), Call::Pool].into_iter().filter(|_| holds);
            for question in of_holders.chain([Call::Waits]) {
                asked += 1;
                let (sender, transport) = (sender.clone(), member.transport.clone());
                let (id, address) = (node.id, node.agent_addr.clone());
                if id == member.identity.node {
                    // Its own disk may hang, so this node has no more time than others.
                    let own = self.clone();
                    if own.own_questions.fetch_add(1, Ordering::Relaxed) >= OWN_QUESTIONS_MAX {
                        own.own_questions.fetch_sub(1, Ordering::Relaxed);
                        drop(sender.send((id, None)));
                        continue;
                    }
                    spawn("agent-ask", move || {
                        let reply = own.answer(question);
                        own.own_questions.fetch_sub(1, Ordering::Relaxed);
                        drop(sender.send((id, Some(reply))));
                    });
                } else {
                    spawn("agent-ask", move || {
                        let reply = transport.call(&address, Expect::Node(id), &question, ASK_TIMEOUT).ok();
                        drop(sender.send((id, reply)));
                    });
                }
            }
        }
        drop(sender);
        let mut live = Live::default();
        let deadline = Instant::now() + ASK_TIMEOUT;
        for _ in 0..asked {
            match answers.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((node, Some(CallReply::Engine(Reply::Status(status))))) => {
                    live.engines.insert(node, status);
                }
                Ok((node, Some(CallReply::Pool { free_bytes, failures, lacks, left, notices }))) => {
                    live.pools.insert(node, free_bytes);
                    live.failures.insert(node, failures);
                    live.lacks.insert(node, lacks);
                    live.left.insert(node, with_notices(left, notices));
                }
                Ok((node, Some(CallReply::Waits(waits)))) => {
                    live.waits.insert(node, waits);
                }
                Ok(_) => {}
                Err(_) => break,
            }
        }
        live
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(numbers: &[u32]) -> BTreeSet<NodeId> {
        numbers.iter().map(|&number| NodeId(number)).collect()
    }

    fn answer(bytes: u64) -> Live {
        Live { pools: [(NodeId(1), bytes)].into(), ..Live::default() }
    }

    fn bytes(live: &Live) -> u64 {
        live.pools[&NodeId(1)]
    }

    #[test]
    fn readers_within_a_moment_share_answers_and_later_ones_do_not() {
        let latest = Latest::default();
        let now = Instant::now();
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(7))), 7);
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(8))), 7, "the same moment");
        let soon = now + MOMENT;
        assert_eq!(bytes(&latest.or(soon, nodes(&[1]), || answer(8))), 7, "the last moment");
        let later = Instant::now() + 2 * MOMENT;
        assert_eq!(bytes(&latest.or(later, nodes(&[1]), || answer(8))), 8);
    }

    #[test]
    fn who_changes_something_and_looks_sees_it() {
        let latest = Latest::default();
        let now = Instant::now();
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(7))), 7);
        latest.changed();
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(8))), 8);
        let during = latest.or(Instant::now() + 2 * MOMENT, nodes(&[1]), || {
            latest.changed();
            answer(9)
        });
        assert_eq!(bytes(&during), 9);
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(10))), 10, "a change while nodes were asked");
    }

    #[test]
    fn answers_that_took_long_are_shown_longer_within_a_limit() {
        assert_eq!(moment(Duration::from_millis(3)), MOMENT);
        assert_eq!(moment(Duration::from_millis(40)), Duration::from_millis(200));
        assert_eq!(moment(Duration::from_secs(2)), MOMENT_MAX);
    }

    #[test]
    fn answers_of_other_nodes_are_none_of_these() {
        let latest = Latest::default();
        let now = Instant::now();
        assert_eq!(bytes(&latest.or(now, nodes(&[1]), || answer(7))), 7);
        assert_eq!(bytes(&latest.or(now, nodes(&[1, 2]), || answer(8))), 8);
    }
}

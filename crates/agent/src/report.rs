//! The report of an interval, made of the histories of all nodes.
//!
//! Guarantees
//! - Figures and sentences are computed here alone, so the command line and the console show the
//!   same ones.
//! - All nodes are asked at once. A node that does not answer within [`NODE_TIMEOUT`] costs its own
//!   part, and the report names it.
//! - A report is bounded, because the answer of each node is (R18).
//!
//! Reading order: `gather.rs` (one report of the records of all nodes), `limit.rs` (the part of one
//! resource), `findings.rs` (what stands out). All are pure. Most of their tests are those of the
//! command that shows them, in `mainstay`.

pub mod findings;
pub mod gather;
pub mod limit;

use crate::agent::Agent;
use crate::error::OTHER_RELEASE;
use crate::history::LoadQuestion;
use crate::history::baselines::{BaselineOrder, KeptBaseline};
use crate::http::{changes, nearest};
use crate::member::Member;
use crate::messages::{Call, CallReply};
use crate::raft::ConsensusLog;
use crate::threads::spawn;
use crate::views;
use mainstay_api::rest::{BaselineView, BaselinesPage, Report, Severity};
use mainstay_control::state::State;
use mainstay_types::clock::clock;
use mainstay_types::{Code, NodeStatus, Problem};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Points of a report, unless one would be shorter than a minute.
const POINTS: u64 = 60;
const MINUTE_MS: u64 = 60_000;
/// Most changes of primaries that are looked at.
const CHANGES_MAX: usize = 1000;
/// How long a node may take to read its history. A client waits longer for the report.
const NODE_TIMEOUT: Duration = Duration::from_secs(8);

/// Records count that end after `from_ms` and not after `to_ms`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interval {
    pub from_ms: u64,
    pub to_ms: u64,
}

impl Interval {
    /// Length of a point.
    #[must_use]
    pub fn step_ms(self) -> u64 {
        (self.to_ms.saturating_sub(self.from_ms) / POINTS).next_multiple_of(MINUTE_MS).max(MINUTE_MS)
    }

    /// # Errors
    /// `bad-request`: it is shorter than a record.
    pub fn checked(self) -> Result<Self, Problem> {
        if self.to_ms.saturating_sub(self.from_ms) < MINUTE_MS {
            return Err(Problem::new(
                Code::BadRequest,
                format!("from {} to {} is less than a minute", clock(self.from_ms), clock(self.to_ms)),
                "Name an earlier begin, for example `mainstay report --last 1h`. Nodes record each minute.",
            ));
        }
        Ok(self)
    }
}

/// A time that a report is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Span {
    /// The histories of the nodes in this interval.
    Interval(Interval),
    /// The kept figures of the baseline with this name.
    Baseline(String),
}

/// Returns the report of a time, compared with another one if there is one, and limited to a
/// resource if one is named.
///
/// # Errors
/// `not-a-member`; `unknown-baseline`; `unknown-resource`.
pub fn report(
    agent: &Arc<Agent>,
    span: &Span,
    compared: Option<&Span>,
    resource: Option<&str>,
) -> Result<Report, Problem> {
    let member = agent.member()?;
    let state = member.log.view().state;
    let of_span = |span: &Span| match span {
        Span::Interval(interval) => Ok(of_interval(agent, &member, &state, *interval, resource)),
        Span::Baseline(name) => of_baseline(agent, &member, &state, name),
    };
    let mut report = of_span(span)?;
    add_events(&state, &mut report);
    report.compared = compared.map(of_span).transpose()?.map(Box::new);
    if let Some(name) = resource {
        limit::Part::of(&state, name).limit(&mut report).map_err(|()| unknown_resource(&state, name))?;
    }
    report.findings = findings::of(&report);
    Ok(report)
}

fn of_interval(
    agent: &Arc<Agent>,
    member: &Arc<Member>,
    state: &State,
    interval: Interval,
    resource: Option<&str>,
) -> Report {
    let Interval { from_ms, to_ms } = interval;
    let resources = resource.map(str::to_owned).into_iter().collect();
    let question = LoadQuestion { from_ms, to_ms, step_ms: interval.step_ms(), resources };
    let answers = ask_all(agent, member, state, &Call::Load(question));
    of_answers(state, answers, interval)
}

fn of_baseline(
    agent: &Arc<Agent>,
    member: &Arc<Member>,
    state: &State,
    name: &str,
) -> Result<Report, Problem> {
    let known = baselines(agent, member, state).baselines;
    let Some(baseline) = known.iter().find(|baseline| baseline.name == name) else {
        return Err(unknown_baseline(&known, name));
    };
    let interval = Interval { from_ms: baseline.from_ms, to_ms: baseline.to_ms };
    let order = BaselineOrder::Load { name: name.to_owned(), step_ms: interval.step_ms() };
    let answers = ask_all(agent, member, state, &Call::Baseline(order));
    Ok(Report { baseline: Some(name.to_owned()), ..of_answers(state, answers, interval) })
}

/// A refusal that also names what was probably meant.
#[must_use]
pub fn unknown_baseline(known: &[BaselineView], name: &str) -> Problem {
    let names = known.iter().map(|known| &known.name);
    let remedy = nearest(name, names, "See `mainstay report baseline list`.");
    Problem::new(Code::UnknownBaseline, format!("there is no baseline {name}"), remedy)
}

fn unknown_resource(state: &State, name: &str) -> Problem {
    let names = state.resources.values().map(|resource| &resource.name);
    let remedy = nearest(name, names, "See `mainstay resource list`.");
    let message = format!("there is no resource {name}, and no record of one in this time");
    Problem::new(Code::UnknownResource, message, remedy)
}

/// Asks all nodes for their baselines. Of two with one name the newer one counts: the other is a
/// part that a node has kept while it was away, and the baseline was deleted.
#[must_use]
pub fn baselines(agent: &Arc<Agent>, member: &Arc<Member>, state: &State) -> BaselinesPage {
    let answers = ask_all(agent, member, state, &Call::Baseline(BaselineOrder::List));
    let mut missing = answers.silent;
    let mut lists = BTreeMap::new();
    for (node, reply) in answers.replies {
        match reply {
            CallReply::Baselines(list) => drop(lists.insert(node, list)),
            other => drop(missing.insert(node, refusal(other).message)),
        }
    }
    BaselinesPage { baselines: merged(&lists), missing: told(missing) }
}

fn merged(lists: &BTreeMap<String, Vec<KeptBaseline>>) -> Vec<BaselineView> {
    let mut found = BTreeMap::<&str, BaselineView>::new();
    for (node, KeptBaseline { name, from_ms, to_ms, made_ms, bytes, .. }) in
        lists.iter().flat_map(|(node, list)| list.iter().map(move |one| (node, one)))
    {
        let fresh = || BaselineView {
            name: name.clone(),
            from_ms: *from_ms,
            to_ms: *to_ms,
            made_ms: *made_ms,
            nodes: Vec::new(),
            bytes: 0,
        };
        let view = found.entry(name).or_insert_with(fresh);
        if view.made_ms < *made_ms {
            *view = fresh();
        }
        if view.made_ms == *made_ms {
            view.nodes.push(node.clone());
            view.bytes += bytes;
        }
    }
    found.into_values().collect()
}

fn told(nodes: BTreeMap<String, String>) -> Vec<String> {
    nodes.into_iter().map(|(node, why)| format!("{node}: {why}")).collect()
}

fn of_answers(state: &State, answers: Answers, interval: Interval) -> Report {
    let (mut pages, mut missing) = (Vec::new(), answers.silent);
    for (node, reply) in answers.replies {
        match reply {
            CallReply::Load(page) if page.points.is_empty() => {
                missing.insert(node, "it has no record of this time, and makes one a minute".into());
            }
            // A baseline of the same name that was deleted while the node was away is another one.
            CallReply::Load(page) if (page.from_ms, page.to_ms) != (interval.from_ms, interval.to_ms) => {
                missing.insert(node, "it keeps another baseline of this name".into());
            }
            CallReply::Load(page) => pages.push(*page),
            other => drop(missing.insert(node, refusal(other).message)),
        }
    }
    let cluster = state.cluster.as_ref().map(|cluster| cluster.name.clone()).unwrap_or_default();
    Report { cluster, missing: told(missing), ..gather::of_pages(&pages, interval, interval.step_ms()) }
}

/// Adds what happened in the interval.
fn add_events(state: &State, report: &mut Report) {
    let inside = |at_ms| at_ms > report.from_ms && at_ms <= report.to_ms;
    let changes = changes(state, CHANGES_MAX).changes;
    let changes = changes.into_iter().filter(|change| inside(change.at_ms)).collect();
    let events = views::events_of(state, 0, usize::MAX).events.into_iter();
    let is_told = |severity| severity != Severity::Info;
    let events = events.filter(|event| is_told(event.severity) && inside(event.at_ms)).collect();
    (report.changes, report.events) = (changes, events);
}

/// Answers of the nodes that can have a history, by name.
#[derive(Default)]
pub struct Answers {
    pub replies: BTreeMap<String, CallReply>,
    /// Nodes without an answer, with the reason.
    pub silent: BTreeMap<String, String>,
}

/// Asks all living nodes but the witnesses, all at once.
pub fn ask_all(agent: &Arc<Agent>, member: &Arc<Member>, state: &State, question: &Call) -> Answers {
    let mut answers = Answers::default();
    let (sender, replies) = sync_channel(state.nodes.len());
    for node in state.nodes.values().filter(|node| !node.witness) {
        if node.status == NodeStatus::Dead {
            answers.silent.insert(node.name.clone(), "the node is dead".into());
            continue;
        }
        let (agent, member, sender) = (agent.clone(), member.clone(), sender.clone());
        let (id, name, question) = (node.id, node.name.clone(), question.clone());
        spawn("agent-ask", move || {
            drop(sender.send((name, agent.ask(&member, id, question, NODE_TIMEOUT))));
        });
    }
    drop(sender);
    // Each thread ends within its time.
    for (name, reply) in replies {
        match reply {
            Ok(reply) => drop(answers.replies.insert(name, reply)),
            Err(problem) => drop(answers.silent.insert(name, problem.message)),
        }
    }
    answers
}

/// The reason in an answer that is not the one that was asked for.
#[must_use]
pub fn refusal(reply: CallReply) -> Problem {
    match reply {
        CallReply::Error(problem) => problem,
        _ => Problem::new(Code::NodeUnreachable, "the node does not tell its history", OTHER_RELEASE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_baselines_with_one_name_the_newer_one_counts() {
        let kept = |name: &str, made_ms| KeptBaseline {
            name: name.into(),
            from_ms: made_ms - 5,
            to_ms: made_ms,
            made_ms,
            step_ms: 60_000,
            bytes: 10,
        };
        // n2 was away when friday was deleted, and has kept its part.
        let lists: BTreeMap<String, Vec<KeptBaseline>> = [
            ("n1".to_owned(), vec![kept("friday", 900), kept("monday", 100)]),
            ("n2".to_owned(), vec![kept("friday", 500), kept("monday", 100)]),
            ("n3".to_owned(), vec![kept("friday", 900)]),
        ]
        .into();
        let found = merged(&lists);
        let shown: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.from_ms, one.bytes)).collect();
        assert_eq!(shown, [("friday", 895, 20), ("monday", 95, 20)]);
        assert_eq!(
            (&found[0].nodes[..], &found[1].nodes[..]),
            (&["n1".into(), "n3".into()][..], &["n1".into(), "n2".into()][..])
        );
    }
}

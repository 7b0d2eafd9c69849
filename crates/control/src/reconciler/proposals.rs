//! Recent proposals of this node, and reports that it repeats until the cluster state says the
//! same.

use super::REPEAT_PROPOSAL_MS;
use crate::state::{Command, State, cut};
use mainstay_ha::Report;
use mainstay_types::{NodeId, ServicePhase, Time};
use std::collections::BTreeMap;

#[derive(Debug, Default)]
pub(super) struct Proposals {
    made: Vec<(Command, Time)>,
    /// Newest report per service and when it was last proposed.
    reports: BTreeMap<String, (Report, Option<Time>)>,
}

impl Proposals {
    /// Whether a command is to be proposed: the same was not, a moment ago.
    pub fn is_new(&mut self, now: Time, command: &Command) -> bool {
        self.made.retain(|(_, at)| now.ms_since(*at) < REPEAT_PROPOSAL_MS);
        if self.made.iter().any(|(known, _)| known == command) {
            return false;
        }
        self.made.push((command.clone(), now));
        true
    }

    pub fn report(&mut self, name: String, report: Report) {
        self.reports.insert(name, (report, None));
    }

    /// Whether the service's newest report has still to be told to a cluster that knows the
    /// service.
    pub fn is_unsaid(&self, state: &State, node: NodeId, name: &str) -> bool {
        state.services.contains_key(name)
            && self.reports.get(name).is_some_and(|(report, _)| !is_known(state, node, name, report))
    }

    pub fn forget_report(&mut self, name: &str) {
        self.reports.remove(name);
    }

    /// The reports that are to be proposed now.
    pub fn due_reports(&mut self, now: Time, state: &State, node: NodeId) -> Vec<Command> {
        let mut due = Vec::new();
        self.reports.retain(|name, (report, proposed)| {
            if !state.services.contains_key(name) {
                return false;
            }
            // It is kept even if it is known: an older report that is still on its way would
            // overwrite what is known now.
            if is_known(state, node, name, report) {
                return true;
            }
            if proposed.is_none_or(|at| now.ms_since(at) >= REPEAT_PROPOSAL_MS) {
                *proposed = Some(now);
                due.push(status(name.clone(), node, report.clone()));
            }
            true
        });
        due
    }

    /// When something is to be said again, if nothing changes.
    pub fn next_repeat(&mut self, now: Time, state: &State, node: NodeId) -> Option<Time> {
        self.made.retain(|(_, at)| now.ms_since(*at) < REPEAT_PROPOSAL_MS);
        let reports = self
            .reports
            .iter()
            .filter(|(name, (report, _))| !is_known(state, node, name, report))
            .map(|(_, (_, proposed))| proposed.unwrap_or(now));
        self.made.iter().map(|(_, at)| *at).chain(reports).min().map(|at| at.plus_ms(REPEAT_PROPOSAL_MS))
    }
}

fn status(name: String, node: NodeId, report: Report) -> Command {
    let Report { phase, epoch, round, detail, failures, passes, last_failure } = report;
    Command::ServiceStatus { name, node, phase, epoch, round, detail, failures, passes, last_failure }
}

/// Whether the control plane has the newest report of a service on this node.
fn is_known(state: &State, node: NodeId, name: &str, report: &Report) -> bool {
    state.services.get(name).and_then(|service| service.nodes.get(&node)).is_some_and(|on| {
        on.phase == report.phase
            && on.epoch == report.epoch
            && on.round == report.round
            && on.failures == report.failures
            // A step that is under way is news for its own node only; findings of probes are for
            // all.
            && (report.phase != ServicePhase::Running || on.detail == cut(report.detail.clone()))
    })
}

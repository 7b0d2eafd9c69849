//! Advice about certificates that are near their end, and about a rotation that waits.
//!
//! A node renews its certificate after two thirds of its life. So one with less than a quarter left
//! tells that something is wrong, and there is more than a week to mend it.

use super::{CERTIFICATE_LIFE_MS, HOUR_MS, Phase};
use crate::advice::{Advice, Observations};
use crate::state::State;
use mainstay_types::{NodeId, Severity};
use std::collections::BTreeSet;

/// A certificate with less life than this should have been renewed days ago.
const NEAR_END_MS: u64 = CERTIFICATE_LIFE_MS / 4;
/// A living node does its part in a rotation within this time.
const PART_WITHIN_MS: u64 = 60_000;

/// A span of time in words.
fn span(ms: u64) -> String {
    match ms / 60_000 {
        0 => "less than a minute".into(),
        minutes if minutes < 120 => format!("{minutes} min"),
        minutes if minutes < 2 * 24 * 60 => format!("{} h", minutes / 60),
        minutes => format!("{} days", minutes / (24 * 60)),
    }
}

impl State {
    /// Advice about certificates and the rotation of the authority.
    pub(crate) fn identity_advice(&self, seen: &Observations) -> Vec<Advice> {
        let mut list = self.advise_rotation(seen);
        list.extend(self.advise_left_out());
        list.extend(self.advise_certificates(seen));
        list
    }

    /// Nodes of which the record has a certificate, with its end.
    fn ends(&self) -> Vec<(NodeId, u64)> {
        let known = self.identities.members.iter();
        let ends = known.filter_map(|(node, known)| Some((*node, known.certificate?.until_ms)));
        ends.filter(|(node, _)| self.nodes.contains_key(node)).collect()
    }

    fn advise_certificates(&self, seen: &Observations) -> Vec<Advice> {
        let ends = self.ends();
        let ended = |until_ms: u64| until_ms <= seen.wall_ms;
        let asked = seen.own.map_or_else(|| "the asked node".to_owned(), |own| self.node_name(own));
        if ends.len() > 1 && ends.iter().all(|(_, until_ms)| ended(*until_ms)) {
            return vec![Advice {
                severity: Severity::Warning,
                subject: "cluster".into(),
                what: format!(
                    "by the clock of {asked} the certificates of all nodes have ended: this clock is wrong, or all nodes were off for long"
                ),
                remedy: format!(
                    "run `date` on {asked} and on another node; if the clocks are right, the nodes renew their certificates within a minute"
                ),
            }];
        }
        let near = ends.iter().filter(|(_, until_ms)| until_ms.saturating_sub(seen.wall_ms) < NEAR_END_MS);
        near.map(|(node, until_ms)| self.advise_certificate(*node, *until_ms, seen)).collect()
    }

    fn advise_certificate(&self, node: NodeId, until_ms: u64, seen: &Observations) -> Advice {
        let name = self.node_name(node);
        let end = match until_ms.checked_sub(seen.wall_ms) {
            None | Some(0) => format!("its certificate ended {} ago", span(seen.wall_ms - until_ms)),
            Some(left_ms) => format!("its certificate ends in {}", span(left_ms)),
        };
        let is_off = !self.alive(node) || seen.unreachable.contains(&node);
        let (severity, cause, remedy) = if is_off {
            let remedy =
                format!("bring {name} back; it renews its certificate by itself, also after the end");
            (Severity::Info, "the node is off or cut off".to_owned(), remedy)
        } else if let Some(why) = seen.renewals.get(&node) {
            let remedy = format!("mend that on {name}; its agent tries again every few seconds");
            (Severity::Warning, format!("the agent cannot renew it: {why}"), remedy)
        } else if !seen.has_leader {
            let remedy = "see first that a majority of the nodes is up and connected".to_owned();
            (Severity::Warning, "the record may be behind, because it has no leader now".to_owned(), remedy)
        } else {
            let remedy = format!(
                "run `date` on {name} and on another node; if the clocks agree, the log of the agent on {name} says why"
            );
            (
                Severity::Warning,
                "it should have been renewed after 20 days, and the cause is not known".to_owned(),
                remedy,
            )
        };
        Advice { severity, subject: format!("node {name}"), what: format!("{end}: {cause}"), remedy }
    }

    fn advise_rotation(&self, seen: &Observations) -> Vec<Advice> {
        let Some((rotation, authority)) = self.identities.rotates() else { return Vec::new() };
        let waits = self.rotation_waits_for();
        let part = match authority.phase {
            Phase::Announced => format!("it has not learnt of authority {}", rotation.to),
            _ => format!("it has no certificate of authority {}", rotation.to),
        };
        let began = "the cluster is replacing its authority";
        let age_ms = seen.wall_ms.saturating_sub(rotation.since_ms);
        let (off, living): (BTreeSet<NodeId>, BTreeSet<NodeId>) =
            waits.into_iter().partition(|node| !self.alive(*node));
        let mut list = Vec::new();
        for node in off {
            let name = self.node_name(node);
            list.push(Advice {
                severity: Severity::Warning,
                subject: "cluster".into(),
                what: format!(
                    "{began} and has waited for {name} for {}: {part}, and is dead; the earlier authority is believed until then",
                    span(age_ms)
                ),
                remedy: format!(
                    "bring {name} back; if it does not come back, run `mainstay node remove {name}`, or `mainstay cluster authority leave-out {name}` to go \
                     on without it: it then has to join anew"
                ),
            });
        }
        for node in living {
            let name = self.node_name(node);
            let why = seen.renewals.get(&node);
            let is_late = age_ms > PART_WITHIN_MS || why.is_some();
            let said = why.map_or_else(String::new, |why| format!(", and its agent says: {why}"));
            list.push(Advice {
                severity: if is_late { Severity::Warning } else { Severity::Info },
                subject: "cluster".into(),
                what: format!("{began} and waits for {name}, which is alive: {part}{said}"),
                remedy: if is_late {
                    format!("look at the log of the agent on {name}")
                } else {
                    String::new()
                },
            });
        }
        list
    }

    /// Nodes that a rotation has left out, and that are still in the record.
    fn advise_left_out(&self) -> Vec<Advice> {
        let left_out = self.identities.left_out.iter().filter(|node| self.nodes.contains_key(node));
        let advice = left_out.map(|node| {
            let name = self.node_name(*node);
            Advice {
                severity: Severity::Critical,
                subject: format!("node {name}"),
                what: "was left out when the authority was replaced: no node believes it any more".into(),
                remedy: format!(
                    "make a token with `mainstay cluster token create {name}`, move the state directory of the machine away, and join it with \
                     `mainstay cluster join --peer ADDRESS --as {name} --token TOKEN --replace`; or run `mainstay node remove {name}`"
                ),
            }
        });
        advice.collect()
    }
}

/// Ages in the advice are told in hours and days.
const _: () = assert!(NEAR_END_MS > 24 * HOUR_MS && NEAR_END_MS < CERTIFICATE_LIFE_MS / 3);

#[cfg(test)]
mod tests;

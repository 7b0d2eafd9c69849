//! Scrubs (R17), as the agent asks for them and hears of them.

use super::{AgentReply, OpenReplica};
use mainstay_api::engine::{Reply, ScrubStatus};
use mainstay_api::metrics::{DamageCounts, ScrubCounts};
use mainstay_host::Host;
use mainstay_replica::{Replica, ScrubOrder, ScrubReport};
use mainstay_types::{Code, Role, Time};

impl OpenReplica {
    /// Begins a scrub, if this is the primary and no scrub is under way. If one was begun after the
    /// scrub number `after`, this does nothing and succeeds.
    pub fn scrub(&mut self, now: Time, order: ScrubOrder, after: Option<u64>, answer: AgentReply) {
        let role = self.host.role();
        let last = self.host.replica().scrub_report().map_or(0, |report| report.ordinal);
        answer(if after.is_some_and(|after| last > after) || self.host.scrub(now, order) {
            Reply::Ok
        } else if role == Role::Primary {
            self.around.refuse(
                Code::ScrubRunning,
                "the replicas are being compared already",
                "`mainstay resource scrub NAME --report` says how far it is, and --stop ends it",
            )
        } else {
            self.around.refuse(
                Code::NotPrimary,
                "the resource is not primary on this node",
                "ask the primary's node",
            )
        });
    }

    pub fn stop_scrub(&mut self, now: Time) {
        self.host.stop_scrub(now);
    }

    /// Whether no entry of the log has ever changed the volume.
    #[must_use]
    pub fn is_blank(&self, volume: mainstay_types::VolumeId) -> bool {
        self.host.store().is_blank(volume)
    }

    #[must_use]
    pub fn scrub_status(&self, now: Time) -> Option<ScrubStatus> {
        self.host.replica().scrub_report().map(|report| status(report, now))
    }
}

/// Counts of scrubs, for the metrics.
pub(super) fn counts(replica: &Replica) -> ScrubCounts {
    let totals = replica.scrub_totals();
    let ended = replica.scrub_report().filter(|report| report.ended.is_some());
    ScrubCounts {
        extents: totals.extents,
        different: totals.different,
        repaired: totals.repaired,
        running: replica.scrubs(),
        unrepaired: ended.map(ScrubReport::unrepaired),
    }
}

/// Counts of blocks that do not fit their checksums, for the metrics.
pub(super) fn damage(host: &Host) -> DamageCounts {
    let counts = host.damage_counts();
    DamageCounts {
        found: counts.found,
        mended: host.replica().scrub_totals().mended,
        unreadable: counts.unreadable,
        copied: counts.copied,
    }
}

fn status(report: &ScrubReport, now: Time) -> ScrubStatus {
    ScrubStatus {
        state: report.state,
        repair: report.repair,
        rate: report.rate,
        took_ms: report.ended.unwrap_or(now).ms_since(report.began),
        extents: report.extents,
        done: report.done,
        compared: report.compared.iter().map(|(node, extents)| (*node, *extents)).collect(),
        uncompared: report.uncompared,
        different: report.different,
        repaired: report.repaired,
        overwritten: report.overwritten,
        findings: report.findings.clone(),
        from: report.from,
        to: report.to,
        left_ms: report.left_ms,
    }
}

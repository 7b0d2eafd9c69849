//! The stages of a failover, read off the cluster's events and the ledger's notes.

use mainstay_api::rest::EventView;
use serde::Serialize;

/// When each stage was reached, in milliseconds after the power cut. `None`: not seen.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Failover {
    /// A majority of the nodes had missed the lost node's heartbeats for long enough to declare it
    /// dead.
    pub detected: Option<f64>,
    /// The control plane had recorded that the lease was over and named another primary.
    pub lease_over: Option<f64>,
    /// The new primary served its volumes.
    pub promoted: Option<f64>,
    /// The file system was mounted there, its log recovered.
    pub mounted: Option<f64>,
    /// The database had recovered and accepted connections on its node.
    pub database_recovered: Option<f64>,
    /// The client had a connection through the floating address.
    pub vip_answering: Option<f64>,
    /// The client had the first new row acknowledged. This is the failover time.
    pub total: Option<f64>,
}

/// A stage that an event tells of.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    Detected,
    LeaseOver,
    Promoted,
    Mounted,
    DatabaseRecovered,
}

impl Stage {
    /// Reads the stage from an event's subject and words.
    #[must_use]
    pub fn of(event: &EventView, lost: &str, resource: &str, service: &str) -> Option<Self> {
        let says = |words: &str| event.text.contains(words);
        let about = |kind: &str, name: &str| event.subject.strip_prefix(kind) == Some(name);
        if about("node/", lost) && says("suspected") {
            Some(Self::Detected)
        } else if about("node/", lost) && says("lease has ended") {
            Some(Self::LeaseOver)
        } else if about("resource/", resource) && says("serves") {
            Some(Self::Promoted)
        } else if about("service/", service) && says("mounted") {
            Some(Self::Mounted)
        } else if about("service/", service) && says("ready") {
            Some(Self::DatabaseRecovered)
        } else {
            None
        }
    }
}

impl Failover {
    /// Notes a stage, once: the first event that tells of it counts.
    pub fn note(&mut self, stage: Stage, ms: f64) {
        let place = match stage {
            Stage::Detected => &mut self.detected,
            Stage::LeaseOver => &mut self.lease_over,
            Stage::Promoted => &mut self.promoted,
            Stage::Mounted => &mut self.mounted,
            Stage::DatabaseRecovered => &mut self.database_recovered,
        };
        place.get_or_insert(ms);
    }

    /// The stages with their names, in order.
    #[must_use]
    pub fn stages(&self) -> [(&'static str, Option<f64>); 7] {
        [
            ("detected", self.detected),
            ("lease over", self.lease_over),
            ("promoted", self.promoted),
            ("mounted", self.mounted),
            ("database recovered", self.database_recovered),
            ("VIP answering", self.vip_answering),
            ("first commit", self.total),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::Severity;

    fn event(subject: &str, text: &str) -> EventView {
        EventView { index: 1, at_ms: 0, severity: Severity::Info, subject: subject.into(), text: text.into() }
    }

    #[test]
    fn only_the_first_event_of_a_stage_counts() {
        let mut failover = Failover::default();
        let dead = event("node/n1", "does not answer; its lease has ended");
        assert_eq!(Stage::of(&dead, "n1", "db", "db"), Some(Stage::LeaseOver));
        assert_eq!(Stage::of(&dead, "n2", "db", "db"), None);
        failover.note(Stage::LeaseOver, 2000.0);
        failover.note(Stage::LeaseOver, 9000.0);
        assert_eq!(failover.stages()[1], ("lease over", Some(2000.0)));
    }
}

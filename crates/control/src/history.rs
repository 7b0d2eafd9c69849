//! The history of a service: the events that tell when it started, moved, failed and stopped, and
//! what operators asked for. It reaches back as far as the events do.

use crate::state::{EventRecord, State};

/// Part of the event by which a resource tells its new primary; see `promote.rs`.
pub(crate) const IS_PRIMARY: &str = " is primary in epoch ";

impl State {
    /// Events about a service, and those about the primaries of its resource, oldest first.
    pub fn history<'a>(&'a self, service: &'a str) -> impl DoubleEndedIterator<Item = &'a EventRecord> {
        let resource = self.services.get(service).map(|known| format!("resource {}", known.spec.resource));
        let own = format!("service {service}");
        self.events.iter().filter(move |event| {
            let moved = || Some(&event.subject) == resource.as_ref() && event.text.contains(IS_PRIMARY);
            event.subject == own || moved()
        })
    }

    /// Wall clock of the oldest event, if the cluster has forgotten earlier ones.
    #[must_use]
    pub fn events_since_ms(&self) -> Option<u64> {
        self.events.front().filter(|first| first.index > 1).map(|first| first.at_ms)
    }
}

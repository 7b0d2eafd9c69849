//! The history of a service: the events that tell when it started, moved, failed and stopped, and
//! what operators asked for. It reaches back as far as the events do.

use crate::facts::Fact;
use crate::state::{EventRecord, State};

impl State {
    /// Events about a service, and those about the primaries of its resource, oldest first.
    pub fn history<'a>(&'a self, service: &'a str) -> impl DoubleEndedIterator<Item = &'a EventRecord> {
        let resource = self.services.get(service).map(|known| format!("resource {}", known.spec.resource));
        let own = format!("service {service}");
        self.events.iter().filter(move |event| {
            let changed = matches!(event.fact, Some(Fact::PrimaryChanged { .. }));
            let moved = || changed && Some(&event.subject) == resource.as_ref();
            event.subject == own || moved()
        })
    }

    /// Wall clock of the oldest event, if the cluster has forgotten earlier ones.
    #[must_use]
    pub fn events_since_ms(&self) -> Option<u64> {
        self.events.front().filter(|first| first.index > 1).map(|first| first.at_ms)
    }
}

//! Clients, as the reconciler hears of them. A client is a resource of which this node has the
//! devices and no replica.

use super::{ReconcilerThread, link_devices};
use mainstay_api::engine::ClientStatus;
use mainstay_control::attachments::ClientSeen;
use mainstay_types::{ClientOver, Instance, ResourceId};

/// Last noted state of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    instance: Instance,
    ready: bool,
    over: Option<ClientOver>,
}

impl ReconcilerThread {
    /// Names the devices, and tells the operator when they are there, and when a session has ended
    /// that should not have.
    pub(super) fn client(&mut self, status: &ClientStatus) {
        link_devices(&self.parts.places.run_dir, &status.name, &status.devices);
        let now = Noted { instance: status.instance, ready: ready(status), over: status.over };
        let before = self.noted_clients.insert(status.resource, (status.name.clone(), now));
        let before = before.map(|(_, noted)| noted).filter(|noted| noted.instance == now.instance);
        let (subject, node) = (format!("resource {}", status.name), self.name());
        if now.ready && !before.is_some_and(|before| before.ready) {
            self.note(subject.clone(), format!("devices attached on {node}"));
        }
        if let Some(over @ (ClientOver::Lost | ClientOver::Waited)) = now.over
            && before.is_none_or(|before| before.over.is_none())
        {
            self.note(subject, format!("its devices on {node} fail and are made anew: {}", over.words()));
        }
    }

    pub(super) fn client_gone(&mut self, resource: ResourceId) {
        if let Some((name, _)) = self.noted_clients.remove(&resource) {
            link_devices(&self.parts.places.run_dir, &name, &[]);
        }
    }
}

fn ready(status: &ClientStatus) -> bool {
    !status.devices.is_empty() && status.devices.len() == status.volumes.len()
}

/// Returns the part of a client's status that the reconciler needs.
pub(super) fn seen(status: &ClientStatus) -> ClientSeen {
    ClientSeen {
        instance: status.instance,
        version: status.version,
        ready: ready(status),
        over: status.over.is_some(),
    }
}

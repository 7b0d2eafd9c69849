//! The devices of a primary: offered when it begins to serve, withdrawn when it stops, or when the
//! resource is attached elsewhere.

use super::{OpenReplica, ReplicaParts, ShardParts};
use crate::devices::DeviceOutcome;
use crate::frontend::nbd::Arrived;
use crate::frontend::{FrontendId, FrontendRequest};
use crate::resource_devices::ResourceDevices;
use crate::ring::Completion;
use mainstay_codec::nbd::Export;
use mainstay_types::Role;

/// Whether something of the devices is still there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Closing {
    Done,
    Waiting,
}

impl ReplicaParts {
    /// Offers the devices or takes them away, as role and record are now.
    pub(super) fn settle_devices(&mut self, shared: &mut ShardParts<'_>) {
        self.resource_devices.want(self.role == Role::Primary && !self.attached, Some(self.epoch));
        match self.role {
            Role::Primary if !self.attached => self.resource_devices.offer(shared),
            // It has none yet, or still those of the epoch before.
            Role::Promoting => {}
            _ => self.resource_devices.withdraw(shared),
        }
    }
}

impl OpenReplica {
    /// The lease had ended when the next one came: this node does not lead any more (R10).
    pub fn lease_ended(&mut self, shared: &mut ShardParts<'_>) {
        self.host.lease_ended(shared.now);
        self.pump(shared);
    }

    /// R19: the devices answer with errors, whatever the cores think; at once, if the guard has
    /// silenced this node.
    pub fn fence(&mut self, shared: &mut ShardParts<'_>) {
        self.around.resource_devices.withdraw(shared);
        if shared.fenced {
            self.around.resource_devices.silenced(shared);
        }
        self.report(shared);
    }

    /// The guard has sent SIGKILL to all services on the resource: what waits for that fails now.
    pub fn killed(&mut self, shared: &mut ShardParts<'_>) {
        self.around.resource_devices.killed(shared);
    }

    /// The lease is back. A replica that still leads, because it was renewed before it had ended,
    /// offers new devices.
    pub fn unfence(&mut self, shared: &mut ShardParts<'_>) {
        self.around.resource_devices.offer(shared);
        self.pump(shared);
    }

    /// A device job of this resource has ended.
    pub fn device_outcome(&mut self, shared: &mut ShardParts<'_>, outcome: DeviceOutcome) {
        if self.around.resource_devices.device_outcome(shared, outcome) {
            self.around.counts.attached(shared.now);
        }
        let flushes = self.around.resource_devices.flushes();
        self.told_of_flushes(shared.now, flushes);
    }

    /// A completion of one of this resource's frontends.
    pub fn frontend_completed(
        &mut self,
        shared: &mut ShardParts<'_>,
        id: FrontendId,
        completion: Completion,
        requests: &mut Vec<FrontendRequest>,
    ) {
        self.around.resource_devices.frontend_completed(shared, id, completion, requests);
    }

    /// Exports that clients of the NBD server may choose.
    #[must_use]
    pub fn exports(&self) -> Vec<Export> {
        self.around.resource_devices.exports()
    }

    /// Takes over a client of the NBD server that has chosen one of the exports.
    pub fn adopt(&mut self, shared: &mut ShardParts<'_>, arrived: Arrived) {
        self.around.resource_devices.adopt(shared, arrived);
    }

    /// Takes what the frontends have to say after answers; whether there were requests.
    pub(super) fn poll_frontend(&mut self, shared: &mut ShardParts<'_>) -> bool {
        let Some((id, mut requests)) = self.around.resource_devices.poll(shared) else { return false };
        let found = !requests.is_empty();
        for request in requests.drain(..) {
            self.request(shared, id, request);
        }
        self.around.resource_devices.polled(shared, requests);
        found
    }

    /// Name of the resource.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.around.name
    }

    /// The devices of this resource, as a successor would take them.
    #[must_use]
    pub fn resource_devices(&self) -> &ResourceDevices {
        &self.around.resource_devices
    }

    /// Requests of devices are read no more, or again.
    pub fn quiesce(&mut self, shared: &mut ShardParts<'_>, quiet: bool) {
        self.around.resource_devices.quiesce(shared.ring, quiet);
    }

    /// Gives up everything that the kernel knows of this replica, because it is to be dropped, and
    /// leaves its primary.
    pub fn close(&mut self, shared: &mut ShardParts<'_>) {
        self.host.close(shared.now);
        self.around.closing = true;
        self.around.resource_devices.close(shared);
    }

    #[must_use]
    pub fn closing(&self) -> Closing {
        if self.around.resource_devices.is_gone() && self.around.disk.in_flight() == 0 {
            Closing::Done
        } else {
            Closing::Waiting
        }
    }
}

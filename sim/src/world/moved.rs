//! Directories of replicas that an operator moves out of the pool and puts back (R9, R11). An
//! engine that has the files open goes on with them wherever they are. Only stories do this.

use super::{Machine, World};
use crate::trace::Part;
use crate::words;
use mainstay_control::labels::{Stands, directory_name};
use mainstay_types::{NodeId, ResourceId};
use std::collections::{BTreeMap, BTreeSet};

impl World {
    /// An operator moves the directory of a replica out of the pool.
    ///
    /// # Panics
    /// When there is none.
    pub fn move_directory(&mut self, node: NodeId, resource: ResourceId) {
        self.note(Some(node), Part::Fault, &[41, resource.0], || {
            format!("the directory of {} is moved out of the pool", words::resource(resource))
        });
        let machine = self.machine(node);
        assert!(machine.formatted.contains_key(&resource), "a replica");
        machine.moved.insert(resource);
        if machine.engine.is_none() {
            machine.set_aside(resource);
        }
    }

    /// An operator puts the directory back, unless something else is in its place.
    ///
    /// # Panics
    /// When it was not moved.
    pub fn put_directory_back(&mut self, node: NodeId, resource: ResourceId) {
        self.note(Some(node), Part::Fault, &[42, resource.0], || {
            format!("the directory of {} is put back", words::resource(resource))
        });
        let machine = self.machine(node);
        if machine.moved.remove(&resource) || machine.disks.contains_key(&resource) {
            return;
        }
        let (disk, incarnation) = machine.aside.remove(&resource).expect("it was moved");
        machine.disks.insert(resource, disk);
        machine.formatted.insert(resource, incarnation);
        match &mut machine.agent {
            Some(agent) => {
                agent.files_put_back(resource, incarnation);
                machine.put_back.insert(resource);
            }
            None => machine.durable.files_put_back(resource, incarnation),
        }
    }

    /// Whether the cluster counts on a replica that this node has made, and whose directory is
    /// gone, as far as the node knows.
    pub(super) fn is_missed(&self, node: NodeId, resource: ResourceId) -> bool {
        let machine = &self.machines[&node];
        let known = machine.agent.as_ref().and_then(|agent| agent.state().resources.get(&resource));
        let aside = machine.aside.get(&resource);
        let counts =
            |(_, made): &(_, _)| known.is_some_and(|known| known.counts_on(|of| of == *made).is_some());
        aside.is_some_and(counts)
    }
}

impl Machine {
    /// Notes the moved directories whose files no engine has open any more.
    pub(super) fn set_moved_aside(&mut self) {
        for resource in self.moved.clone() {
            self.set_aside(resource);
        }
    }

    pub(super) fn set_aside(&mut self, resource: ResourceId) {
        self.moved.remove(&resource);
        if let Some((disk, incarnation)) = self.disks.remove(&resource).zip(self.formatted.remove(&resource))
        {
            self.aside.insert(resource, (disk, incarnation));
        }
        match &mut self.agent {
            Some(agent) => agent.files_lost(resource),
            None => self.durable.files_lost(resource),
        }
    }
}

/// Returns the reasons that the agent finds for these replicas: their directories are gone from the
/// pool, and the engine has their files open.
pub(super) fn gone(moved: &BTreeSet<ResourceId>) -> BTreeMap<ResourceId, String> {
    let why = |resource: &ResourceId| Stands::Gone.failure("/pool", &directory_name(*resource, "r"));
    moved.iter().filter_map(|resource| Some((*resource, why(resource)?))).collect()
}

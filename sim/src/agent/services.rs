//! One service on this node, as `agent/src/service/instance.rs` has it: the steps under way, and
//! the saved state of its machine.

use super::{Durable, Out, ServiceSpec};
use mainstay_control::reconciler::Adopted;
use mainstay_ha::{Effect, Saved, Step};
use mainstay_types::ResourceId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// State of a service that the agent needs again after a restart.
#[derive(Clone, Debug)]
pub struct SavedService {
    resource: ResourceId,
    /// Revision of the specification, as the control plane counts it.
    revision: u64,
    edition: u64,
    spec: ServiceSpec,
    saved: Saved,
    /// Processes that were started and not stopped.
    running: BTreeSet<usize>,
}

impl SavedService {
    pub(super) fn rests(&self) -> bool {
        self.saved.rests()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Run(Step),
    Undo(Step),
    Kill,
}

#[derive(Debug)]
pub(super) struct Instance {
    resource: ResourceId,
    revision: u64,
    edition: u64,
    spec: ServiceSpec,
    saved: Option<Saved>,
    running: BTreeSet<usize>,
    /// Steps that are under way, by ticket.
    work: BTreeMap<u64, Work>,
}

/// All services that an earlier agent process of the same boot left.
pub(super) fn load_all(
    durable: &Durable,
    outs: &mut VecDeque<Out>,
) -> (BTreeMap<String, Instance>, BTreeMap<String, Adopted>) {
    let (mut found, mut adopted) = (BTreeMap::new(), BTreeMap::new());
    for (name, file) in &durable.services {
        for &process in &file.running {
            outs.push_back(Out::WatchProcess { name: name.clone(), process });
        }
        let SavedService { spec, revision, edition, resource, saved, .. } = file.clone();
        adopted.insert(name.clone(), Adopted { spec, revision, edition, resource, saved });
        let instance = Instance {
            running: file.running.clone(),
            ..Instance::new(file.spec.clone(), (file.revision, file.edition), file.resource)
        };
        found.insert(name.clone(), instance);
    }
    (found, adopted)
}

impl Instance {
    /// A service of which nothing runs here.
    pub(super) fn new(spec: ServiceSpec, (revision, edition): (u64, u64), resource: ResourceId) -> Self {
        Self {
            resource,
            revision,
            edition,
            spec,
            saved: None,
            running: BTreeSet::new(),
            work: BTreeMap::new(),
        }
    }

    /// The next state that is saved is about this specification.
    pub(super) fn amend(&mut self, spec: ServiceSpec, edition: u64) {
        (self.spec, self.edition) = (spec, edition);
    }

    pub(super) fn step_done(&mut self, ticket: u64, result: &Result<(), String>) {
        match (self.work.remove(&ticket), result) {
            (Some(Work::Run(Step::StartProcess { process })), Err(_))
            | (Some(Work::Undo(Step::StartProcess { process })), Ok(())) => {
                self.running.remove(&process);
            }
            (Some(Work::Kill), Ok(())) => self.running.clear(),
            _ => {}
        }
    }

    /// Carries out the wishes of the service machine.
    pub(super) fn carry_out(
        &mut self,
        name: &str,
        effect: Effect,
        durable: &mut Durable,
        outs: &mut VecDeque<Out>,
    ) {
        match effect {
            Effect::Persist(saved) => {
                let stays = saved.keeps_address();
                if stays != self.saved.as_ref().is_some_and(Saved::keeps_address) {
                    outs.push_back(Out::AddressStays { name: name.to_owned(), stays });
                }
                self.saved = Some(saved);
                self.save(name, durable);
                return;
            }
            // The reconciler's.
            Effect::Report(_) => return,
            Effect::Probe { .. } => {}
            Effect::Run { ticket, step, .. } => {
                self.work.insert(ticket, Work::Run(step));
                if let Step::StartProcess { process } = step {
                    // The saved state must name the process before the agent can end and forget it.
                    self.running.insert(process);
                    self.save(name, durable);
                }
            }
            Effect::Undo { ticket, step, .. } => {
                self.work.insert(ticket, Work::Undo(step));
            }
            Effect::Kill { ticket } => {
                self.work.insert(ticket, Work::Kill);
            }
        }
        outs.push_back(Out::Service { name: name.to_owned(), effect });
    }

    fn save(&self, name: &str, durable: &mut Durable) {
        let Some(saved) = &self.saved else { return };
        let file = SavedService {
            resource: self.resource,
            revision: self.revision,
            edition: self.edition,
            spec: self.spec.clone(),
            saved: saved.clone(),
            running: self.running.clone(),
        };
        durable.services.insert(name.to_owned(), file);
    }
}

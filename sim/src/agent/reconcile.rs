//! The reconciler of a simulated agent: `agent/src/node.rs` and the jobs of `agent/src/replicas.rs`.

use super::services::Runner;
use super::{
    Agent, Busy, EngineEvent, JOB_TIMEOUT_MS, Job, JobError, JobReply, LEASE_UNKNOWN_MS_MAX, Out,
    REPEAT_PROPOSAL_MS, REQUEST_TIMEOUT_MS, RETRY_JOB_MS, ReplicaReport, TICK_MS,
};
use mainstay_control::State;
use mainstay_control::reconcile::{self, Action, Observed, ReplicaObserved, ServiceObserved};
use mainstay_control::state::{Command, IssChange};
use mainstay_ha::{Event, Report, Wanted};
use mainstay_replica::{Proposal, StepDownReason};
use mainstay_types::{Incarnation, NodeId, ResourceId, Time};
use std::collections::BTreeSet;

impl Agent {
    pub(super) fn engine_connected(&mut self, now: Time, lease_until: Time, silenced: Time) {
        self.connected = true;
        // The connection tells the engine first what this process has counted; before that there is only the engine's word.
        let counted = self.lease.lease_until();
        if counted != Time(0) {
            self.outs.push_back(Out::Lease(counted));
        }
        if !self.lease_known {
            // A lease does not end because the agent was restarted.
            self.lease_until = lease_until;
            self.lease_known = true;
        }
        // A new engine process knows nothing; an old one is told again.
        self.guard.forget();
        self.guard.lease_taken(lease_until);
        self.silenced(now, silenced);
        self.retry_at.clear();
    }

    /// The engine's guard silenced this node then: what began before is killed (R19).
    pub(super) fn silenced(&mut self, now: Time, at: Time) {
        for runner in self.runners.values_mut() {
            runner.handle(now, Event::Silenced { at });
        }
    }

    pub(super) fn engine_disconnected(&mut self, now: Time) {
        self.connected = false;
        self.replicas.clear();
        self.failed.clear();
        self.unusable.clear();
        self.relief.clear();
        self.guard.forget();
        // Nobody waits for replies of a connection that is gone.
        for resource in std::mem::take(&mut self.busy).into_keys() {
            self.retry_at.insert(resource, now.plus_ms(RETRY_JOB_MS));
        }
    }

    pub(super) fn engine_event(&mut self, now: Time, event: EngineEvent) {
        match event {
            EngineEvent::Replica(report) => {
                let (resource, proposal) = (report.resource, report.proposal);
                self.replicas.insert(resource, report);
                if let Some(proposal) = proposal {
                    self.engine_proposal(now, resource, proposal);
                }
            }
            EngineEvent::Proposal { resource, proposal } => self.engine_proposal(now, resource, proposal),
            EngineEvent::Failed { resource, reason } => {
                self.failed.insert(resource, reason);
            }
            EngineEvent::LeaseLost { silenced } => self.silenced(now, silenced),
            EngineEvent::Lease { .. } => {}
        }
    }

    fn engine_proposal(&mut self, now: Time, resource: ResourceId, proposal: Proposal) {
        let (version, epoch, change) = match proposal {
            Proposal::Shrink { version, epoch, remove } => (version, epoch, IssChange::Shrink { remove }),
            Proposal::Grow { version, epoch, add } => (version, epoch, IssChange::Grow { add }),
            Proposal::StepDown { version, reason, .. } => {
                let current = self.state.resources.get(&resource).map(|known| known.record.version);
                if current == Some(version) {
                    self.relief.insert(resource, (version, step_down_words(reason)));
                }
                return;
            }
        };
        self.propose(now, Command::ChangeIss { resource, version, epoch, change });
    }

    pub(super) fn job_done(
        &mut self,
        now: Time,
        resource: ResourceId,
        job: &'static str,
        result: Result<JobReply, JobError>,
    ) {
        // The answer to a job whose patience was over is nobody's any more.
        let Some(busy) = self.busy.get(&resource).filter(|busy| busy.job == job) else { return };
        let unusable = match &result {
            Ok(JobReply::Opened { incarnation })
                if self.durable.stored.get(&resource).is_some_and(|label| label != incarnation) =>
            {
                Some(format!("its disk holds incarnation {incarnation}"))
            }
            Err(JobError::Unusable(reason)) if job == "open" => Some(reason.clone()),
            _ => None,
        };
        let done = match result {
            Ok(JobReply::Created { incarnation }) => {
                if busy.incarnation != Some(incarnation) {
                    return;
                }
                self.durable.stored.insert(resource, incarnation);
                true
            }
            // Another disk than the label says is not opened.
            Ok(JobReply::Opened { incarnation }) => {
                self.durable.stored.get(&resource).is_none_or(|label| *label == incarnation)
            }
            Ok(JobReply::Done) => {
                if job == "drop" {
                    self.durable.stored.remove(&resource);
                    self.replicas.remove(&resource);
                    self.failed.remove(&resource);
                    self.relief.remove(&resource);
                }
                true
            }
            Err(_) => false,
        };
        if let Some(reason) = unusable {
            self.unusable.insert(resource, reason);
        } else if done && matches!(job, "create" | "open" | "drop") {
            self.unusable.remove(&resource);
        }
        self.busy.remove(&resource);
        if !done {
            self.retry_at.insert(resource, now.plus_ms(RETRY_JOB_MS));
        }
    }

    fn propose(&mut self, now: Time, command: Command) {
        self.proposed.retain(|(_, at)| now.ms_since(*at) < REPEAT_PROPOSAL_MS);
        if self.proposed.iter().any(|(known, _)| *known == command) {
            return;
        }
        self.outs.push_back(Out::Submit(command.clone()));
        self.proposed.push((command, now));
    }

    pub(super) fn reconcile(&mut self, now: Time) {
        self.lease_seen = self.lease_valid(now);
        if self.state.cluster.is_none() {
            self.reconcile_at = now.plus_ms(TICK_MS);
            return;
        }
        // Whoever is dead in its own state need not wait to hear that it has no lease.
        let lease_unknown = !self.lease_known && self.state.alive(self.node);
        if lease_unknown && now.ms_since(self.started) < LEASE_UNKNOWN_MS_MAX {
            self.reconcile_at = self.started.plus_ms(LEASE_UNKNOWN_MS_MAX);
            return;
        }
        self.sweep();
        for runner in self.runners.values_mut() {
            if runner.machine().next_deadline().is_some_and(|deadline| deadline <= now) {
                runner.handle(now, Event::Tick);
            }
        }
        self.give_up_jobs(now);
        let observed = self.observe();
        let mut starts = Vec::new();
        for action in reconcile::plan(self.node, &self.state, &observed) {
            self.act(now, action, &mut starts);
        }
        let may_run = self.start_services(now, starts) && self.guard.may_run(now);
        for (name, runner) in &mut self.runners {
            if let Some(report) = runner.carry_out(name, may_run, &mut self.durable, &mut self.outs) {
                self.reports.insert(name.clone(), (report, None));
            }
        }
        let report_again = self.report(now);
        self.proposed.retain(|(_, at)| now.ms_since(*at) < REPEAT_PROPOSAL_MS);
        let proposals = self.proposed.iter().map(|(_, at)| at.plus_ms(REPEAT_PROPOSAL_MS));
        let deadlines = self.runners.values().filter_map(|runner| runner.machine().next_deadline());
        let retries = self.retry_at.values().copied().filter(|at| *at > now);
        let jobs = self.busy.values().map(|busy| busy.deadline);
        self.reconcile_at = proposals
            .chain(deadlines)
            .chain(retries)
            .chain(jobs)
            .chain(self.guard.next_deadline())
            .chain(report_again)
            .fold(now.plus_ms(TICK_MS), Time::min);
    }

    /// Once, at the start: an instance that an earlier agent process left and nobody remembers counts as running
    /// until this was done (R19).
    fn sweep(&mut self) {
        if std::mem::replace(&mut self.swept, true) {
            return;
        }
        for name in self.state.services.keys().filter(|name| !self.runners.contains_key(*name)) {
            self.outs.push_back(Out::DropServiceRemains(name.clone()));
        }
    }

    fn give_up_jobs(&mut self, now: Time) {
        let late = self.busy.iter().filter(|(_, busy)| busy.deadline <= now);
        for resource in late.map(|(resource, _)| *resource).collect::<Vec<_>>() {
            self.busy.remove(&resource);
            self.retry_at.insert(resource, now.plus_ms(RETRY_JOB_MS));
        }
    }

    fn observe(&self) -> Observed {
        let replicas = self.replicas.iter().map(|(id, report)| (*id, self.observe_replica(report)));
        let services = self.runners.iter().map(|(name, runner)| {
            let machine = runner.machine();
            let seen = ServiceObserved {
                phase: machine.phase(),
                epoch: machine.epoch(),
                round: machine.round(),
                spent_epoch: machine.spent_epoch(),
                revision: runner.revision(),
            };
            (name.clone(), seen)
        });
        Observed {
            lease_valid: self.lease_seen,
            engine: self.connected,
            stored: self.durable.stored.clone(),
            unusable: self.unusable.clone(),
            replicas: replicas.collect(),
            services: services.collect(),
        }
    }

    pub(super) fn observe_replica(&self, report: &ReplicaReport) -> ReplicaObserved {
        let relief = self
            .relief
            .get(&report.resource)
            .filter(|(asked, _)| reconcile::asks_for_relief(*asked, report.version, report.role));
        let failed = self
            .failed
            .get(&report.resource)
            .cloned()
            .or_else(|| relief.map(|(_, why)| (*why).to_owned()))
            .or_else(|| report.failed.then(|| "its store failed and is no longer used".to_owned()));
        ReplicaObserved {
            role: report.role,
            epoch: report.epoch,
            version: report.version,
            incarnation: report.incarnation,
            devices_ready: report.devices_ready,
            failed,
            store_failed: report.failed,
        }
    }

    fn act(&mut self, now: Time, action: Action, starts: &mut Vec<(String, Event)>) {
        match action {
            Action::CreateReplica { resource } => {
                if let Some(known) = self.state.resources.get(&resource) {
                    let incarnation = Incarnation(self.chance.next().max(1));
                    let (volumes, journal_bytes) = (known.spec.volumes.clone(), known.spec.journal_bytes);
                    self.job(now, resource, Job::Create { volumes, journal_bytes, incarnation });
                }
            }
            Action::OpenReplica { resource } => self.job(now, resource, Job::Open),
            Action::DropReplica { resource } => self.job(now, resource, Job::Drop),
            Action::GiveRecord(record) => self.job(now, record.resource, Job::Record(record)),
            Action::Demote { resource } => self.job(now, resource, Job::Demote),
            Action::StartService { name, epoch, round } => {
                starts.push((name, Event::Start { epoch, round }));
            }
            Action::StopService { name, .. } => {
                if let Some(runner) = self.runners.get_mut(&name) {
                    runner.handle(now, Event::Stop);
                }
            }
            Action::KillService { name } => {
                if let Some(runner) = self.runners.get_mut(&name) {
                    runner.handle(now, Event::LeaseLost);
                }
            }
            Action::ForgetService { name } => {
                let unknown = |(report, _): &(Report, _)| !is_known(&self.state, self.node, &name, report);
                let known =
                    !self.reports.get(&name).is_some_and(unknown) || !self.state.services.contains_key(&name);
                if known && self.runners.remove(&name).is_some() {
                    self.durable.services.remove(&name);
                    self.reports.remove(&name);
                }
            }
            Action::Propose(command) => self.propose(now, command),
        }
    }

    /// Starts services of which the engine has confirmed that it silences them; asks it about the others (R19). Says
    /// whether it has confirmed all that run.
    fn start_services(&mut self, now: Time, starts: Vec<(String, Event)>) -> bool {
        let mut starting = BTreeSet::new();
        for (name, _) in &starts {
            let service = self.state.services.get(name);
            let Some((service, resource)) =
                service.and_then(|service| Some((service, self.state.resource_of(service)?)))
            else {
                continue;
            };
            let (spec, revision, id) = (&service.spec, service.revision, resource.id);
            self.runners.entry(name.clone()).or_insert_with(|| Runner::new(spec, revision, id));
            starting.insert(name.clone());
        }
        if !self.is_guarded(now, &starting) || !self.lease_valid(now) {
            return false;
        }
        for (name, event) in starts {
            if let Some(runner) = self.runners.get_mut(&name) {
                runner.handle(now, event);
            }
        }
        true
    }

    /// Whether the engine has confirmed that it silences exactly what runs here and what is `starting`. If not, it is asked.
    fn is_guarded(&mut self, now: Time, starting: &BTreeSet<String>) -> bool {
        if !self.connected {
            return false;
        }
        let silent = |runner: &Runner| runner.machine().phase().is_silent();
        let services: Vec<String> = self
            .runners
            .iter()
            .filter(|(name, runner)| starting.contains(*name) || !silent(runner))
            .map(|(name, _)| name.clone())
            .collect();
        match self.guard.want(now, services) {
            Wanted::Confirmed => true,
            Wanted::Wait => false,
            Wanted::Ask { number, list } => {
                self.outs.push_back(Out::Guard { number, services: list });
                false
            }
        }
    }

    fn job(&mut self, now: Time, resource: ResourceId, job: Job) {
        let waits = self.retry_at.get(&resource).is_some_and(|at| *at > now);
        if waits || self.busy.contains_key(&resource) {
            return;
        }
        self.retry_at.remove(&resource);
        if !self.connected {
            // Asked of nobody, it fails at once.
            self.retry_at.insert(resource, now.plus_ms(RETRY_JOB_MS));
            return;
        }
        let (incarnation, timeout_ms) = match &job {
            Job::Create { incarnation, .. } => (Some(*incarnation), JOB_TIMEOUT_MS),
            Job::Open => (None, JOB_TIMEOUT_MS),
            _ => (None, REQUEST_TIMEOUT_MS),
        };
        let busy = Busy { job: job.name(), incarnation, deadline: now.plus_ms(timeout_ms) };
        self.busy.insert(resource, busy);
        self.outs.push_back(Out::Job { resource, job });
    }

    /// Proposes what services have reached until the state says the same; says when to look again.
    fn report(&mut self, now: Time) -> Option<Time> {
        let (node, state) = (self.node, &self.state);
        let mut again = None;
        let outs = &mut self.outs;
        self.reports.retain(|name, (report, proposed)| {
            if !state.services.contains_key(name) {
                return false;
            }
            // It is kept even if it is known: an older report that is still on its way would overwrite what is known now.
            if is_known(state, node, name, report) {
                return true;
            }
            if proposed.is_none_or(|at| now.ms_since(at) >= REPEAT_PROPOSAL_MS) {
                *proposed = Some(now);
                let Report { phase, epoch, round, detail, failures } = report.clone();
                let name = name.clone();
                outs.push_back(Out::Submit(Command::ServiceStatus {
                    name,
                    node,
                    phase,
                    epoch,
                    round,
                    detail,
                    failures,
                }));
            }
            let at = proposed.unwrap_or(now).plus_ms(REPEAT_PROPOSAL_MS);
            again = Some(again.map_or(at, |other: Time| other.min(at)));
            true
        });
        again
    }
}

/// As the engine says it.
fn step_down_words(reason: StepDownReason) -> &'static str {
    match reason {
        StepDownReason::StoreFailed => "store-failed",
        StepDownReason::Restarted => "restarted",
        StepDownReason::NotEligible => "not-eligible",
    }
}

/// Whether the control plane has the newest report of a service on this node.
fn is_known(state: &State, node: NodeId, name: &str, report: &Report) -> bool {
    state.services.get(name).and_then(|service| service.nodes.get(&node)).is_some_and(|on| {
        on.phase == report.phase
            && on.epoch == report.epoch
            && on.round == report.round
            && on.failures == report.failures
    })
}

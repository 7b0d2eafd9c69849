//! Jobs of replicas, carried out step by step. The agent asks the engine for a step. It gets no
//! answer when the connection breaks or the step takes too long, as in `agent/src/engine_link.rs`.

use super::{Agent, Out, Step, StepAnswer, StepError};
use mainstay_control::actions::Unusable;
use mainstay_control::reconciler::job::{Job, Order, Trouble};
use mainstay_control::reconciler::{Event, Failure};
use mainstay_types::{Code, Incarnation, ResourceId, Time};

/// How long the engine may take to make or open a replica, and to do anything else.
const JOB_TIMEOUT_MS: u64 = 120_000;
const REQUEST_TIMEOUT_MS: u64 = 15_000;

/// A job that waits for the answer to a step.
#[derive(Debug)]
pub(super) struct UnderWay {
    job: Job<StepError>,
    step: Step,
    number: u64,
    /// Time by which the engine must have answered; `None` for a step that the agent does itself.
    deadline: Option<Time>,
}

fn failure(reason: String, stays: bool) -> Failure {
    Failure { why: Unusable { reason, code: Code::default() }, stays }
}

impl UnderWay {
    pub fn deadline(&self) -> Option<Time> {
        self.deadline
    }
}

/// Time limit for the engine. `None` for a step that the agent does itself.
fn timeout_ms(step: &Step) -> Option<u64> {
    match step {
        Step::MakeFiles(..) | Step::Open => Some(JOB_TIMEOUT_MS),
        Step::Close
        | Step::Tell(_)
        | Step::Attach(_)
        | Step::Detach
        | Step::Demote
        | Step::Grow(_)
        | Step::Scrub(_)
        | Step::Snapshots(_) => Some(REQUEST_TIMEOUT_MS),
        Step::RemoveFiles | Step::WriteLabel(_) | Step::RemoveLabel | Step::Look => None,
    }
}

impl Agent {
    pub(super) fn start_job(&mut self, now: Time, resource: ResourceId, order: Order) {
        let chance = &mut self.chance;
        let job = Job::new(order, || Incarnation(chance.next().max(1)));
        self.go_on(now, resource, job);
    }

    fn go_on(&mut self, now: Time, resource: ResourceId, mut job: Job<StepError>) {
        while let Some(step) = job.step() {
            let timeout_ms = timeout_ms(&step);
            if timeout_ms.is_some() && !self.connected {
                job = job.answered(Err(no_engine()));
                continue;
            }
            self.last_step = self.last_step.wrapping_add(1);
            let (number, deadline) = (self.last_step, timeout_ms.map(|ms| now.plus_ms(ms)));
            self.outs.push_back(Out::Step { resource, number, step: step.clone() });
            self.jobs.insert(resource, UnderWay { job, step, number, deadline });
            return;
        }
        let Ok(end) = job.end() else { return };
        let result = end.map_err(|trouble| match trouble {
            Trouble::Step(StepError::NotDone(reason)) => failure(reason, false),
            Trouble::Step(StepError::Unusable(reason)) => failure(reason, true),
            Trouble::OtherDisk { found, label } => {
                failure(format!("its disk holds {found}, its label says {label}"), true)
            }
        });
        self.tell(now, Event::JobEnded { resource, result });
    }

    /// Takes the answer to a step. Returns `true` if a job has ended. An answer that no job waits
    /// for any more is ignored.
    pub(super) fn step_answered(
        &mut self,
        now: Time,
        resource: ResourceId,
        number: u64,
        result: Result<StepAnswer, StepError>,
    ) -> bool {
        if self.jobs.get(&resource).is_none_or(|under_way| under_way.number != number) {
            return false;
        }
        let Some(UnderWay { job, step, .. }) = self.jobs.remove(&resource) else { return false };
        match step {
            Step::WriteLabel(incarnation) if result.is_ok() => {
                self.durable.stored.insert(resource, incarnation);
            }
            Step::RemoveLabel if result.is_ok() => self.durable.files_lost(resource),
            // The engine's last report on the replica is no longer true.
            Step::Close if result.is_ok() => {
                self.replicas.remove(&resource);
                self.set_replaced(resource, false);
            }
            _ => {}
        }
        self.go_on(now, resource, job.answered(result));
        !self.jobs.contains_key(&resource)
    }

    /// Fails the steps that wait for the engine, because its connection is gone and no reply can
    /// come.
    pub(super) fn fail_requests(&mut self, now: Time) {
        self.fail_steps(now, |under_way| under_way.deadline.is_some());
    }

    /// `true` if there was one to give up.
    pub(super) fn give_up_steps(&mut self, now: Time) -> bool {
        self.fail_steps(now, |under_way| under_way.deadline.is_some_and(|deadline| deadline <= now))
    }

    fn fail_steps(&mut self, now: Time, which: impl Fn(&UnderWay) -> bool) -> bool {
        let found = self.jobs.iter().filter(|(_, under_way)| which(under_way)).map(|(resource, _)| *resource);
        let found: Vec<_> = found.collect();
        for resource in &found {
            if let Some(UnderWay { job, .. }) = self.jobs.remove(resource) {
                self.go_on(now, *resource, job.answered(Err(no_engine())));
            }
        }
        !found.is_empty()
    }
}

fn no_engine() -> StepError {
    StepError::NotDone("the engine is not there or does not answer".into())
}

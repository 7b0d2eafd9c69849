//! The jobs of one replica: the steps for its files, its label and the engine, their order, and
//! their result.
//!
//! Guarantees
//! - A replica counts as stored only after its files are complete and its label is durable. Files
//!   that a crash left without a label were never announced to the cluster, and are made anew.
//! - A replica is removed in this order: the engine closes it, it loses its label, then its files
//!   go. A crash in between leaves either the whole replica, which is removed again, or files that
//!   are no replica any more.
//! - A replica is used only if its files are those that its label names (R9). If the engine still
//!   has other files open, which were moved away meanwhile, it closes them first.
//! - If another label was put in the place of the expected one, the replica is opened under that
//!   label.
//! - If the files are gone, the label is forgotten too, so that the replica is made anew: an
//!   operator has removed them to have it copied again. The caller answers [`StepAnswer::Gone`]
//!   only if it could look: files in a pool that is not there are not gone.
//!
//! The caller carries out [`Job::step`] and reports the result, until there is no step. There is
//! one job per replica at a time.

use crate::origin::SnapshotOf;
use crate::scrubs::ScrubTask;
use crate::snapshots::Keep;
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Incarnation, ResourceRecord, VolumeId, reach};

/// A task for one replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Make the files of a new incarnation, of a snapshot of another resource if one is named.
    Make {
        of: Option<SnapshotOf>,
    },
    /// Open what is stored under this label.
    Open {
        label: Incarnation,
    },
    /// Close what the engine has open, and open what is stored under this label.
    Reopen {
        label: Incarnation,
    },
    /// Close what the engine has open, whose files are not in their place any more, and open what
    /// is there under this label.
    Replace {
        label: Incarnation,
    },
    /// Close it and remove its files.
    Drop,
    Tell(ResourceRecord),
    /// Open a client, if there is none, and tell it the record.
    Attach(ResourceRecord),
    /// Close it.
    Detach,
    /// Make the engine's replica a secondary.
    Demote,
    /// Make volumes of the engine's primary as large as this, in bytes.
    Grow(Vec<(VolumeId, u64)>),
    /// Have the engine's primary take and drop snapshots until its log has these, and roll back.
    Snapshots(Keep),
    /// Have the engine's primary compare all replicas.
    Scrub(ScrubTask),
}

impl Order {
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Make { .. } => "create",
            Self::Open { .. } => "open",
            Self::Reopen { .. } => "reopen",
            Self::Replace { .. } => "replace",
            Self::Drop => "drop",
            Self::Tell(_) => "record",
            Self::Attach(_) => "attach",
            Self::Detach => "detach",
            Self::Demote => "demote",
            Self::Grow(_) => "grow",
            Self::Snapshots(_) => "snapshots",
            Self::Scrub(_) => "scrub",
        }
    }
}

/// One thing to do. It may be done again after a crash.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Remove what is there of files that have no label, or have one no more. Nothing there is
    /// success.
    RemoveFiles,
    /// Have the engine make the files of an incarnation, of a snapshot of another resource if one
    /// is named. Where a replica has been put meanwhile, none is made: [`StepAnswer::Holds`].
    MakeFiles(Incarnation, Option<SnapshotOf>),
    /// Make the label durable.
    WriteLabel(Incarnation),
    /// Let the files be no replica any more, durably. None there is success.
    RemoveLabel,
    /// See whether the files are gone, [`StepAnswer::Gone`], or have another label now,
    /// [`StepAnswer::Holds`].
    Look,
    /// Have the engine recover and open the files: [`StepAnswer::Opened`].
    Open,
    /// Have the engine close the replica. One that is not open is success.
    Close,
    Tell(ResourceRecord),
    Attach(ResourceRecord),
    /// A client that is not open is success.
    Detach,
    Demote,
    Grow(Vec<(VolumeId, u64)>),
    Snapshots(Keep),
    Scrub(ScrubTask),
}

/// Result of a step that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepAnswer {
    Done,
    /// The files were removed by another program or an operator.
    Gone,
    /// The directory has files with this label, which were put there since.
    Holds(Incarnation),
    /// The incarnation that the opened files name.
    Opened(Incarnation),
}

/// Result of a job that succeeded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    Made(Incarnation),
    Opened,
    /// There was nothing to open any more.
    Gone,
    /// There is a replica with another label than was expected.
    Found(Incarnation),
    Dropped,
    Told,
}

/// Why a job failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble<E> {
    /// The error of a step.
    Step(E),
    /// The files are not what the label says.
    OtherDisk { found: Incarnation, label: Incarnation },
}

/// A job under way. `E` is the error of a step, in the words of the caller that carries it out.
#[derive(Debug)]
pub struct Job<E> {
    at: At<E>,
}

#[derive(Debug)]
enum At<E> {
    Clearing(Incarnation, Option<SnapshotOf>),
    Making(Incarnation, Option<SnapshotOf>),
    Labelling(Incarnation, Option<SnapshotOf>),
    /// The remains of a failed attempt are removed.
    Unmaking(E),
    /// The files that the engine has open are not in their place.
    Leaving {
        label: Incarnation,
    },
    Looking {
        label: Incarnation,
    },
    Opening {
        label: Incarnation,
    },
    /// The engine has other files open, of before, or does not use them any more.
    ClosingOther {
        label: Incarnation,
    },
    Reopening {
        label: Incarnation,
    },
    Closing,
    Unlabelling,
    Removing,
    Telling(ResourceRecord),
    Attaching(ResourceRecord),
    Detaching,
    Demoting,
    Growing(Vec<(VolumeId, u64)>),
    Keeping(Keep),
    Scrubbing(ScrubTask),
    Ended(Result<Ended, Trouble<E>>),
}

impl<E> Job<E> {
    /// If the job makes a replica, `fresh` is asked for an incarnation that was never used (R9).
    pub fn new(order: Order, fresh: impl FnOnce() -> Incarnation) -> Self {
        let at = match order {
            Order::Make { of } => At::Clearing(fresh(), of),
            Order::Open { label } => At::Looking { label },
            Order::Reopen { label } => At::ClosingOther { label },
            Order::Replace { label } => At::Leaving { label },
            Order::Drop => At::Closing,
            Order::Tell(record) => At::Telling(record),
            Order::Attach(record) => At::Attaching(record),
            Order::Detach => At::Detaching,
            Order::Demote => At::Demoting,
            Order::Grow(volumes) => At::Growing(volumes),
            Order::Snapshots(wanted) => At::Keeping(wanted),
            Order::Scrub(task) => At::Scrubbing(task),
        };
        Self { at }
    }

    /// Returns the next step; `None` when the job has ended.
    #[must_use]
    pub fn step(&self) -> Option<Step> {
        Some(match &self.at {
            At::Clearing(..) | At::Unmaking(_) | At::Removing => Step::RemoveFiles,
            At::Making(incarnation, of) => Step::MakeFiles(*incarnation, *of),
            At::Labelling(incarnation, _) => Step::WriteLabel(*incarnation),
            At::Looking { .. } => Step::Look,
            At::Opening { .. } | At::Reopening { .. } => Step::Open,
            At::Closing | At::ClosingOther { .. } | At::Leaving { .. } => Step::Close,
            At::Unlabelling => Step::RemoveLabel,
            At::Telling(record) => Step::Tell(record.clone()),
            At::Attaching(record) => Step::Attach(record.clone()),
            At::Detaching => Step::Detach,
            At::Demoting => Step::Demote,
            At::Growing(volumes) => Step::Grow(volumes.clone()),
            At::Keeping(wanted) => Step::Snapshots(wanted.clone()),
            At::Scrubbing(task) => Step::Scrub(*task),
            At::Ended(_) => return None,
        })
    }

    /// Goes on with what came of the step.
    #[must_use]
    pub fn answered(self, result: Result<StepAnswer, E>) -> Self {
        let at = match (self.at, result) {
            (At::Ended(end), _) => At::Ended(end),
            (At::Unmaking(error), _) => At::Ended(Err(Trouble::Step(error))),
            (At::Clearing(..) | At::Making(..) | At::Labelling(..), Err(error)) => {
                reach!("control: what is left of a replica that could not be made is removed");
                At::Unmaking(error)
            }
            (_, Err(error)) => At::Ended(Err(Trouble::Step(error))),
            (At::Clearing(incarnation, of), Ok(_)) if planted(Bug::LabelledTooEarly) => {
                At::Labelling(incarnation, of)
            }
            (At::Labelling(incarnation, of), Ok(_)) if planted(Bug::LabelledTooEarly) => {
                At::Making(incarnation, of)
            }
            (At::Clearing(incarnation, of), Ok(_)) => At::Making(incarnation, of),
            (At::Making(..) | At::Looking { .. }, Ok(StepAnswer::Holds(found))) => {
                At::Ended(Ok(Ended::Found(found)))
            }
            (At::Making(incarnation, of), Ok(_)) if !planted(Bug::LabelledTooEarly) => {
                At::Labelling(incarnation, of)
            }
            (At::Making(incarnation, _) | At::Labelling(incarnation, _), Ok(_)) => {
                At::Ended(Ok(Ended::Made(incarnation)))
            }
            (At::Looking { .. }, Ok(StepAnswer::Gone)) => {
                reach!("control: the files of a replica were removed");
                At::Ended(Ok(Ended::Gone))
            }
            (At::Leaving { label }, Ok(_)) => At::Looking { label },
            (At::Looking { label }, Ok(_)) => At::Opening { label },
            (At::Opening { label }, Ok(StepAnswer::Opened(found)))
                if found != label && !planted(Bug::LabelNotCompared) =>
            {
                At::ClosingOther { label }
            }
            (At::ClosingOther { label }, Ok(_)) => At::Reopening { label },
            (At::Reopening { label }, Ok(StepAnswer::Opened(found))) if found != label => {
                reach!("control: the files of a replica are not what its label says");
                At::Ended(Err(Trouble::OtherDisk { found, label }))
            }
            (At::Opening { .. } | At::Reopening { .. }, Ok(_)) => At::Ended(Ok(Ended::Opened)),
            (At::Closing, Ok(_)) if planted(Bug::LabelKept) => At::Removing,
            (At::Closing, Ok(_)) => At::Unlabelling,
            (At::Unlabelling, Ok(_)) => At::Removing,
            (At::Removing, Ok(_)) => At::Ended(Ok(Ended::Dropped)),
            (
                At::Telling(_)
                | At::Attaching(_)
                | At::Detaching
                | At::Demoting
                | At::Growing(_)
                | At::Keeping(_)
                | At::Scrubbing(_),
                Ok(_),
            ) => At::Ended(Ok(Ended::Told)),
        };
        Self { at }
    }

    /// Returns the result of the job.
    ///
    /// # Errors
    /// The job itself if it has not ended: it still has a [`Job::step`].
    pub fn end(self) -> Result<Result<Ended, Trouble<E>>, Box<Self>> {
        match self.at {
            At::Ended(end) => Ok(end),
            at => Err(Box::new(Self { at })),
        }
    }
}

//! Kept state (R16, docs/adr/0021-kept-states.md): the last whole content of a replica, kept while
//! the replica is the target of a copy. A target that is half copied is of no use, and the replicas
//! that it is copied from may never come back.
//!
//! ```text
//!  restart of a whole replica ─▶ Taking ─▶ Taken ─▶ (superblock: inconsistent, kept) ─▶ Held ─▶ (superblock: consistent) ─▶ Dropping
//!                                                                                        │                                     ▲
//!                                                                   no space, or unwanted └─▶ GivenUp ─▶ (superblock: not kept) ┘
//! ```
//!
//! - It is the content of all volumes at `base`, the index up to which they were whole. It lies in
//!   the files of the snapshot [`SnapshotId::BEFORE_COPY`]. The log does not know this snapshot.
//! - It is taken when all applied entries are durably in the volumes and nothing is being written
//!   to them. The restart waits for that. A superblock names it only while it is there: from when
//!   its files are durable until just before they are removed. Files that a crash leaves are not on
//!   [`Store::snapshots_on_disk`].
//! - A copy may begin anew before the one before has ended. The kept state then stays as it is,
//!   because the volumes have not been whole since.
//! - If it cannot be taken, the copy goes on without it. If the copy finds no space, the kept state
//!   is given up: it never holds up a copy. An operator may also give it up, to free space of the
//!   pool for others ([`Store::give_up_kept`]).
//! - A replica that has never held an entry has nothing worth keeping. Nothing is kept either while
//!   the volumes have something of large writes that are cut (`fill.rs`).

use crate::{IoFailure, Op, Output, Store};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Index, SnapshotId, SnapshotOn, SnapshotState, reach};

/// See the top of this file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kept {
    #[default]
    No,
    /// The state is being taken, for the restart that comes next.
    Taking,
    /// The taking has ended; `true` if there is a kept state.
    Taken(bool),
    Held,
    /// The superblock still says that it is there.
    GivenUp,
    /// Its files are being removed.
    Dropping,
}

impl Store {
    /// Returns the last whole content of this replica, if it is kept: a snapshot that is not one of
    /// the log's.
    #[must_use]
    pub fn kept(&self) -> Option<(SnapshotId, SnapshotOn)> {
        let copy = self.unfinished.filter(|_| self.kept == Kept::Held)?;
        Some((SnapshotId::BEFORE_COPY, SnapshotOn { at: copy.base, state: SnapshotState::Held }))
    }

    /// Whether a restart, for which everything else is ready, need not wait for the kept state.
    /// Begins to take that state if it is due.
    pub(crate) fn kept_before_restart(&mut self) -> bool {
        match self.kept {
            Kept::Taken(_) => return true,
            Kept::Taking => return planted(Bug::KeptTooLate),
            // Of the same name.
            Kept::Dropping => {
                reach!("store: a restart waits until what was kept before is removed");
                return false;
            }
            Kept::No | Kept::Held | Kept::GivenUp => {}
        }
        let whole = self.unfinished.is_none() || planted(Bug::KeptHalf);
        if !whole || self.applied == Index(0) {
            return true;
        }
        if self.fills.any_cut() {
            reach!("store: what a replica holds is not kept because of what is to be undone");
            return true;
        }
        reach!("store: what a replica holds is to be kept while it is copied to");
        self.kept = Kept::Taking;
        let op = self.start(Op::SnapshotTake(SnapshotId::BEFORE_COPY));
        let volumes = self.config.volumes.clone();
        self.outputs.push_back(Output::SnapshotTake { op, snapshot: SnapshotId::BEFORE_COPY, volumes });
        planted(Bug::KeptTooLate)
    }

    pub(crate) fn kept_taken(&mut self, result: &Result<(), IoFailure>) {
        if planted(Bug::KeptTooLate) && self.kept == Kept::Held {
            return;
        }
        if result.is_ok() {
            reach!("store: what a replica holds is kept");
        } else {
            reach!("store: what a replica holds cannot be kept");
        }
        self.kept = Kept::Taken(result.is_ok());
    }

    /// Whether the superblock of a restart is to say that something is kept.
    pub(crate) fn kept_at_restart(&self) -> bool {
        let too_late = planted(Bug::KeptTooLate) && self.kept == Kept::Taking;
        matches!(self.kept, Kept::Taken(true) | Kept::Held) || too_late
    }

    /// The superblock of a restart is durable.
    pub(crate) fn kept_restarted(&mut self) {
        match self.kept {
            Kept::Taken(_) | Kept::Taking => {
                self.kept = if self.kept_at_restart() { Kept::Held } else { Kept::No };
            }
            Kept::Held => {
                reach!("store: what is kept stays when a copy begins anew");
            }
            Kept::No | Kept::GivenUp | Kept::Dropping => {}
        }
        if self.kept == Kept::Held {
            self.outputs.push_back(Output::SnapshotsChanged);
        }
    }

    /// Gives up the kept state, because the pool has no space or an operator does not want it any
    /// more.
    pub fn give_up_kept(&mut self) {
        if self.kept == Kept::Held && !self.failed {
            reach!("store: what is kept is given up");
            self.kept = Kept::GivenUp;
            self.outputs.push_back(Output::SnapshotsChanged);
        }
    }

    /// Notes that the files of the kept state are gone, whatever the superblock says.
    pub(crate) fn kept_lost(&mut self) {
        if self.kept == Kept::Held {
            reach!("store: what was kept is lost");
            self.kept = Kept::GivenUp;
            self.outputs.push_back(Output::SnapshotsChanged);
        }
    }

    /// The replica is whole, and the superblock says so.
    pub(crate) fn kept_is_needless(&mut self) {
        if !planted(Bug::KeptForEver) {
            self.drop_kept();
        }
    }

    /// No superblock says any more that it is there.
    pub(crate) fn drop_kept(&mut self) {
        if matches!(self.kept, Kept::Held | Kept::GivenUp) {
            reach!("store: what was kept is removed");
            self.kept = Kept::Dropping;
            let (op, snapshot) =
                (self.start(Op::SnapshotDrop(SnapshotId::BEFORE_COPY)), SnapshotId::BEFORE_COPY);
            self.outputs.push_back(Output::SnapshotDrop { op, snapshot });
            self.outputs.push_back(Output::SnapshotsChanged);
        }
    }

    pub(crate) fn kept_dropped(&mut self) {
        self.kept = Kept::No;
    }
}

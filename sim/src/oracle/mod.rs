//! Oracles: checks of what must hold in every run, under the ids of `faults.md`. The world tells
//! the oracles what happens; the first violation ends the run.
//!
//! `register.rs` judges what clients see, `whole.rs` whether writes are whole, `log.rs` what
//! replicas hold, `slow.rs` which members leave and return, `answers.rs` what operators are told.
//! [`INVARIANTS`] lists every id and where it is looked after.

pub mod answers;
pub mod attachments;
pub mod ha;
pub mod lease;
pub mod log;
pub mod register;
pub mod slow;
mod watch;
pub mod whole;

pub use attachments::AttachmentsOracle;
pub use ha::HaOracle;
pub use lease::LeaseOracle;
pub use log::LogOracle;
pub use register::Registers;
pub use slow::SlowOracle;
pub use whole::WholeWrites;

use mainstay_types::{Index, NodeId, ResourceId, SlowLimits};
use std::collections::{BTreeMap, VecDeque};

/// Something that must hold does not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub id: &'static str,
    pub text: String,
}

/// The safety oracles of one run.
#[derive(Debug, Default)]
pub struct Oracle {
    pub registers: Registers,
    pub logs: BTreeMap<ResourceId, LogOracle>,
    pub ha: HaOracle,
    pub leases: LeaseOracle,
    pub slow: BTreeMap<ResourceId, SlowOracle>,
    pub sessions: BTreeMap<ResourceId, AttachmentsOracle>,
    /// Replicas that have just been copied, and not yet looked at.
    pub copied: Vec<(ResourceId, NodeId)>,
    /// Writes that clients were told of and that are not committed, with their places in the log
    /// (mode B).
    soft: BTreeMap<ResourceId, VecDeque<(Index, u64)>>,
    /// The entry at which a resource was last rolled back, by an operator or by a forced promotion.
    rolled_back: BTreeMap<ResourceId, Index>,
    violation: Option<Violation>,
    /// True time.
    now_us: u64,
}

impl Oracle {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A resource with volumes of these many blocks.
    pub fn add_resource(&mut self, resource: ResourceId, volumes: &[u64], slow: SlowLimits) {
        self.logs.insert(resource, LogOracle::new(resource, volumes));
        self.slow.insert(resource, SlowOracle::new(slow));
        self.sessions.insert(resource, AttachmentsOracle::default());
    }
}

/// Every invariant that is named in `faults.md`: its id, what it says, and where it is checked or
/// why it is not.
pub const INVARIANTS: &[(&str, &str)] = &[
    (
        "S1",
        "an acknowledged write is never lost. Checked: Registers::read_done and final_check; LogOracle::acknowledged",
    ),
    (
        "S2",
        "each block is a linearizable register; of a request of several blocks each one. Checked: Registers::read_done",
    ),
    (
        "S3",
        "what was replaced does not come back, however unknown its outcome was. Checked: Registers::read_done",
    ),
    (
        "S4",
        "what a crash leaves is a prefix of the log. Checked: LogOracle::recovered, appended, cut_done, check_replica",
    ),
    (
        "S5",
        "what completed before a flush is durable after it. In modes A and C every acknowledgement is a flush, so it is S1 and S8. In mode B: LogOracle::flushed, acknowledged_up_to, check_soft_of",
    ),
    ("S6", "committed entries agree everywhere and never change. Checked: LogOracle::committed, recovered"),
    (
        "S7",
        "one node makes the entries of an epoch, each once, and the record named it. Checked: LogOracle::sequenced, record",
    ),
    (
        "S8",
        "each recorded in-sync member holds all that was acknowledged. Checked: LogOracle::acknowledged, record, cut",
    ),
    ("S9", "nothing is acknowledged in an older epoch than before. Checked: LogOracle::acknowledged"),
    (
        "S10",
        "reads are fresh. Checked: LeaseOracle, and by its effect: a read that outlived its lease and missed a write is S2",
    ),
    (
        "S11",
        "a copied replica is as it claims to be. Checked: LogOracle::restart, check_replica after copy_finished, S8 while it copies",
    ),
    ("S12", "the version of an extent is never too old. Checked: LogOracle::check_versions"),
    (
        "S13",
        "all replicas hold the same at the same position. Checked: LogOracle::check_replica, each against the model",
    ),
    (
        "S14",
        "snapshots are equal and do not change. Checked: LogOracle::check_replica of each that is held, at its entry",
    ),
    (
        "S15",
        "nothing is trimmed before it is checkpointed. Checked by its effect: LogOracle::recovered, then check_replica; no archive exists yet",
    ),
    (
        "S16",
        "damage is never returned as data. Checked: Registers::read_done, LogOracle::check_replica: a value that no client wrote there",
    ),
    (
        "S17",
        "mode A loses nothing but by a forced promotion, then what was stated and no more, and followers for which writes wait lag within limits. Checked: LogOracle::stated, followed, acknowledged; Registers::roll_back",
    ),
    (
        "S18",
        "a repeated request changes nothing more, and one writes at a time. Checked: SessionsOracle, for every batch; as S2 and S3: a repetition is the same request to Registers",
    ),
    (
        "S19",
        "versions, epochs, promises and what is durable never go back. Checked: LogOracle::record, promised, recovered",
    ),
    (
        "R2",
        "nothing is acknowledged with fewer copies than are wanted. Checked: World::check_copies, together with S8",
    ),
    (
        "R18",
        "what clients write leaves the journal's reserve alone. Checked: LogOracle::reserve_used. Nothing answers itself for ever. Checked: World::step",
    ),
    (
        "R26",
        "a write of several blocks is whole or absent. Checked: WholeWrites::check, for each replica, each snapshot and each read beside which nothing was written",
    ),
    (
        "P11, P12",
        "a slow member leaves only while enough copies remain, and returns after a quiet period. Checked: SlowOracle",
    ),
    (
        "L4",
        "a scrub finds what disks have damaged, nothing else, and repairs it. Checked: Oracle::differ, World::rot_and_scrub",
    ),
    (
        "H7",
        "an operator's command takes effect once, or says why not and what to do. Checked: answers::judge, for every answer; what was asked for is so at the end: World::unfinished",
    ),
    (
        "H15",
        "a service begins only where its constraints hold. Checked: World::judge_start, at the first step of every start",
    ),
    (
        "H16",
        "nothing is moved or begun by Mainstay in maintenance. Checked: answers::stay_in_place, at every entry; World::judge_start",
    ),
    (
        "H17",
        "a service goes on in a later epoch only on the devices on which it began. Checked: World::judge_goes_on, at every report of a service",
    ),
    (
        "H19",
        "a removed node is named by no record, and its lease ends with what was acknowledged before. Checked: answers::nothing_names_the_removed; World::judge_removed_lease",
    ),
    ("H20", "a removal leaves the living voters a majority. Checked: answers::a_majority_lives"),
    ("S20", "decoders never panic and are exact. Not checked here: tests of mainstay-codec"),
];

//! Two machines with one identity, as a copied disk makes them.
//!
//! Guarantees
//! - While a process is heard as a node, no message of another process as the same node is taken.
//! - A process that follows another one on the same machine is taken at once: the connections of
//!   the earlier process have ended. After a power cut they have not. Then the new process is taken
//!   after a time of silence of the earlier one, in which several heartbeats have room
//!   ([`silence_of`]).
//! - A living process that is not at the recorded address of the node does not count against a
//!   process that is.
//! - A twin is told only when it lasts: a node whose power was cut and that returns at once is none
//!   ([`Notices`]). Two processes at one address are twins only if the earlier one speaks again
//!   after the later one: a process that has ended does not.

use crate::messages::LaneKind;
use crate::threads::lock;
use mainstay_control::members::{Genuine, genuine, same_host};
use mainstay_types::NodeId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Least time of silence, in milliseconds, after which a process does not count as living.
const SILENCE_MS_MIN: u64 = 1500;
/// Heartbeats that have to stay away before a process does not count as living.
const HEARTBEATS_MISSED: u64 = 3;
/// Time beyond the silence for which a twin has to be noticed before it is told.
const LASTING: Duration = Duration::from_millis(500);
/// Time without a notice after which the next one begins anew.
const EPISODE: Duration = Duration::from_secs(30);
/// Earlier processes of a node that are remembered.
const EARLIER_MAX: usize = 8;
/// How often it is told that a node has a twin.
const TWIN_PAUSE: Duration = Duration::from_secs(60);

/// Time of silence after which a process does not count as living, with heartbeats that come every
/// `heartbeat_ms`.
#[must_use]
pub fn silence_of(heartbeat_ms: u64) -> Duration {
    Duration::from_millis(SILENCE_MS_MIN.max(heartbeat_ms.saturating_mul(HEARTBEATS_MISSED)))
}

/// Notices that a second process speaks as a node.
#[derive(Default)]
pub struct Notices(BTreeMap<NodeId, Notice>);

struct Notice {
    first: Instant,
    last: Instant,
    told: Option<Instant>,
}

impl Notices {
    /// Takes a notice of processes at two addresses, and says whether the operator is to be told. A
    /// process whose power was cut is heard for `silence` after its end, so a notice counts only if
    /// others came longer than that before it.
    pub fn note(&mut self, node: NodeId, two: (&str, &str), now: Instant, silence: Duration) -> bool {
        !same_host(two.0, two.1) && self.note_in_place(node, now, silence)
    }

    /// Notes two processes at one address of which the earlier one speaks again.
    pub fn note_in_place(&mut self, node: NodeId, now: Instant, silence: Duration) -> bool {
        let fresh = Notice { first: now, last: now, told: None };
        let notice = self.0.entry(node).or_insert(fresh);
        if now.saturating_duration_since(notice.last) > EPISODE {
            notice.first = now;
        }
        notice.last = now;
        let lasts = now.saturating_duration_since(notice.first) > silence + LASTING;
        let said = notice.told.is_some_and(|told| now.saturating_duration_since(told) < TWIN_PAUSE);
        if lasts && !said {
            notice.told = Some(now);
        }
        lasts && !said
    }
}

/// The process that speaks as a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Holder {
    run: u64,
    from: String,
    /// Lanes that it has open.
    lanes: usize,
    /// Number of the change of holders by which it came to speak. Lanes from before another one
    /// spoke do not count.
    tenure: u64,
    heard: Instant,
    /// Processes that spoke before it, the last of them at the end.
    earlier: VecDeque<u64>,
}

impl Holder {
    pub(super) fn new(run: u64, from: &str) -> Self {
        Self {
            run,
            from: from.to_owned(),
            lanes: 0,
            tenure: 0,
            heard: Instant::now(),
            earlier: VecDeque::new(),
        }
    }

    fn lives(&self, now: Instant, silence: Duration) -> bool {
        self.lanes > 0 && now.saturating_duration_since(self.heard) < silence
    }
}

pub(super) struct Holders {
    known: Mutex<BTreeMap<NodeId, Holder>>,
    /// How often nodes send heartbeats, in milliseconds; 0 before that is known.
    heartbeat_ms: AtomicU64,
}

impl Default for Holders {
    fn default() -> Self {
        Self { known: Mutex::default(), heartbeat_ms: AtomicU64::new(0) }
    }
}

/// An open lane; dropped when the connection ends.
pub(super) struct Open<'a> {
    holders: &'a Holders,
    /// `None` for questions, which any process may ask.
    lane: Option<(NodeId, u64, u64)>,
}

impl Holders {
    /// Nodes send heartbeats this often.
    pub(super) fn set_heartbeat(&self, heartbeat_ms: u64) {
        self.heartbeat_ms.store(heartbeat_ms, Ordering::Relaxed);
    }

    /// Time without a word after which a process does not count as living.
    pub(super) fn silence(&self) -> Duration {
        silence_of(self.heartbeat_ms.load(Ordering::Relaxed))
    }

    /// A connection of `node` begins, which is `recorded` at this address.
    ///
    /// # Errors
    /// The address of another process that is heard as this node.
    pub(super) fn open(
        &self,
        node: NodeId,
        speaker: Holder,
        lane: LaneKind,
        recorded: Option<&str>,
    ) -> Result<Open<'_>, String> {
        if speaker.run == 0 || lane == LaneKind::Call {
            return Ok(Open { holders: self, lane: None });
        }
        let mut holders = lock(&self.known);
        let holder = holders.entry(node).or_insert_with(|| speaker.clone());
        if holder.run != speaker.run {
            let stays = genuine(recorded, &holder.from, &speaker.from) == Genuine::Heard;
            if stays && holder.lives(speaker.heard, self.silence()) {
                return Err(holder.from.clone());
            }
            let mut earlier = std::mem::take(&mut holder.earlier);
            earlier.retain(|run| ![holder.run, speaker.run].contains(run));
            earlier.push_back(holder.run);
            if earlier.len() > EARLIER_MAX {
                earlier.pop_front();
            }
            *holder = Holder { tenure: holder.tenure + 1, earlier, ..speaker.clone() };
        }
        holder.lanes += 1;
        holder.heard = speaker.heard;
        Ok(Open { holders: self, lane: Some((node, holder.run, holder.tenure)) })
    }

    /// Whether a process at `address` speaks as `node` although another one at the same address has
    /// followed it. Then both live.
    pub(super) fn is_back(&self, node: NodeId, run: u64, address: &str) -> bool {
        let back = |holder: &Holder| holder.earlier.contains(&run) && same_host(&holder.from, address);
        lock(&self.known).get(&node).is_some_and(back)
    }

    pub(super) fn heard(&self, node: NodeId, run: u64) {
        if let Some(holder) = lock(&self.known).get_mut(&node).filter(|holder| holder.run == run) {
            holder.heard = Instant::now();
        }
    }

    /// Whether this process may speak as `node`: no other one has taken its place since it began.
    pub(super) fn speaks(&self, node: NodeId, run: u64) -> bool {
        run == 0 || lock(&self.known).get(&node).is_none_or(|holder| holder.run == run)
    }

    /// Where another process than this one, at `address`, is heard as `node`, unless this one is to
    /// be preferred. `None` for a speaker that does not say which process it is (`run` 0).
    pub(super) fn other(
        &self,
        node: NodeId,
        run: u64,
        address: &str,
        recorded: Option<&str>,
    ) -> Option<String> {
        let holders = lock(&self.known);
        let holder = holders.get(&node)?;
        let is_other = run != 0
            && holder.run != run
            && holder.lives(Instant::now(), self.silence())
            && genuine(recorded, &holder.from, address) == Genuine::Heard;
        is_other.then(|| holder.from.clone())
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let Some((node, run, tenure)) = self.lane else { return };
        let mut holders = lock(&self.holders.known);
        let holder = holders.get_mut(&node).filter(|holder| (holder.run, holder.tenure) == (run, tenure));
        if let Some(holder) = holder {
            holder.lanes = holder.lanes.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(2);
    const TWO: (&str, &str) = ("10.0.0.2", "10.0.0.9");

    fn at(run: u64, host: u8) -> Holder {
        Holder::new(run, &format!("10.0.0.{host}"))
    }

    #[test]
    fn a_copy_of_a_node_is_refused_while_the_node_lives_and_its_next_process_is_not() {
        let holders = Holders::default();
        let lease = holders.open(NODE, at(1, 2), LaneKind::Lease, None).ok().unwrap();
        let log = holders.open(NODE, at(1, 2), LaneKind::Log, None).ok().unwrap();
        let first = "10.0.0.2".to_owned();
        assert_eq!(holders.open(NODE, at(7, 9), LaneKind::Lease, None).err(), Some(first.clone()));
        assert_eq!(
            (holders.other(NODE, 7, "", None), holders.other(NODE, 1, "", None)),
            (Some(first.clone()), None)
        );
        drop(lease);
        assert_eq!(holders.open(NODE, at(7, 9), LaneKind::Lease, None).err(), Some(first.clone()));
        // The process has ended, and all of its connections with it.
        drop(log);
        let next = holders.open(NODE, at(3, 2), LaneKind::Lease, None).ok().unwrap();
        assert_eq!(holders.other(NODE, 7, "", None), Some(first.clone()));
        drop(next);
        assert_eq!(holders.other(NODE, 7, "", None), None);
    }

    #[test]
    fn a_process_whose_power_was_cut_gives_way_after_a_while() {
        let holders = Holders::default();
        let _left = holders.open(NODE, at(1, 2), LaneKind::Lease, None).ok().unwrap();
        let later = Holder { heard: Instant::now() + silence_of(0), ..at(3, 2) };
        assert!(holders.open(NODE, later, LaneKind::Lease, None).is_ok());
        // The last messages of the first connection concern the first process only.
        assert_eq!(holders.other(NODE, 3, "", None), None);
    }

    /// A repeated `cluster join` asks so, and is the node itself.
    #[test]
    fn a_question_that_names_no_process_finds_no_twin() {
        let holders = Holders::default();
        let _lane = holders.open(NODE, at(1, 2), LaneKind::Lease, None).ok().unwrap();
        assert_eq!(holders.other(NODE, 0, "", None), None);
    }

    #[test]
    fn a_node_with_rare_heartbeats_lives_between_two_of_them() {
        let holders = Holders::default();
        holders.set_heartbeat(1000);
        let _lane = holders.open(NODE, at(1, 2), LaneKind::Lease, None).ok().unwrap();
        let between = Holder { heard: Instant::now() + Duration::from_millis(2500), ..at(7, 9) };
        assert!(holders.open(NODE, between, LaneKind::Lease, None).is_err());
        let silent = Holder { heard: Instant::now() + Duration::from_millis(3000), ..at(7, 9) };
        assert!(holders.open(NODE, silent, LaneKind::Lease, None).is_ok());
    }

    /// The node is silent, its copy speaks and ends, and the node returns. Its old connections end
    /// only now.
    #[test]
    fn connections_of_an_earlier_time_do_not_close_those_of_now() {
        let holders = Holders::default();
        let before = [LaneKind::Lease, LaneKind::Log]
            .map(|lane| holders.open(NODE, at(1, 2), lane, None).ok().unwrap());
        let copy = Holder { heard: Instant::now() + silence_of(0), ..at(7, 9) };
        drop(holders.open(NODE, copy, LaneKind::Lease, None).ok().unwrap());
        let _now = holders.open(NODE, at(1, 2), LaneKind::Lease, None).ok().unwrap();
        drop(before);
        assert_eq!(holders.other(NODE, 7, "", None), Some("10.0.0.2".to_owned()), "the node lives");
    }

    #[test]
    fn a_twin_is_reported_only_when_it_outlasts_the_remains_of_a_power_cut() {
        let (start, silence) = (Instant::now(), silence_of(0));
        let after = |ms: u64| start + Duration::from_millis(ms);
        let mut notices = Notices::default();
        assert!(!notices.note(NODE, TWO, start, silence), "its power was cut, and it is back at once");
        assert!(!notices.note(NODE, TWO, after(1900), silence));
        assert!(!notices.note(NODE, TWO, after(90_000), silence), "its power was cut again, much later");
        assert!(!notices.note(NODE, TWO, after(91_000), silence));
        assert!(notices.note(NODE, TWO, after(92_100), silence), "it is still there");
        assert!(!notices.note(NODE, TWO, after(93_000), silence), "told once a minute");
        assert!(!notices.note(NODE, TWO, after(120_000), silence));
        assert!(!notices.note(NODE, TWO, after(145_000), silence));
        assert!(notices.note(NODE, TWO, after(152_200), silence));
    }

    /// Power is cut and comes back at once, again and again.
    #[test]
    fn a_node_that_returns_to_its_address_is_no_twin_however_long_it_is_noticed() {
        let mut notices = Notices::default();
        let start = Instant::now();
        for second in 0..60 {
            let two = ("10.0.0.2", if second % 2 == 0 { "10.0.0.2" } else { "10.0.0.2:7400" });
            assert!(!notices.note(NODE, two, start + Duration::from_secs(second), silence_of(0)), "{second}");
        }
    }

    /// S353: the network leads now to one of two machines with one address, and now to the other.
    #[test]
    fn two_machines_at_one_address_are_twins_when_the_earlier_one_speaks_again() {
        let (holders, address) = (Holders::default(), "10.0.0.2");
        let speak = |run: u64| {
            let back = holders.is_back(NODE, run, address);
            drop(holders.open(NODE, at(run, 2), LaneKind::Lease, None).ok().unwrap());
            back
        };
        assert_eq!([1, 2, 3].map(speak), [false; 3], "a node that was started anew, twice");
        assert!(!holders.is_back(NODE, 3, address), "the one that speaks now");
        assert_eq!([2, 3, 2].map(speak), [true; 3]);
        assert!(!holders.is_back(NODE, 3, "10.0.0.9"), "told as a copy elsewhere");
        for run in 10..10 + EARLIER_MAX as u64 * 2 {
            assert!(!speak(run));
        }
        assert!(lock(&holders.known)[&NODE].earlier.len() <= EARLIER_MAX);
        let (mut notices, start, silence) = (Notices::default(), Instant::now(), silence_of(0));
        assert!(!notices.note_in_place(NODE, start, silence), "a greeting that came late");
        assert!(notices.note_in_place(NODE, start + silence + LASTING * 2, silence));
    }

    /// The copy of the node's disk was started while the node was off.
    #[test]
    fn a_node_that_returns_to_the_address_of_its_record_takes_its_place_from_a_living_copy() {
        let (holders, recorded) = (Holders::default(), Some("10.0.0.2:7400"));
        let _copy = holders.open(NODE, at(7, 9), LaneKind::Lease, recorded).ok().unwrap();
        assert!(holders.open(NODE, at(8, 8), LaneKind::Lease, recorded).is_err(), "another copy");
        assert_eq!(holders.other(NODE, 8, "10.0.0.8", recorded), Some("10.0.0.9".to_owned()));
        assert_eq!(holders.other(NODE, 1, "10.0.0.2", recorded), None, "the node may start");
        assert!(holders.speaks(NODE, 7));
        let _node = holders.open(NODE, at(1, 2), LaneKind::Lease, recorded).ok().unwrap();
        assert!(
            holders.speaks(NODE, 1) && !holders.speaks(NODE, 7),
            "no further message of the copy is taken"
        );
        let refused = holders.open(NODE, at(7, 9), LaneKind::Log, recorded);
        assert_eq!(refused.err(), Some("10.0.0.2".to_owned()));
    }

    #[test]
    fn a_peer_without_a_process_number_is_taken_as_before() {
        let holders = Holders::default();
        let _one = holders.open(NODE, at(0, 2), LaneKind::Lease, None).ok().unwrap();
        assert!(holders.open(NODE, at(5, 9), LaneKind::Lease, None).is_ok());
        assert!(holders.open(NODE, at(0, 2), LaneKind::Log, None).is_ok());
    }
}

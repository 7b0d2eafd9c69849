//! Oracle of what clients may see. Each block is a register, and every read and write of it must
//! fit into one order that respects real time (S1, S2, S3, S5, S9, S10, S18; the wrong data of
//! S16).
//!
//! Values are unique, so a write and the reads that returned its value stand together in any such
//! order. They form a group. Two moments of a group matter: `first_end`, when the first of its
//! operations completed, and `last_start`, when the last one began. If the first end of group v
//! lies before the last start of group u, v comes before u. A history fits if and only if no two
//! groups must each come before the other (Gibbons and Korach, "Testing shared memories", 1997).
//!
//! The oracle keeps the groups while the history goes on. It drops a group that no future read may
//! return any more, which leaves a few per block.
//!
//! Two things go beyond that paper:
//! - A write whose outcome is unknown got its place in the log, if any, before its outcome became
//!   unknown. So it comes before every write that was asked for later (S3). Yet it may become
//!   visible only after reads that were asked for later.
//! - Many writes write zeroes. A read of zeroes counts only if a single write can have made them.
//!   Otherwise the oracle concludes only that some write can have made them.
//!
//! Time is the order of the calls. The caller announces a request before any replica acts on it,
//! and its completion when it reaches the client.

use super::{Violation, WholeWrites};
use std::collections::BTreeMap;
use std::ops::Range;

#[cfg(test)]
mod tests;

/// Which resource, and which volume of it.
pub type VolumeKey = (usize, u16);

/// Order of calls; 0 is before the run.
type Moment = u64;
const NEVER: Moment = u64::MAX;

/// The registers of a run: all blocks of all volumes.
#[derive(Debug, Default)]
pub struct Registers {
    now: Moment,
    volumes: BTreeMap<VolumeKey, Vec<Register>>,
    requests: BTreeMap<u64, Request>,
    /// Writes that were acknowledged and may still be lost.
    soft: BTreeMap<u64, Request>,
    /// Since when a resource is to be rolled back.
    asked_back: BTreeMap<usize, Moment>,
    /// Each block by itself may be right where several are not.
    whole: WholeWrites,
}

#[derive(Debug)]
struct Request {
    kind: Kind,
    start: Moment,
    /// True time of the call, for the text of a violation.
    at_us: u64,
    volume: VolumeKey,
    blocks: Range<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Read,
    /// With the moment at which it began: that names it.
    Write,
}

/// A write and the reads that returned its value.
#[derive(Clone, Debug)]
struct Group {
    value: u64,
    request: u64,
    /// When the write was asked for; unique, so it names the group.
    start: Moment,
    /// First completion of the write or of a read that returned it. `NEVER`: no client has seen it
    /// yet.
    first_end: Moment,
    /// When the write was acknowledged from memory. `NEVER` if it was not, or if that acknowledged
    /// write was lost.
    soft_end: Moment,
    last_start: Moment,
    /// When the write can no longer be given a place in the log: completed, seen, or given up.
    placed: Moment,
    acknowledged: bool,
    read: bool,
}

impl Group {
    /// Whether this group comes before `other` in every order that is allowed.
    fn before(&self, other: &Self) -> bool {
        self.first_end.min(self.soft_end) < other.last_start || self.placed.min(self.soft_end) < other.start
    }

    /// With one more operation, from `start` to `end`.
    fn with(&self, start: Moment, end: Moment) -> Self {
        let mut grown = self.clone();
        grown.first_end = grown.first_end.min(end);
        grown.placed = grown.placed.min(end);
        grown.last_start = grown.last_start.max(start);
        grown
    }

    /// Tells whether an operation of the group has completed. Then its write is known to have
    /// happened.
    fn happened(&self) -> bool {
        self.first_end != NEVER
    }
}

/// One block.
#[derive(Debug)]
struct Register {
    /// Groups whose value a future read may return. While reads are under way, groups that still
    /// matter to these reads stay, too.
    groups: Vec<Group>,
    /// Starts of the reads that are under way.
    reads: Vec<Moment>,
    /// Values that may not come back, each with the reason.
    gone: Vec<(u64, Gone)>,
}

/// Why a value may not come back: its write, and that of the value that replaced it.
#[derive(Clone, Copy, Debug)]
struct Gone {
    request: u64,
    acknowledged: bool,
    by_value: u64,
    by_request: u64,
    by_was_read: bool,
}

impl Gone {
    fn new(group: &Group, by: &Group) -> Self {
        Self {
            request: group.request,
            acknowledged: group.acknowledged,
            by_value: by.value,
            by_request: by.request,
            by_was_read: by.read,
        }
    }
}

impl Registers {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A client sends a write at true time `at`, in microseconds. `value` is unique in the run; it
    /// is what the first 8 bytes of each block hold. 0 is zeroes: discard and write-zeroes.
    pub fn invoke_write(&mut self, request: u64, at: u64, volume: VolumeKey, blocks: Range<u64>, value: u64) {
        let start = self.tick();
        for block in blocks.clone() {
            self.register(volume, block).groups.push(Group {
                value,
                request,
                start,
                first_end: NEVER,
                soft_end: NEVER,
                last_start: start,
                placed: NEVER,
                acknowledged: false,
                read: false,
            });
        }
        self.whole.asked(request, start, volume, blocks.clone(), value);
        self.requests.insert(request, Request { kind: Kind::Write, start, at_us: at, volume, blocks });
    }

    pub fn invoke_read(&mut self, request: u64, at: u64, volume: VolumeKey, blocks: Range<u64>) {
        let start = self.tick();
        for block in blocks.clone() {
            self.register(volume, block).reads.push(start);
        }
        self.requests.insert(request, Request { kind: Kind::Read, start, at_us: at, volume, blocks });
    }

    /// The write was completed to its client as done.
    ///
    /// # Errors
    /// What is wrong with the history now.
    pub fn write_done(&mut self, request: u64, _at: u64) -> Result<(), Violation> {
        let Some(asked) = self.take(request, Kind::Write) else { return Ok(()) };
        let now = self.tick();
        self.whole.placed(request, now);
        for block in asked.blocks {
            let register = self.register(asked.volume, block);
            // The group may have been dropped already: a read saw it, and another write replaced
            // it, before its completion.
            if let Some(group) = register.groups.iter_mut().find(|group| group.start == asked.start) {
                *group = group.with(asked.start, now);
                group.acknowledged = true;
                register.sweep(now);
            }
        }
        Ok(())
    }

    /// The write was completed to its client, and may still be lost. Every read has to see it all
    /// the same, until it is known to be lost. The value that it replaces may come back.
    pub fn write_answered(&mut self, request: u64) {
        let Some(asked) = self.take(request, Kind::Write) else { return };
        let now = self.tick();
        self.whole.placed(request, now);
        self.each_group(&asked, |group| (group.soft_end, group.acknowledged) = (now, true));
        self.soft.insert(request, asked);
    }

    /// Tells the oracle that this write, which was answered before it was committed, is not lost.
    pub fn write_kept(&mut self, request: u64) {
        let Some(asked) = self.soft.remove(&request) else { return };
        let now = self.tick();
        for block in asked.blocks {
            let register = self.register(asked.volume, block);
            if let Some(group) = register.groups.iter_mut().find(|group| group.start == asked.start) {
                let told = std::mem::replace(&mut group.soft_end, NEVER);
                *group = group.with(asked.start, told.min(now));
                group.acknowledged = true;
                register.sweep(now);
            }
        }
    }

    /// Tells the oracle that this write, which was answered before it was committed, is lost. It
    /// counts as never answered from now on, and may be found again after all.
    pub fn write_lost(&mut self, request: u64) {
        let Some(asked) = self.soft.remove(&request) else { return };
        let now = self.tick();
        self.whole.lost(request, now);
        self.each_group(&asked, |group| {
            (group.soft_end, group.acknowledged) = (NEVER, false);
            group.placed = group.placed.min(now);
        });
    }

    fn each_group(&mut self, asked: &Request, mut change: impl FnMut(&mut Group)) {
        for block in asked.blocks.clone() {
            let register = self.register(asked.volume, block);
            if let Some(group) = register.groups.iter_mut().find(|group| group.start == asked.start) {
                change(group);
            }
        }
    }

    /// The read was completed to its client with these values, one for each block.
    ///
    /// # Errors
    /// What is wrong with the history now.
    pub fn read_done(&mut self, request: u64, at: u64, values: &[u64]) -> Result<(), Violation> {
        let Some(asked) = self.take(request, Kind::Read) else { return Ok(()) };
        let now = self.tick();
        for (block, value) in asked.blocks.clone().zip(values) {
            let register = self.register(asked.volume, block);
            register.forget_read(asked.start);
            match register.judge(*value, asked.start, now) {
                Ok(Some(group)) => {
                    let group = &mut register.groups[group];
                    *group = group.with(asked.start, now);
                    group.read = true;
                    register.sweep(now);
                }
                Ok(None) => {}
                Err((id, why)) => {
                    let (volume, asked_at) = (asked.volume, asked.at_us);
                    let text = format!(
                        "read {request}, from {asked_at} to {at} us, of block {block} of volume {} of resource {} returned {value}: {why}",
                        volume.1, volume.0
                    );
                    return Err(Violation { id, text });
                }
            }
        }
        if !self.whole.is_quiet(asked.volume, &asked.blocks, asked.start) {
            return Ok(());
        }
        let content: Vec<_> = asked.blocks.zip(values.iter().copied()).collect();
        self.check_whole(asked.volume, &content).map_err(|mut violation| {
            violation.text = format!("read {request}: {}", violation.text);
            violation
        })
    }

    /// R26: judges content of a volume, blocks with their values, at one moment after the last
    /// rollback.
    ///
    /// # Errors
    /// If no order of whole writes leads to it.
    pub fn check_whole(&self, volume: VolumeKey, content: &[(u64, u64)]) -> Result<(), Violation> {
        self.whole.check(volume, content).map_err(|why| Violation {
            id: "R26",
            text: format!("in volume {} of resource {}, {why}", volume.1, volume.0),
        })
    }

    /// The request failed or its node is gone. No process will give it a place in a log any more,
    /// but a place that it has may still become a committed one.
    pub fn unknown(&mut self, request: u64) {
        let Some(asked) = self.requests.remove(&request) else { return };
        let now = self.tick();
        self.whole.placed(request, now);
        for block in asked.blocks {
            let register = self.register(asked.volume, block);
            match asked.kind {
                Kind::Read => register.forget_read(asked.start),
                Kind::Write => {
                    if let Some(group) = register.groups.iter_mut().find(|group| group.start == asked.start) {
                        group.placed = group.placed.min(now);
                    }
                }
            }
        }
    }

    /// The write was refused before any replica acted on it: it has not happened and never will.
    pub fn refused(&mut self, request: u64) {
        let Some(asked) = self.requests.remove(&request) else { return };
        self.whole.refused(request);
        for block in asked.blocks {
            let register = self.register(asked.volume, block);
            match asked.kind {
                Kind::Read => register.forget_read(asked.start),
                Kind::Write => register.groups.retain(|group| group.start != asked.start || group.happened()),
            }
        }
    }

    /// A forced promotion has taken back everything after some entry (R11). Each block holds its
    /// content at that entry, and no other write of before will be seen again. The new primary has
    /// no device yet, so no client has asked it for anything.
    pub fn roll_back(&mut self, resource: usize, value_at: impl Fn(u16, u64) -> u64) {
        let now = self.tick();
        for (key, registers) in self.volumes.iter_mut().filter(|((of, _), _)| *of == resource) {
            let content: Vec<_> = (0..registers.len() as u64).map(|block| value_at(key.1, block)).collect();
            for (value, register) in content.iter().zip(registers) {
                register.roll_back(*value, now);
            }
            self.whole.rolled_back(*key, now, content);
        }
    }

    /// An engine is told to roll the resource back to a snapshot, perhaps again.
    pub fn ask_back(&mut self, resource: usize) {
        let now = self.tick();
        self.asked_back.entry(resource).or_insert(now);
    }

    /// R17: the resource was rolled back to a snapshot at this moment. It is as if a client had
    /// written to every block the content of the snapshot. A client may have given up a write after
    /// the rollback was asked for. Such a write may still take effect later, because it waits in
    /// the engine until the rollback is done.
    ///
    /// `blocks`: for each volume, the number of blocks that may come to hold content which no
    /// client of this resource has written.
    pub fn put_back(&mut self, resource: usize, blocks: &[usize], value_at: impl Fn(u16, u64) -> u64) {
        for (volume, blocks) in (0..).zip(blocks) {
            let registers = self.volumes.entry((resource, volume)).or_default();
            registers.resize_with(registers.len().max(*blocks), Register::default);
        }
        let now = self.tick();
        let start = self.asked_back.remove(&resource).unwrap_or(now);
        for (key, registers) in self.volumes.iter_mut().filter(|((of, _), _)| *of == resource) {
            let content: Vec<_> = (0..registers.len() as u64).map(|block| value_at(key.1, block)).collect();
            for (value, register) in content.iter().copied().zip(registers) {
                register.groups.push(Group {
                    value,
                    request: 0,
                    start,
                    first_end: now,
                    soft_end: NEVER,
                    last_start: start,
                    placed: now,
                    acknowledged: true,
                    read: false,
                });
                register.sweep(now);
            }
            self.whole.rolled_back(*key, now, content);
        }
    }

    /// S1 at the end: whether a read of the block that begins and ends now could return this.
    ///
    /// # Errors
    /// Why it could not.
    pub fn final_check(&self, volume: VolumeKey, block: u64, value: u64) -> Result<(), Violation> {
        let fresh = Register::default();
        let register =
            self.volumes.get(&volume).and_then(|blocks| blocks.get(block as usize)).unwrap_or(&fresh);
        register.judge(value, self.now + 1, self.now + 1).map(|_| ()).map_err(|(id, why)| Violation {
            id,
            text: format!(
                "at the end block {block} of volume {} of resource {} holds {value}: {why}",
                volume.1, volume.0
            ),
        })
    }

    /// Requests that are neither completed nor given up.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.requests.len()
    }

    fn tick(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// The request, if it is pending and of this kind.
    fn take(&mut self, request: u64, kind: Kind) -> Option<Request> {
        if self.requests.get(&request).is_none_or(|asked| asked.kind != kind) {
            return None;
        }
        self.requests.remove(&request)
    }

    fn register(&mut self, volume: VolumeKey, block: u64) -> &mut Register {
        let blocks = self.volumes.entry(volume).or_default();
        let block = block as usize;
        if blocks.len() <= block {
            blocks.resize_with(block + 1, Register::default);
        }
        &mut blocks[block]
    }
}

impl Default for Register {
    /// A new block reads as zeroes, as if written before the run.
    fn default() -> Self {
        let zeroes = Group {
            value: 0,
            request: 0,
            start: 0,
            first_end: 0,
            soft_end: NEVER,
            last_start: 0,
            placed: 0,
            acknowledged: true,
            read: false,
        };
        Self { groups: vec![zeroes], reads: Vec::new(), gone: Vec::new() }
    }
}

impl Register {
    fn roll_back(&mut self, value: u64, now: Moment) {
        let kept = self.groups.iter().rfind(|group| group.value == value);
        let request = kept.map_or(0, |group| group.request);
        let held = Group {
            value,
            request,
            start: now,
            first_end: now,
            soft_end: NEVER,
            last_start: now,
            placed: now,
            acknowledged: true,
            read: false,
        };
        for lost in self.groups.iter().filter(|group| group.value != value) {
            self.gone.push((lost.value, Gone::new(lost, &held)));
        }
        self.groups = vec![held];
    }

    fn forget_read(&mut self, start: Moment) {
        if let Some(at) = self.reads.iter().position(|read| *read == start) {
            self.reads.swap_remove(at);
        }
    }

    /// The group that a read of `value` from `start` to `now` belongs to; `None`: more than one is
    /// possible.
    fn judge(&self, value: u64, start: Moment, now: Moment) -> Result<Option<usize>, (&'static str, String)> {
        let mut possible = None;
        let mut refuted = None;
        for (at, group) in self.groups.iter().enumerate().filter(|(_, group)| group.value == value) {
            let grown = group.with(start, now);
            let mut others = self.groups.iter().filter(|other| other.start != group.start);
            match others.find(|other| grown.before(other) && other.before(&grown)) {
                Some(by) => refuted = Some(Gone::new(group, by)),
                None if possible.is_some() => return Ok(None),
                None => possible = Some(at),
            }
        }
        if possible.is_some() {
            return Ok(possible);
        }
        let gone = || self.gone.iter().rev().find(|(gone, _)| *gone == value).map(|(_, gone)| *gone);
        let Some(gone) = refuted.or_else(gone) else {
            return Err(("S16", "no client ever wrote that there".to_owned()));
        };
        let Gone { request, by_value, by_request, .. } = gone;
        let seen = gone.by_was_read || self.groups.iter().any(|by| by.request == by_request && by.read);
        let id = match (gone.acknowledged, seen) {
            (false, _) => "S3",
            (true, true) => "S2",
            (true, false) => "S1",
        };
        let what = if seen { "was read" } else { "was acknowledged" };
        Err((
            id,
            format!(
                "it is of request {request}, and {by_value} of request {by_request}, which is newer, {what} before"
            ),
        ))
    }

    /// Drops the groups that no read may return any more. These come before a group that was
    /// complete before every read began that is under way or still to come.
    fn sweep(&mut self, now: Moment) {
        if self.groups.len() < 2 {
            return;
        }
        let horizon = self.reads.iter().copied().min().unwrap_or(now + 1);
        let killer = |group: &Group, groups: &[Group]| {
            groups.iter().position(|by| by.first_end < horizon && by.start != group.start && group.before(by))
        };
        let mut dead = 0_u64;
        for at in 0..self.groups.len().min(64) {
            if let Some(by) = killer(&self.groups[at], &self.groups) {
                dead |= 1 << at;
                self.gone.push((self.groups[at].value, Gone::new(&self.groups[at], &self.groups[by])));
            }
        }
        if dead != 0 {
            let mut at = 0;
            self.groups.retain(|_| {
                at += 1;
                at > 64 || dead & (1 << (at - 1)) == 0
            });
        }
    }
}

//! Progress that the cluster must make by itself. Copies end although clients write, and although a
//! block is damaged on every replica (L6). Journals drain when clients do not write (L3).

use super::{Machine, World, resource_id};
use crate::plan::ClientOp;
use mainstay_types::{Member, ResourceId};
use std::collections::BTreeMap;

/// Time that a copy may stand still, and time that it may take. There are some 24 extents, and the
/// slowest copies make 8 of them in a second. A copy may have to wait for other copies, or for its
/// target to leave the in-sync set.
const STANDSTILL_US: u64 = 20_000_000;
const COPY_US: u64 = 60_000_000;
/// Number of blocks that clients write at each look while a replica is copied.
const LOAD: u64 = 8;
/// Requests without an answer above which clients ask for no more.
const ASKED_MAX: usize = 32;

/// The copies that are under way after faults have stopped.
#[derive(Default)]
pub(super) struct Copies(BTreeMap<(ResourceId, Member), Copying>);

struct Copying {
    since_us: u64,
    done: u64,
    /// When it was seen to have gone on.
    moved_us: u64,
}

impl World {
    /// L6: each copy goes on, and ends. Clients write meanwhile.
    pub(super) fn watch_copies(&mut self, copies: &mut Copies) {
        let before = std::mem::take(&mut copies.0);
        for number in 0..self.plan.shape.resources.len() {
            let found = self.copied(number);
            if found.is_empty() {
                continue;
            }
            self.write_anywhere(number);
            for (member, done) in found {
                let key = (resource_id(number), member);
                let now = Copying { since_us: self.now_us, done, moved_us: self.now_us };
                let copying = match before.get(&key) {
                    Some(old) if old.done == done => {
                        Copying { moved_us: old.moved_us, since_us: old.since_us, ..now }
                    }
                    Some(old) => Copying { since_us: old.since_us, ..now },
                    None => now,
                };
                let (stood, taken) = (self.now_us - copying.moved_us, self.now_us - copying.since_us);
                let late = stood > STANDSTILL_US || taken > COPY_US;
                if late {
                    let text = format!(
                        "the copy of r{number} to {} has gone on for {} ms, has {done} extents, and stood still for {} ms",
                        member.node,
                        taken / 1000,
                        stood / 1000
                    );
                    self.wrong("L6", text);
                }
                copies.0.insert(key, copying);
            }
        }
        for _ in before.keys().filter(|key| !copies.0.contains_key(key)) {
            self.trace.count("a copy ended while clients wrote");
        }
    }

    /// Returns the members that are copied to, each with the number of extents that it has.
    fn copied(&self, number: usize) -> Vec<(Member, u64)> {
        let id = resource_id(number);
        let primary = self.state().resources.get(&id).and_then(|known| known.record.primary);
        let engine = primary.and_then(|primary| self.machines[&primary].engine.as_ref());
        let Some(hosted) = engine.and_then(|engine| engine.hosts.get(&id)) else { return Vec::new() };
        let peers = hosted.host.replica().status().peers.into_iter();
        peers.filter_map(|peer| peer.copied.map(|(done, _)| (peer.member, done))).collect()
    }

    fn write_anywhere(&mut self, number: usize) {
        let volumes = self.plan.shape.resources[number].volumes.clone();
        for _ in 0..LOAD {
            if self.asked.len() >= ASKED_MAX {
                return;
            }
            let volume = self.load.below(volumes.len() as u64) as usize;
            let block = self.load.below(volumes[volume]);
            self.client(number, ClientOp::Write { volume: volume as u16, block, blocks: 1 });
        }
    }

    /// L3: a replica at rest whose journal has no room for the clients' next writes. Resources that
    /// have stopped are left out: they commit nothing any more, so their journals do not drain.
    pub(super) fn congested(&self) -> Option<String> {
        (0..self.plan.shape.resources.len()).filter(|number| self.is_whole(*number)).find_map(|number| {
            let full = |machine: &Machine| {
                let hosted = machine.engine.as_ref()?.hosts.get(&resource_id(number))?;
                let store = hosted.host.store();
                let full = hosted.host.failed().is_none() && store.is_full();
                full.then(|| (machine.node, store.room_with_reserve()))
            };
            let (node, left) = self.machines.values().find_map(full)?;
            Some(format!(
                "no client writes, and the journal of r{number} on {node} stays full: {left} bytes left"
            ))
        })
    }
}

//! Mainstay itself, in one lab: one, two or three replicas in mode C, and two or three in modes A
//! and B. Each set-up has a volume for fio and another one with a database.

use crate::bench::big::{Pages, Services};
use crate::bench::ready::{DATABASE_MIB, Needs, Ready};
use crate::bench::{FIRST, NODES};
use crate::lab::Lab;
use crate::mariadb::Service;
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::{Mode, PeerState, ResourceView, Role};
use mainstay_bench::fio::Target;
use std::time::Duration;

/// Longest time for a service to run.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of the lab.
pub const LAB: &str = "bench";

/// A number of replicas, and a mode, which decides when a write is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copies {
    pub name: &'static str,
    pub count: usize,
    pub mode: Mode,
    /// Whether the database of the big cases has its doublewrite buffer.
    pub pages: Pages,
}

const fn copies(name: &'static str, count: usize, mode: Mode, pages: Pages) -> Copies {
    Copies { name, count, mode, pages }
}

pub const ALL: [Copies; 10] = [
    copies("single", 1, Mode::C, Pages::Twice),
    copies("two", 2, Mode::C, Pages::Twice),
    copies("three", 3, Mode::C, Pages::Twice),
    copies("two-a", 2, Mode::A, Pages::Twice),
    copies("three-a", 3, Mode::A, Pages::Twice),
    copies("two-b", 2, Mode::B, Pages::Twice),
    copies("three-b", 3, Mode::B, Pages::Twice),
    copies("single-once", 1, Mode::C, Pages::Once),
    copies("two-once", 2, Mode::C, Pages::Once),
    copies("three-once", 3, Mode::C, Pages::Once),
];

impl Copies {
    /// Creates what the cases need.
    ///
    /// # Errors
    /// When the cluster refuses or does not get ready.
    pub fn start<'a>(&self, lab: &'a Lab, needs: Needs) -> Result<Ready<'a>> {
        let nodes = &NODES[..self.count];
        let mode = match self.mode {
            Mode::A => {
                "mode A (a write waits for the primary's journal) with the limits of the lag that it has by itself"
            }
            Mode::B => "mode B (a write waits until all have it in memory, a flush for all journals)",
            Mode::C => "mode C (a write waits for all journals)",
        };
        let once = match self.pages {
            Pages::Twice => "",
            Pages::Once => "; the database without doublewrite, on ext4 with clusters of 16 KiB",
        };
        let text = format!("Mainstay, replicas on {}, {mode}, the node's frontend{once}", nodes.join(", "));
        let mut ready = Ready::new(lab, self.name, text, needs);
        let place = 1 + ALL.iter().position(|copies| copies == self).context("one of all")?;
        let services = Services { name: self.name, copies: self, place, pages: self.pages };
        services.start(&mut ready, needs.big)?;
        if self.pages == Pages::Once {
            return Ok(ready);
        }
        if needs.fio {
            let name = format!("raw-{}", self.name);
            let mib = format!("{}MiB", needs.mib);
            create(self, lab, &name, &mib)?;
            ready.write_to(Target::Path(device(lab, &name)?.into()))?;
        }
        if needs.database {
            let (name, vip) = (format!("db-{}", self.name), format!("10.213.0.{}", 100 + place));
            let mib = format!("{DATABASE_MIB}MiB");
            create(self, lab, &name, &mib)?;
            let port = 3310 + place as u16;
            let service = Service { name: &name, resource: &name, vip: &vip, port };
            service.apply(lab)?;
            let node = lab.wait_running(&name, LIMIT)?;
            ensure!(
                node == FIRST,
                "{name} runs on {node}: all databases have to run on {FIRST} to be compared"
            );
            ready.serve(service.address())?;
        }
        Ok(ready)
    }

    fn in_force(&self, view: &ResourceView) -> Result<()> {
        ensure!(view.mode == self.mode, "it is in mode {:?}", view.mode);
        let primary = view
            .replicas
            .iter()
            .filter_map(|replica| replica.live.as_ref())
            .find(|live| live.role == Role::Primary);
        let primary = primary.context("no node is primary")?;
        if self.mode == Mode::B {
            ensure!(primary.caches, "its device does not say that it has a cache");
            ensure!(view.memory.len() == self.count, "the memory of {:?} counts", view.memory);
        } else {
            let following = primary.peers.iter().filter(|peer| peer.state == PeerState::Following).count();
            ensure!(following == self.count - 1, "{following} replicas follow");
        }
        Ok(())
    }
}

/// Creates a resource and sets the mode to be measured. Returns when the mode is in force.
///
/// # Errors
/// When the cluster refuses, or the mode is not in force in time.
pub fn create(copies: &Copies, lab: &Lab, name: &str, size: &str) -> Result<()> {
    lab.create_resource(name, size, &NODES[..copies.count], &["--preferred", FIRST])?;
    let letter = match copies.mode {
        Mode::A => "a",
        Mode::B => "b",
        Mode::C => return Ok(()),
    };
    // The mode is set at once. A device that has refused a flush would take up mode B only when
    // it is attached anew.
    lab.cli(&["resource", "set-mode", name, letter])?;
    crate::wait_for(&format!("mode {} of {name}", letter.to_uppercase()), LIMIT, || {
        copies.in_force(&lab.resource(name)?)
    })
}

/// The block device of a resource's only volume, on the first node.
fn device(lab: &Lab, resource: &str) -> Result<String> {
    let primary = lab.primary(resource)?;
    ensure!(primary == FIRST, "{resource} is primary on {primary} and not on {FIRST}");
    crate::wait_for(&format!("the device of {resource}"), LIMIT, || {
        let view = lab.resource(resource)?;
        let live = view.replicas.iter().filter_map(|replica| replica.live.as_ref());
        let device = live.flat_map(|live| &live.devices).next();
        device.map(|device| device.path.clone()).context("no device yet")
    })
}

//! Mainstay itself, in one lab: one, two or three replicas in mode C, and two or three in modes A
//! and B. Each set-up has a volume for fio and another one with a database.

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
}

pub const ALL: [Copies; 7] = [
    Copies { name: "single", count: 1, mode: Mode::C },
    Copies { name: "two", count: 2, mode: Mode::C },
    Copies { name: "three", count: 3, mode: Mode::C },
    Copies { name: "two-a", count: 2, mode: Mode::A },
    Copies { name: "three-a", count: 3, mode: Mode::A },
    Copies { name: "two-b", count: 2, mode: Mode::B },
    Copies { name: "three-b", count: 3, mode: Mode::B },
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
        let text = format!("Mainstay, replicas on {}, {mode}, the node's frontend", nodes.join(", "));
        let mut ready = Ready::new(lab, self.name, text, needs);
        if needs.fio {
            let name = format!("raw-{}", self.name);
            let mib = format!("{}MiB", needs.mib);
            self.create(lab, &name, &mib)?;
            ready.write_to(Target::Path(device(lab, &name)?.into()))?;
        }
        if needs.database {
            let place = 1 + ALL.iter().position(|copies| copies == self).context("one of all")?;
            let (name, vip) = (format!("db-{}", self.name), format!("10.213.0.{}", 100 + place));
            let mib = format!("{DATABASE_MIB}MiB");
            self.create(lab, &name, &mib)?;
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

    /// Creates a resource and sets the mode to be measured. Returns when the mode is in force.
    fn create(&self, lab: &Lab, name: &str, size: &str) -> Result<()> {
        lab.create_resource(name, size, &NODES[..self.count], &["--preferred", FIRST])?;
        let letter = match self.mode {
            Mode::A => "a",
            Mode::B => "b",
            Mode::C => return Ok(()),
        };
        // The mode is set at once. A device that has refused a flush would take up mode B only when
        // it is attached anew.
        lab.cli(&["resource", "set-mode", name, letter])?;
        crate::wait_for(&format!("mode {} of {name}", letter.to_uppercase()), LIMIT, || {
            self.in_force(&lab.resource(name)?)
        })
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

//! Mainstay itself: one, two or three replicas, all in one lab. Each has a volume for fio and another one with a database.

use crate::bench::ready::{DATABASE_MIB, Needs, Ready};
use crate::bench::{FIRST, NODES};
use crate::lab::Lab;
use crate::mariadb::Service;
use anyhow::{Context, Result, ensure};
use mainstay_bench::fio::Target;
use std::time::Duration;

/// Longest time for a service to run.
const LIMIT: Duration = Duration::from_secs(60);
/// Name of the lab.
pub const LAB: &str = "bench";

/// A number of replicas, in mode C, which is the only one there is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Copies {
    pub name: &'static str,
    pub count: usize,
}

pub const ALL: [Copies; 3] = [
    Copies { name: "single", count: 1 },
    Copies { name: "two", count: 2 },
    Copies { name: "three", count: 3 },
];

impl Copies {
    /// Creates what the cases need.
    ///
    /// # Errors
    /// When the cluster refuses or does not get ready.
    pub fn start<'a>(&self, lab: &'a Lab, needs: Needs) -> Result<Ready<'a>> {
        let nodes = &NODES[..self.count];
        let text = format!("Mainstay, replicas on {}, mode C, the node's frontend", nodes.join(", "));
        let mut ready = Ready::new(lab, self.name, text, needs);
        if needs.fio {
            let name = format!("raw-{}", self.name);
            let mib = format!("{}MiB", needs.mib);
            lab.create_resource(&name, &mib, nodes, &["--preferred", FIRST])?;
            ready.write_to(Target::Path(device(lab, &name)?.into()))?;
        }
        if needs.database {
            let (name, vip) = (format!("db-{}", self.name), format!("10.213.0.{}", 100 + self.count));
            let mib = format!("{DATABASE_MIB}MiB");
            lab.create_resource(&name, &mib, nodes, &["--preferred", FIRST])?;
            let port = 3310 + self.count as u16;
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

//! Mounts that services left on this node, because others had mounted something in or over them.
//!
//! Guarantees
//! - Such a mount is noted until it is gone, also when the service is forgotten here and when the
//!   agent starts anew. The service takes the mount away when it comes again. This module takes it
//!   away as soon as no other mount goes with it (R27).
//! - The mount stays while a process holds it, and once the service, or another one, uses it again.

use super::instance::Places;
use super::lane::{Haste, Lane};
use super::mount::Place;
use crate::threads::{lock, spawn};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const EXTENSION: &str = "left";
/// How often a mount that was left is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The lane of each service's mount. It outlives the service's presence here. So whatever the
/// service does next calls off work that is under way for it.
#[derive(Clone, Debug, Default)]
pub struct MountLanes(Arc<Mutex<BTreeMap<String, Arc<Lane>>>>);

impl MountLanes {
    #[must_use]
    pub fn of(&self, service: &str) -> Arc<Lane> {
        Arc::clone(lock(&self.0).entry(service.to_owned()).or_default())
    }
}

fn file(places: &Places, service: &str) -> PathBuf {
    places.run_dir.join("services").join(format!("{service}.{EXTENSION}"))
}

/// The mount that a service left here.
#[must_use]
pub fn of(places: &Places, service: &str) -> Option<Place> {
    serde_json::from_slice(&std::fs::read(file(places, service)).ok()?).ok()
}

/// Notes the mount that a service leaves here.
pub fn note(places: &Places, service: &str, place: &Place) {
    let path = file(places, service);
    let write = || -> std::io::Result<()> {
        if let Some(directory) = path.parent() {
            crate::private::directory(directory)?;
        }
        let fresh = path.with_extension("left-new");
        std::fs::write(&fresh, serde_json::to_vec(place)?)?;
        std::fs::rename(&fresh, &path)
    };
    if let Err(error) = write() {
        tracing::error!(path = %path.display(), %error, "cannot note a mount that stays here; unmount it by hand");
    }
}

/// The mount is gone, or is in use again.
pub fn forget(places: &Places, service: &str) {
    drop(std::fs::remove_file(file(places, service)));
}

/// Takes away what a service left here as soon as that is possible. `number` is that of the undo on
/// the mount's lane. Any later change of the service calls this off.
pub fn tidy(places: &Places, service: &str, number: u64) {
    if of(places, service).is_none() {
        return;
    }
    let (places, service, lane) = (places.clone(), service.to_owned(), places.mount_lanes.of(service));
    spawn("agent-tidy", move || {
        let wanted = || lane.is_newest(number);
        loop {
            std::thread::sleep(LOOK);
            let Some(place) = of(&places, &service).filter(|_| wanted()) else { return };
            if places.mounted(&service).iter().any(|(_, path)| *path == place.path) {
                return forget(&places, &service);
            }
            if !place.may_go() {
                continue;
            }
            let gone = lane.undo(number, Haste::Orderly, LOOK, || {
                place.ensure_unmounted(Instant::now() + LOOK, &wanted).map_err(|error| error.to_string())?;
                forget(&places, &service);
                Ok(())
            });
            if gone.is_ok() {
                tracing::info!(service, path = %place.path.display(), "a mount that was left here is gone");
                return;
            }
        }
    });
}

/// Goes on with what services left here under an earlier agent.
pub fn tidy_all(places: &Places) {
    let entries = std::fs::read_dir(places.run_dir.join("services")).into_iter().flatten().flatten();
    let files = entries.map(|entry| entry.path());
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == EXTENSION)) {
        if let Some(service) = path.file_stem().and_then(|stem| stem.to_str()) {
            tidy(places, service, places.mount_lanes.of(service).number());
        }
    }
}

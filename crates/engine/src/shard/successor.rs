//! The end of an engine whose successor comes: it leaves its devices, and silences no service.
//!
//! ```text
//!   Serves ── Successor ──▶ Awaits ── told to end ──▶ Quiet ── all is answered ──▶ Left: the process ends
//!     ▲                       │                         │
//!     ├── time is over ───────┘                         └── not in time, no agent ──▶ ends as any other (S311)
//!     └── taken back ─────────┘
//! ```
//!
//! Guarantees
//! - Everything that was read from a device is answered before the engine leaves. What was not read
//!   stays with the kernel. So the successor finds nothing half done.
//! - The agent holds the devices until the guard of this node would act (R19), and confirms that
//!   before the process ends.
//! - Nothing is left unless everything can be: a service whose device cannot be left is silenced as
//!   with any other end of the engine.

use super::Shard;
use crate::devices::DeviceJob;
use crate::resource_devices::NotQuiet;
use mainstay_api::engine::Reply;
use mainstay_api::rest::SUCCESSOR_MS_MAX;
use mainstay_devices::succession::{LeftResource, Succession};
use mainstay_silence::guard_acts_at;
use mainstay_types::{Code, FrontendKind, Time};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

/// Hears whether the devices are left.
pub type Left = SyncSender<io::Result<()>>;

/// Until when the end of this engine is that of one whose successor comes.
#[derive(Clone, Default)]
pub struct Successor(Arc<AtomicU64>);

impl Successor {
    /// Whether a successor is announced at this moment.
    #[must_use]
    pub fn is_announced(&self, now: Time) -> bool {
        now < Time(self.0.load(Ordering::SeqCst))
    }

    fn announce(&self, until: Time) {
        self.0.store(until.0, Ordering::SeqCst);
    }
}

impl Shard {
    pub(super) fn successor_asked(&self, now: Time, within_ms: Option<u64>) -> Reply {
        if within_ms == Some(0) {
            self.successor.announce(Time(0));
            return Reply::Ok;
        }
        if let Err(why) = self.can_leave(now) {
            let remedy = "Move the services away first, with `mainstay node upgrade --drain`.";
            return Reply::refused(Code::NotInPlace, why, remedy);
        }
        if let Some(ms) = within_ms {
            self.successor.announce(now.plus_ms(ms.min(SUCCESSOR_MS_MAX)));
        }
        Reply::Ok
    }

    /// # Errors
    /// The reason why this engine cannot leave its devices to a successor, in words.
    fn can_leave(&self, now: Time) -> Result<(), String> {
        if !self.options.stands_alone {
            return Err("the engine is part of another program".into());
        }
        if self.choice.kind != Some(FrontendKind::Fuse) {
            let kind = self.choice.kind.map_or_else(|| "none".into(), |kind| kind.to_string());
            return Err(format!(
                "only FUSE devices can be left to a successor, and the devices here are {kind}"
            ));
        }
        if self.watchdog.status().is_some() {
            return Err("the engine feeds a watchdog".into());
        }
        if self.fenced || now >= guard_acts_at(self.lease_until) {
            return Err("this node has no lease".into());
        }
        if self.left.deadline().is_some() {
            return Err("devices of the engine before are not served again yet".into());
        }
        if !self.clients.is_empty() {
            return Err("a resource without a replica here is attached to this node".into());
        }
        for replica in self.replicas.values() {
            let name = replica.name();
            if !replica.resource_devices().can_be_left(self.choice.kind) {
                return Err(format!("the devices of resource {name} are being made or taken away"));
            }
        }
        Ok(())
    }

    /// Leaves the devices, if this engine was told to and everything is answered.
    pub(super) fn leave(&mut self, now: Time) {
        if self.leaving.is_none() {
            return;
        }
        let found: Result<Vec<Option<LeftResource>>, NotQuiet> =
            self.replicas.values().map(|replica| replica.resource_devices().to_leave()).collect();
        let until = guard_acts_at(self.lease_until);
        let failed = match (self.can_leave(now), found) {
            (Err(why), _) => io::Error::other(why),
            // Every answer is a completion, and brings the next turn.
            (Ok(()), Err(NotQuiet)) => return,
            (Ok(()), Ok(found)) => {
                let resources: Vec<LeftResource> = found.into_iter().flatten().collect();
                let noted = Succession { at: now, until, resources };
                match noted.note(&self.options.run_dir) {
                    Err(error) => error,
                    Ok(()) => {
                        let left_ms = until.ms_since(now);
                        tracing::info!(
                            resources = noted.resources.len(),
                            left_ms,
                            "the devices are left to the next engine"
                        );
                        if let Some(left) = self.leaving.take() {
                            self.devices.submit(DeviceJob::Leave { until, left });
                        }
                        return;
                    }
                }
            }
        };
        if let Some(left) = self.leaving.take() {
            // The receiver may have given up.
            let _ = left.send(Err(failed));
        }
    }
}

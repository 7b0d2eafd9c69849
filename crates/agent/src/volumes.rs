//! Knowledge of the cluster and the engine about volumes, beside their bytes.

use crate::agent::PROPOSE_TIMEOUT;
use crate::engine_link::EngineLink;
use crate::error::settle;
use crate::raft::ConsensusLog;
use crate::service::instance::Volumes;
use crate::service::make::{Uuid, Volume};
use mainstay_api::engine::{Reply, Request};
use mainstay_control::state::Command;
use mainstay_types::{Epoch, ResourceId, VolumeId};
use std::sync::Arc;
use std::time::Duration;

const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks the log of the cluster and the node's engine.
pub struct ClusterVolumes {
    pub log: Arc<dyn ConsensusLog>,
    pub engine: EngineLink,
}

impl Volumes for ClusterVolumes {
    fn volume(&self, resource: ResourceId, volume: u16) -> Box<dyn Volume> {
        let epoch = self.log.view().state.resources.get(&resource).map(|known| known.record.epoch);
        Box::new(OneVolume {
            log: Arc::clone(&self.log),
            engine: self.engine.clone(),
            resource,
            volume: VolumeId(volume),
            epoch: epoch.unwrap_or_default(),
        })
    }
}

struct OneVolume {
    log: Arc<dyn ConsensusLog>,
    engine: EngineLink,
    resource: ResourceId,
    volume: VolumeId,
    /// The epoch for which everything is decided here.
    epoch: Epoch,
}

impl OneVolume {
    fn tell(&self, uuid: Option<Uuid>) -> Result<(), String> {
        let Self { resource, volume, epoch, .. } = *self;
        let command = Command::MakeFileSystem { resource, epoch, volume, uuid };
        let settled = settle(self.log.propose(command, PROPOSE_TIMEOUT));
        settled.map(drop).map_err(|error| format!("the cluster does not record it: {}", error.message))
    }
}

impl Volume for OneVolume {
    fn is_blank(&self) -> Result<bool, String> {
        let question = Request::Blank { resource: self.resource, volume: self.volume };
        match self.engine.request(question, ENGINE_TIMEOUT) {
            Ok(Reply::Blank { blank }) => Ok(blank),
            Ok(other) => Err(format!("the engine answered {other:?}")),
            Err(error) => Err(format!("the engine does not say: {error}")),
        }
    }

    fn unfinished(&self) -> Result<Option<Uuid>, String> {
        let state = self.log.view().state;
        let resource = state.resources.get(&self.resource).ok_or("the resource is not known")?;
        Ok(resource.unfinished.get(&self.volume).copied())
    }

    fn begin(&self, uuid: Uuid) -> Result<(), String> {
        self.tell(Some(uuid))
    }

    fn finish(&self) -> Result<(), String> {
        self.tell(None)
    }
}

//! Identity of this node, in `<state>/identity.json`. The agent writes it once, durably, when the
//! node becomes a member.

pub use mainstay_pool::durable::write_durable;
use mainstay_types::NodeId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::Path;

pub(crate) const FILE: &str = "identity.json";

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    pub cluster: u64,
    pub cluster_name: String,
    pub node: NodeId,
    pub name: String,
    /// Agents of the members when this node joined; used until the cluster state has arrived.
    pub first_members: BTreeMap<NodeId, String>,
    /// State of this node's log, `agent.redb`.
    #[serde(default)]
    pub log: LogMark,
    /// Era of the cluster in which this node joined; its log says which one it is in.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub era: u64,
    /// Words about the removal of this node from its cluster. The node must not run again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub removed: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
fn is_zero(value: &u64) -> bool {
    *value == 0
}

/// Number by which agents know a cluster. Agents of two eras of a cluster are strangers to each
/// other.
#[must_use]
pub fn number_of(cluster: u64, era: u64) -> u64 {
    cluster ^ era
}

/// State of a node's log, as far as the node has noted it beside the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogMark {
    /// An earlier release wrote the identity. It made no member whose log was empty for long.
    #[default]
    Unknown,
    /// The node joins, and has received nothing yet.
    Awaited,
    /// The log has content, which the node may have confirmed.
    Begun,
    /// The log lacks what the node had confirmed. The node must not vote again.
    Lost,
}

impl Identity {
    /// `None` before the node is a member.
    ///
    /// # Errors
    /// When the file is there and cannot be read; `InvalidData` when it is damaged.
    pub fn load(state_dir: &Path) -> io::Result<Option<Self>> {
        match fs::read(state_dir.join(FILE)) {
            Ok(bytes) => {
                let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
                serde_json::from_slice(&bytes).map(Some).map_err(invalid)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The node is no member any more.
    ///
    /// # Errors
    /// When the file is there and stays.
    pub fn remove(state_dir: &Path) -> io::Result<()> {
        match fs::remove_file(state_dir.join(FILE)) {
            Ok(()) => File::open(state_dir)?.sync_all(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// When it could not be made durable.
    pub fn save(&self, state_dir: &Path) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        write_durable(&state_dir.join(FILE), &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_identity_is_loaded_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Identity::load(dir.path()).unwrap(), None);
        let identity = Identity {
            cluster: 7,
            cluster_name: "c".into(),
            node: NodeId(3),
            name: "n3".into(),
            first_members: BTreeMap::new(),
            log: LogMark::Begun,
            era: 0,
            removed: None,
        };
        identity.save(dir.path()).unwrap();
        assert_eq!(Identity::load(dir.path()).unwrap().as_ref(), Some(&identity));
        // As an earlier release wrote it.
        let old = r#"{"cluster":7,"cluster_name":"c","node":3,"name":"n3","first_members":{}}"#;
        fs::write(dir.path().join(FILE), old).unwrap();
        let unknown = Identity { log: LogMark::Unknown, ..identity };
        assert_eq!(Identity::load(dir.path()).unwrap(), Some(unknown));
        Identity::remove(dir.path()).unwrap();
        Identity::remove(dir.path()).unwrap();
        assert_eq!(Identity::load(dir.path()).unwrap(), None);
    }
}

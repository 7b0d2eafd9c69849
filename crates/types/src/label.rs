//! Label of a replica, which says in the replica's directory whose that is.

use crate::{Incarnation, ResourceId};
use serde::{Deserialize, Serialize};

/// Says in a replica's directory whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Label {
    pub resource: ResourceId,
    /// The resource's.
    pub name: String,
    pub incarnation: Incarnation,
}

/// Name of a replica's directory. The id is part of it because names are used again and ids never
/// are.
#[must_use]
pub fn directory_name(resource: ResourceId, name: &str) -> String {
    format!("{name}-{}", resource.0)
}

/// The contents of a directory's label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    Label(Label),
    /// The directory has the files of a replica and no label.
    NoLabel,
    /// Why the label cannot be read.
    Unreadable(String),
}

/// Observation of the files that the engine has open for a replica, made through the paths of the
/// pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Look {
    /// Files that the replica's own directory does not have as the engine has them open.
    pub missing: Vec<String>,
    /// Something has the name of the replica's own directory.
    pub taken: bool,
    /// Label in the replica's own directory.
    pub label: Found,
    /// Another directory of the pool that has the files.
    pub elsewhere: Option<String>,
}

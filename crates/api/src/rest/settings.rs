//! Settings of resources and of the cluster.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Value of a setting. As text it has its unit, as on the command line: `10ms`, `64MiB`, `off`. A
/// number counts bytes or pieces; a time needs a unit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum SettingValue {
    Text(String),
    Number(u64),
    Switch(bool),
}

impl SettingValue {
    /// The value as it is typed.
    #[must_use]
    pub fn as_typed(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Number(number) => number.to_string(),
            Self::Switch(true) => "on".to_owned(),
            Self::Switch(false) => "off".to_owned(),
        }
    }
}

/// Changes of settings by name, as a JSON merge patch (RFC 7396): settings that are not named stay
/// as they are, and `null` takes a choice back.
pub type SettingsChange = BTreeMap<String, Option<SettingValue>>;

/// Source of a setting's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SettingSource {
    Default,
    /// Chosen for all resources without a choice of their own.
    Cluster,
    /// Chosen for this resource.
    Resource,
}

/// A setting of a resource or of the cluster. Values are written as on the command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SettingView {
    pub name: String,
    pub value: String,
    pub from: SettingSource,
    pub default: String,
    /// The values that it takes, in words.
    pub values: String,
    /// First release that has it.
    pub since: String,
    pub help: String,
}

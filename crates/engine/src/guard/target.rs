//! The list of what is to be silenced, checked: one target for each resource.

use mainstay_api::engine::GuardEntry;
use mainstay_types::ResourceId;
use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Why a [`GuardEntry`] was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GuardError {
    #[error("{0:?} is not an address with a prefix length")]
    Address(String),
    #[error("{0:?} is not an absolute path")]
    Path(String),
}

/// A checked [`GuardEntry`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GuardTarget {
    pub resource: ResourceId,
    pub cgroups: Vec<PathBuf>,
    /// Floating addresses. They are looked for on every interface.
    pub addresses: Vec<IpAddr>,
    pub mounts: Vec<PathBuf>,
    /// Links to devices of the resource; only what is mounted of them is detached.
    pub devices: Vec<PathBuf>,
}

impl TryFrom<&GuardEntry> for GuardTarget {
    type Error = GuardError;

    fn try_from(entry: &GuardEntry) -> Result<Self, GuardError> {
        let paths = |names: &[String]| -> Result<Vec<PathBuf>, GuardError> {
            let checked = names.iter().map(|name| {
                let path = PathBuf::from(name);
                if path.is_absolute() { Ok(path) } else { Err(GuardError::Path(name.clone())) }
            });
            checked.collect()
        };
        let addresses = entry
            .addresses
            .iter()
            .map(|given| parse_address(&given.address).ok_or(GuardError::Address(given.address.clone())));
        Ok(Self {
            resource: entry.resource,
            cgroups: paths(&entry.cgroups)?,
            addresses: addresses.collect::<Result<_, _>>()?,
            mounts: paths(&entry.mounts)?,
            devices: paths(&entry.devices)?,
        })
    }
}

impl GuardTarget {
    /// Parts of an entry that can be silenced. The function adds the other parts to `problems`, in
    /// words.
    pub(crate) fn usable(entry: &GuardEntry, problems: &mut Vec<String>) -> Self {
        let mut target = Self::nothing_of(entry.resource);
        for (names, paths) in [
            (&entry.cgroups, &mut target.cgroups),
            (&entry.mounts, &mut target.mounts),
            (&entry.devices, &mut target.devices),
        ] {
            for name in names {
                match PathBuf::from(name) {
                    path if path.is_absolute() => paths.push(path),
                    _ => problems.push(GuardError::Path(name.clone()).to_string()),
                }
            }
        }
        for given in &entry.addresses {
            match parse_address(&given.address) {
                Some(address) => target.addresses.push(address),
                None => problems.push(GuardError::Address(given.address.clone()).to_string()),
            }
        }
        target
    }

    pub(crate) fn nothing_of(resource: ResourceId) -> Self {
        Self { resource, cgroups: vec![], addresses: vec![], mounts: vec![], devices: vec![] }
    }
}

fn parse_address(text: &str) -> Option<IpAddr> {
    let (ip, prefix) = text.split_once('/')?;
    let (ip, prefix): (IpAddr, u8) = (ip.parse().ok()?, prefix.parse().ok()?);
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= longest).then_some(ip)
}

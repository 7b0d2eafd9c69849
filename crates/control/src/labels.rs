//! Which directories of a node's pool are its replicas. The agent reads the pool; this says what counts.
//!
//! Guarantees
//! - A directory is a replica only under the name that its label gives it: name and id of the resource (R9). A copy of it, or
//!   what was renamed, has the same label and another name. It is neither opened nor written nor removed, and it is named.
//! - There is at most one replica of a resource. Of two directories that both have their own names, the one counts whose
//!   incarnation this node held last.
//! - A replica that this node has not made is no replica of it (R9, R11): its files come from another node, or from a history that may
//!   be over.
//! - One label that cannot be read costs that directory and no other.

use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Incarnation, ResourceId, reach};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Says in a replica's directory whose it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Label {
    pub resource: ResourceId,
    /// The resource's.
    pub name: String,
    pub incarnation: Incarnation,
}

/// Name of a replica's directory. The id is part of it because names are used again and ids never are.
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

/// Why a directory in the pool is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// It has the label of the replica that belongs in another directory, whose name this is.
    Copy(String),
    /// Another directory holds a replica of the same resource.
    Second(String),
    /// This node has not made the incarnation that the label names.
    Strange(Incarnation),
    NoLabel,
    Unreadable(String),
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy(of) => {
                write!(f, "it has the label of {of}, so it is a copy of that directory, or was renamed")
            }
            Self::Second(other) => write!(f, "{other} holds a replica of the same resource"),
            Self::Strange(incarnation) => {
                write!(f, "it holds incarnation {incarnation}, which this node has not made, or has removed")
            }
            Self::NoLabel => write!(f, "it has lost its label, replica.json"),
            Self::Unreadable(why) => write!(f, "its label, replica.json, cannot be read: {why}"),
        }
    }
}

/// The directories of a pool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Pool {
    /// The replicas, with the names of their directories.
    pub replicas: BTreeMap<ResourceId, (String, Label)>,
    /// Directories that are left alone, by name.
    pub left: BTreeMap<String, Why>,
}

impl Pool {
    /// Leaves alone each replica that this node has not made.
    pub fn keep(&mut self, made: impl Fn(ResourceId, Incarnation) -> bool) {
        let left = &mut self.left;
        self.replicas.retain(|resource, (directory, label)| {
            let own = made(*resource, label.incarnation) || planted(Bug::CopyTakenForReplica);
            if !own {
                left.insert(directory.clone(), Why::Strange(label.incarnation));
            }
            own
        });
    }
}

/// Sorts the directories of a pool. `held`: the incarnations that this node held last, as far as it knows.
#[must_use]
pub fn sort(
    found: impl IntoIterator<Item = (String, Found)>,
    held: &BTreeMap<ResourceId, Incarnation>,
) -> Pool {
    let mut pool = Pool::default();
    for (directory, found) in found {
        let label = match found {
            Found::Label(label) => label,
            Found::NoLabel => {
                pool.left.insert(directory, Why::NoLabel);
                continue;
            }
            Found::Unreadable(why) => {
                pool.left.insert(directory, Why::Unreadable(why));
                continue;
            }
        };
        let own = directory_name(label.resource, &label.name);
        if own != directory && !planted(Bug::CopyTakenForReplica) {
            reach!("control: a directory has the label of another one");
            pool.left.insert(directory, Why::Copy(own));
            continue;
        }
        let resource = label.resource;
        let Some(first) = pool.replicas.remove(&resource) else {
            pool.replicas.insert(resource, (directory, label));
            continue;
        };
        let held_here = |of: &Label| held.get(&resource) == Some(&of.incarnation);
        let second = (directory, label);
        let instead = held_here(&second.1) && !held_here(&first.1) || planted(Bug::CopyTakenForReplica);
        let (counts, other) = if instead { (second, first) } else { (first, second) };
        pool.left.insert(other.0, Why::Second(counts.0.clone()));
        pool.replicas.insert(resource, counts);
    }
    pool
}

#[cfg(test)]
mod tests {
    use super::*;

    const DB: ResourceId = ResourceId(1);

    fn label(name: &str, incarnation: u64) -> Found {
        Found::Label(Label { resource: DB, name: name.into(), incarnation: Incarnation(incarnation) })
    }

    fn pool(found: &[(&str, Found)], held: u64) -> (Option<String>, Vec<(String, Why)>) {
        let found = found.iter().map(|(directory, found)| ((*directory).to_owned(), found.clone()));
        let pool = sort(found, &BTreeMap::from([(DB, Incarnation(held))]));
        (pool.replicas.get(&DB).map(|(directory, _)| directory.clone()), pool.left.into_iter().collect())
    }

    /// R9: whatever the order in which a directory is read, and whatever else is there.
    #[test]
    fn only_the_directory_with_its_own_name_is_a_replica() {
        let copy = || ("db-copy".to_owned(), Why::Copy("db-1".into()));
        let own = ("db-1", label("db", 9));
        let other = ("db-copy", label("db", 9));
        assert_eq!(pool(&[own.clone(), other.clone()], 9), (Some("db-1".into()), vec![copy()]));
        assert_eq!(pool(&[other.clone(), own], 9), (Some("db-1".into()), vec![copy()]));
        assert_eq!(
            pool(&[other], 9),
            (None, vec![copy()]),
            "a renamed directory does not come back by itself"
        );
    }

    #[test]
    fn of_two_replicas_of_one_resource_the_one_counts_that_was_here_last() {
        let two = [("db-1", label("db", 9)), ("xx-1", label("xx", 5))];
        let left = |directory: &str, counts: &str| vec![(directory.to_owned(), Why::Second(counts.into()))];
        assert_eq!(pool(&two, 9), (Some("db-1".into()), left("xx-1", "db-1")));
        assert_eq!(pool(&two, 5), (Some("xx-1".into()), left("db-1", "xx-1")));
        assert_eq!(pool(&two, 7), (Some("db-1".into()), left("xx-1", "db-1")));
    }

    /// R9, R11: an operator has copied the directory from another node, or kept it from before a promotion by force.
    #[test]
    fn a_directory_that_this_node_has_not_made_is_no_replica() {
        let sorted = |made: u64| {
            let mut pool = sort([("db-1".to_owned(), label("db", 9))], &BTreeMap::new());
            pool.keep(|resource, incarnation| resource == DB && incarnation == Incarnation(made));
            pool
        };
        assert!(sorted(9).replicas.contains_key(&DB) && sorted(9).left.is_empty());
        let left = BTreeMap::from([("db-1".to_owned(), Why::Strange(Incarnation(9)))]);
        assert_eq!(sorted(8), Pool { replicas: BTreeMap::new(), left });
    }

    #[test]
    fn a_label_that_cannot_be_read_costs_its_own_directory() {
        let unreadable = Found::Unreadable("it is empty".into());
        let found = [("db-1", label("db", 9)), ("logs-2", unreadable), ("web-3", Found::NoLabel)];
        let left = vec![
            ("logs-2".to_owned(), Why::Unreadable("it is empty".into())),
            ("web-3".to_owned(), Why::NoLabel),
        ];
        assert_eq!(pool(&found, 9), (Some("db-1".into()), left));
    }
}

//! Which directories of a node's pool are its replicas. The agent reads the pool; this says what
//! counts.
//!
//! Guarantees
//! - A directory is a replica only under the name that its label gives it: name and id of the
//!   resource (R9). A copied or renamed directory has the same label and another name. Mainstay
//!   neither opens, writes nor removes such a directory, and names it to the operator.
//! - There is at most one replica of a resource. If two directories both have their own names, the
//!   incarnation that this node held last counts.
//! - A replica that this node has not made is no replica of it (R9, R11): its files come from
//!   another node, or from a history that may be over.
//! - A label that cannot be read costs only its own directory.
//! - A replica whose files the engine has open, and whose directory is not in its place any more,
//!   is out of use ([`stands`]): the next start would not find what it acknowledges. Mainstay never
//!   calls a directory unused while the engine has its files open.

pub use mainstay_types::label::{Found, Label, Look, directory_name};
use mainstay_types::simulation::{Bug, planted};
use mainstay_types::{Incarnation, ResourceId, reach};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Why a directory in the pool is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Why {
    /// The directory has the label of a replica that belongs in another directory. The field is the
    /// name of that other directory.
    Copy(String),
    /// The directory has such a label too, and the pool has no directory of that name.
    Renamed(String),
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
            Self::Renamed(from) => {
                write!(f, "it has the label of {from}, which is not in the pool, so it was renamed")
            }
            Self::Second(other) => write!(f, "{other} holds a replica of the same resource"),
            Self::Strange(incarnation) => {
                write!(f, "it holds incarnation {incarnation}, which this node has not made, or has removed")
            }
            Self::NoLabel => {
                write!(f, "it has no label, replica.json, so it is not Mainstay's, or has lost its label")
            }
            Self::Unreadable(why) => write!(f, "its label, replica.json, cannot be read: {why}"),
        }
    }
}

/// Text for the operator about a path of a node: the predicate of a sentence that begins with the
/// path, and the way out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Notice {
    pub what: String,
    pub remedy: String,
}

/// The way out where a directory is of no use to Mainstay.
pub const MOVE_OUT: &str = "if you do not need it, move it out of the pool; Mainstay never removes it";

impl Why {
    /// Text for the operator about the directory `name` of the pool at `pool`.
    #[must_use]
    pub fn notice(&self, pool: &str, name: &str) -> Notice {
        let remedy = match self {
            Self::Renamed(from) => format!(
                "if it is the replica, rename it back: {}; the node notices that by itself; {MOVE_OUT}",
                move_back(pool, name, from)
            ),
            _ => MOVE_OUT.to_owned(),
        };
        Notice { what: format!("is not used: {self}"), remedy }
    }
}

/// Command that gives a directory of the pool its name back, durably.
#[must_use]
pub fn move_back(pool: &str, now: &str, own: &str) -> String {
    let (from, to) = (quoted(&format!("{pool}/{now}")), quoted(&format!("{pool}/{own}")));
    format!("`mv -T {from} {to} && sync {}`", quoted(pool))
}

/// Command that moves a directory out of the pool, into the state directory `aside`, durably.
#[must_use]
pub fn move_out(pool: &str, own: &str, aside: &str) -> String {
    let (from, to) = (quoted(&format!("{pool}/{own}")), quoted(&format!("{aside}/{own}.moved")));
    format!("`mv -T {from} {to} && sync {} {}`", quoted(pool), quoted(aside))
}

/// A word of a shell command.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Where a replica stands whose files the engine has open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stands {
    InPlace,
    /// Its directory is in place, and its label is missing or damaged.
    Unlabelled,
    /// Its directory is in place with the label of another replica.
    OtherLabel(Label),
    /// The directory has this name now, and nothing has its own name.
    Renamed(String),
    /// These files of its directory are gone, or were replaced.
    Lacks(Vec<String>),
    /// The directory is gone from the pool.
    Gone,
    /// Another directory has its name. The directory itself may have this name now.
    Replaced(Option<String>),
}

/// Judges where a replica stands whose files the engine has open, under this label.
#[must_use]
pub fn stands(label: &Label, look: &Look) -> Stands {
    if look.missing.is_empty() {
        return match &look.label {
            Found::Label(found) if found == label => Stands::InPlace,
            Found::Label(found) => Stands::OtherLabel(found.clone()),
            Found::NoLabel | Found::Unreadable(_) => Stands::Unlabelled,
        };
    }
    match (look.missing.iter().any(|file| file == "meta"), look.taken, &look.elsewhere) {
        (false, ..) => Stands::Lacks(look.missing.clone()),
        (true, true, elsewhere) => Stands::Replaced(elsewhere.clone()),
        (true, false, Some(now)) => Stands::Renamed(now.clone()),
        (true, false, None) => Stands::Gone,
    }
}

impl Stands {
    /// Reason why the replica is out of use, for the directory `own` of the pool at `pool`; `None`
    /// if it can go on.
    #[must_use]
    pub fn failure(&self, pool: &str, own: &str) -> Option<String> {
        if planted(Bug::MovedDirectoryStays) {
            return None;
        }
        Some(match self {
            Self::InPlace | Self::Unlabelled | Self::OtherLabel(_) | Self::Renamed(_) => return None,
            Self::Lacks(files) => format!(
                "files of the running replica are gone from {pool}/{own}, or were replaced: {}",
                files.join(", ")
            ),
            Self::Gone => {
                format!(
                    "the directory of the running replica, {pool}/{own}, is gone from the pool (moved or deleted)"
                )
            }
            Self::Replaced(None) => format!(
                "the directory of the running replica is gone from the pool (moved or deleted), and {pool}/{own} is another one"
            ),
            Self::Replaced(Some(now)) => format!(
                "the directory of the running replica was renamed to {pool}/{now}, and {pool}/{own} is another one"
            ),
        })
    }

    /// The directory of the pool that has the files, and the text for the operator about it;
    /// `label` is the JSON text of the label that belongs there. `None` if all is well, and if no
    /// directory of the pool has the files.
    #[must_use]
    pub fn notice(&self, pool: &str, own: &str, label: &str) -> Option<(String, Notice)> {
        let (name, what, remedy) = match self {
            Self::InPlace | Self::Lacks(_) | Self::Gone | Self::Replaced(None) => return None,
            Self::Unlabelled => (
                own,
                "is in use and has lost its label, replica.json".to_owned(),
                format!("put it back: {}", write_label(pool, own, label)),
            ),
            Self::OtherLabel(other) => (
                own,
                format!(
                    "is in use, and its replica.json is the label of another replica, of {} (resource number {}, incarnation {:016x})",
                    other.name, other.resource.0, other.incarnation.0
                ),
                format!(
                    "keep that label elsewhere if you need it, then put the right one back: {}",
                    write_label(pool, own, label)
                ),
            ),
            Self::Renamed(now) => (
                now.as_str(),
                format!("is in use at this moment: it was renamed from {own}"),
                format!("rename it back: {}", move_back(pool, now, own)),
            ),
            Self::Replaced(Some(now)) => (
                now.as_str(),
                format!(
                    "is in use at this moment: it was renamed from {own}, and {own} is another directory now"
                ),
                format!(
                    "move {own} out of the pool, then rename this one back: {}",
                    move_back(pool, now, own)
                ),
            ),
        };
        Some((name.to_owned(), Notice { what, remedy }))
    }
}

/// Command that writes a label, the JSON text `label`, and replaces whatever file is in its place.
/// It does not follow a link. When the command has ended, the label survives a power cut.
#[must_use]
pub fn write_label(pool: &str, own: &str, label: &str) -> String {
    let file = quoted(&format!("{pool}/{own}/replica.json"));
    let directory = quoted(&format!("{pool}/{own}"));
    format!("`rm -f {file} && echo '{label}' > {file} && sync {file} {directory}`")
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

/// Sorts the directories of a pool. `held`: the incarnations that this node held last, as far as it
/// knows.
#[must_use]
pub fn sort(
    found: impl IntoIterator<Item = (String, Found)>,
    held: &BTreeMap<ResourceId, Incarnation>,
) -> Pool {
    let mut pool = Pool::default();
    let mut names = BTreeSet::new();
    for (directory, found) in found {
        names.insert(directory.clone());
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
    for why in pool.left.values_mut() {
        if let Why::Copy(own) = why
            && !names.contains(own)
        {
            *why = Why::Renamed(own.clone());
        }
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
            (None, vec![("db-copy".to_owned(), Why::Renamed("db-1".into()))]),
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

    /// R9, R11: an operator has copied the directory from another node, or kept it from before a
    /// promotion by force.
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

    fn mine() -> Label {
        Label { resource: DB, name: "db".into(), incarnation: Incarnation(9) }
    }

    fn look(missing: &[&str], taken: bool, label: Found, elsewhere: Option<&str>) -> Stands {
        let missing = missing.iter().map(|&file| file.to_owned()).collect();
        stands(&mine(), &Look { missing, taken, label, elsewhere: elsewhere.map(str::to_owned) })
    }

    /// An operator moves, renames, replaces or deletes the directory of a replica while its engine
    /// has it open.
    #[test]
    fn a_running_replica_whose_directory_is_gone_is_out_of_use() {
        let own = || Found::Label(mine());
        let all = &["meta", "journal", "vol0"];
        assert_eq!(look(&[], true, own(), None), Stands::InPlace);
        assert_eq!(look(all, false, Found::NoLabel, None), Stands::Gone);
        assert_eq!(look(all, false, Found::NoLabel, Some("db-1.new")), Stands::Renamed("db-1.new".into()));
        assert_eq!(look(all, true, own(), Some("db-1.new")), Stands::Replaced(Some("db-1.new".into())));
        assert_eq!(look(all, true, label("db", 8), None), Stands::Replaced(None));
        assert_eq!(look(&["vol0"], true, own(), None), Stands::Lacks(vec!["vol0".into()]));
        let failure = |stands: Stands| stands.failure("/p", "db-1").unwrap_or_default();
        assert!(failure(Stands::Gone).contains("/p/db-1, is gone from the pool (moved or deleted)"));
        assert!(
            failure(Stands::Replaced(Some("x".into())))
                .contains("renamed to /p/x, and /p/db-1 is another one")
        );
        assert!(failure(Stands::Lacks(vec!["vol0".into()])).contains("vol0"));
        for goes_on in [Stands::InPlace, Stands::Unlabelled, Stands::Renamed("x".into())] {
            assert_eq!(goes_on.failure("/p", "db-1"), None, "{goes_on:?}");
        }
    }

    /// If the operator followed the advice to move this directory out of the pool, the replica
    /// would lose its files.
    #[test]
    fn a_directory_in_use_is_never_called_unused() {
        let cases = [
            (
                look(&[], true, Found::NoLabel, None),
                "db-1",
                "put it back: `rm -f /p/db-1/replica.json && echo",
            ),
            (look(&[], true, Found::Unreadable("it is empty".into()), None), "db-1", "put it back: `rm -f"),
            (look(&[], true, label("logs", 5), None), "db-1", "put the right one back: `rm -f"),
            (
                look(&["meta"], false, Found::NoLabel, Some("db new")),
                "db new",
                "`mv -T '/p/db new' /p/db-1 && sync /p`",
            ),
            (look(&["meta"], true, label("db", 9), Some("x")), "x", "move db-1 out of the pool, then rename"),
        ];
        for (stands, directory, remedy) in cases {
            let (name, notice) = stands.notice("/p", "db-1", "{}").expect("something to say");
            assert_eq!(name, directory);
            assert!(notice.what.starts_with("is in use"), "{notice:?}");
            assert!(notice.remedy.contains(remedy) && !notice.remedy.contains(MOVE_OUT), "{notice:?}");
        }
        assert_eq!(Stands::InPlace.notice("/p", "db-1", "{}"), None);
    }

    #[test]
    fn a_renamed_replica_is_named_with_the_command_that_renames_it_back() {
        let notice = Why::Renamed("db-1".into()).notice("/p", "db-1.moved");
        assert!(notice.what.contains("label of db-1, which is not in the pool"), "{notice:?}");
        assert!(
            notice.remedy.contains("rename it back: `mv -T /p/db-1.moved /p/db-1 && sync /p`"),
            "{notice:?}"
        );
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

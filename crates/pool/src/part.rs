//! Parts of a replica: what a pool keeps for it under a name of its own.

use mainstay_types::{Area, SnapshotId, VolumeId};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Prefix of the parts of what a replica held before it was copied to.
const BEFORE_COPY: &str = "before-copy-";
/// Prefix of the parts of a snapshot.
const SNAPSHOT: &str = "snap";
/// Prefix of the parts of a layer whose snapshot was deleted.
const GONE: &str = "gone";
const MARKS: &str = "marks";
/// End of the name of a part that is being written.
pub(crate) const HALF: &str = "new";

/// Part of a replica. Its text is the name by which agent and engine speak of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    Area(Area),
    /// A volume, or the sums of one, as of a snapshot.
    Snapshot(SnapshotId, Area),
    Layer(LayerPart),
    /// Stamps of the sums that the replica wrote last.
    Marks,
}

/// Part of a snapshot in a pool that cannot clone: content of a volume that was put aside before it
/// was overwritten.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct LayerPart {
    pub snapshot: SnapshotId,
    pub volume: VolumeId,
    pub kind: LayerKind,
    /// The snapshot was deleted, and an older one may find something in its layer.
    pub gone: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LayerKind {
    /// Map of the chunks that were put aside.
    Map,
    /// The chunks.
    Old,
}

/// Part of a replica that is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    pub part: Part,
    /// Whether the part was still being made.
    pub half: bool,
    pub path: PathBuf,
}

impl Part {
    /// Map of a layer whose snapshot is there.
    #[must_use]
    pub fn map(snapshot: SnapshotId, volume: VolumeId) -> Self {
        Self::Layer(LayerPart { snapshot, volume, kind: LayerKind::Map, gone: false })
    }

    /// The snapshot that the part is of; `None` also for a layer whose snapshot is gone.
    #[must_use]
    pub fn snapshot(self) -> Option<SnapshotId> {
        match self {
            Self::Snapshot(snapshot, _) => Some(snapshot),
            Self::Layer(layer) if !layer.gone => Some(layer.snapshot),
            _ => None,
        }
    }

    /// The part that a name is of, and whether it is the name of one that is being written.
    #[must_use]
    pub fn named(name: &str) -> Option<(Self, bool)> {
        let (name, half) = match name.rsplit_once('.') {
            Some((name, HALF)) => (name, true),
            _ => (name, false),
        };
        let part = match name {
            MARKS => Self::Marks,
            _ => area(name).map(Self::Area).or_else(|| of_snapshot(name))?,
        };
        // Areas are made where nothing else is yet.
        (!half || !matches!(part, Self::Area(_))).then_some((part, half))
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Area(Area::Meta) => write!(f, "meta"),
            Self::Area(Area::Journal) => write!(f, "journal"),
            Self::Area(Area::Volume(volume)) => write!(f, "vol{}", volume.0),
            Self::Area(Area::Sums(volume)) => write!(f, "sums{}", volume.0),
            Self::Snapshot(SnapshotId::BEFORE_COPY, area) => write!(f, "{BEFORE_COPY}{}", Self::Area(*area)),
            Self::Snapshot(snapshot, area) => write!(f, "{SNAPSHOT}{}-{}", snapshot.0, Self::Area(*area)),
            Self::Layer(LayerPart { snapshot, volume, kind, gone }) => {
                let prefix = if *gone { GONE } else { SNAPSHOT };
                let kind = if *kind == LayerKind::Map { "map" } else { "old" };
                write!(f, "{prefix}{}-{kind}{}", snapshot.0, volume.0)
            }
            Self::Marks => f.write_str(MARKS),
        }
    }
}

fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn numbered(name: &str, kind: &str) -> Option<VolumeId> {
    name.strip_prefix(kind).and_then(number).map(VolumeId)
}

fn of_volume(name: &str) -> Option<Area> {
    let sums = || numbered(name, "sums").map(Area::Sums);
    numbered(name, "vol").map(Area::Volume).or_else(sums)
}

fn area(name: &str) -> Option<Area> {
    match name {
        "meta" => Some(Area::Meta),
        "journal" => Some(Area::Journal),
        _ => of_volume(name),
    }
}

fn of_snapshot(name: &str) -> Option<Part> {
    if let Some(kept) = name.strip_prefix(BEFORE_COPY) {
        return of_volume(kept).map(|area| Part::Snapshot(SnapshotId::BEFORE_COPY, area));
    }
    let (gone, rest) = match name.strip_prefix(SNAPSHOT) {
        Some(rest) => (false, rest),
        None => (true, name.strip_prefix(GONE)?),
    };
    let (snapshot, of) = rest.split_once('-')?;
    let snapshot = SnapshotId(number(snapshot)?);
    let layer = [("map", LayerKind::Map), ("old", LayerKind::Old)].into_iter().find_map(|(name, kind)| {
        let volume = numbered(of, name)?;
        Some(Part::Layer(LayerPart { snapshot, volume, kind, gone }))
    });
    layer.or_else(|| of_volume(of).filter(|_| !gone).map(|area| Part::Snapshot(snapshot, area)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_snapshot_a_file_is_of() {
        let volume = VolumeId(3);
        for (name, part) in [
            ("snap12-vol3", Part::Snapshot(SnapshotId(12), Area::Volume(volume))),
            ("snap12-sums3", Part::Snapshot(SnapshotId(12), Area::Sums(volume))),
            ("before-copy-vol3", Part::Snapshot(SnapshotId::BEFORE_COPY, Area::Volume(volume))),
            ("before-copy-sums3", Part::Snapshot(SnapshotId::BEFORE_COPY, Area::Sums(volume))),
            ("snap12-map3", Part::map(SnapshotId(12), volume)),
        ] {
            assert_eq!((part.to_string().as_str(), Part::named(name)), (name, Some((part, false))));
            assert_eq!(Part::named(&format!("{name}.new")), Some((part, true)));
            assert!(part.snapshot().is_some());
        }
        for (name, kind) in [("gone2-map3", LayerKind::Map), ("gone2-old3", LayerKind::Old)] {
            let part = Part::Layer(LayerPart { snapshot: SnapshotId(2), volume, kind, gone: true });
            assert_eq!((part.to_string().as_str(), Part::named(name)), (name, Some((part, false))));
            assert_eq!(part.snapshot(), None);
        }
        for name in ["meta", "journal", "vol0", "sums0", "marks"] {
            let (part, half) = Part::named(name).expect("a part");
            assert_eq!((part.to_string().as_str(), half, part.snapshot()), (name, false, None));
        }
        for other in [
            "before-copy-",
            "snapx-vol0",
            "snap7",
            "snap7-journal",
            "snap-vol0",
            "snap1-dump",
            "snap+7-vol0",
            "gone7-vol0",
            "vol",
            "vol0.new",
            "notes.txt",
        ] {
            assert_eq!(Part::named(other), None, "{other}");
        }
    }
}

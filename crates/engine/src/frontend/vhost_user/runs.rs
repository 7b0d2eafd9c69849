//! Since when no other node was primary: what decides whether a machine that was cut off may go on.
//!
//! A file in the run directory names, for each resource, the unbroken run of epochs in which this node was primary. Epochs
//! rise by one with every promotion (R5), so an epoch that follows the last one of the run and has this node as its primary
//! leaves no room for another primary in between. A file that is missing, as after a restart of the machine, begins a new run:
//! there is no virtual machine left then that could be of the past.

use mainstay_types::{Epoch, ResourceId};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// This node is primary in `epoch`: since which epoch has it been, without a gap?
///
/// # Errors
/// When it cannot be noted for the next engine.
pub fn since(directory: &Path, resource: ResourceId, epoch: Epoch) -> io::Result<Epoch> {
    let path = directory.join(format!("{}.epochs", resource.0));
    let first = match read(&path) {
        Some((first, last)) if epoch.0 == last.0 || Some(epoch.0) == last.0.checked_add(1) => first,
        _ => epoch,
    };
    write(&path, first, epoch)?;
    Ok(first)
}

fn read(path: &PathBuf) -> Option<(Epoch, Epoch)> {
    let text = fs::read_to_string(path).ok()?;
    let mut words = text.split_ascii_whitespace().map(|word| word.parse().ok().map(Epoch));
    match (words.next()??, words.next()??) {
        (first, last) if first <= last => Some((first, last)),
        _ => None,
    }
}

/// Written under another name first: an engine may die at any time.
fn write(path: &Path, first: Epoch, last: Epoch) -> io::Result<()> {
    let fresh = path.with_extension("new");
    fs::write(&fresh, format!("{} {}\n", first.0, last.0))?;
    fs::rename(fresh, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_begins_a_new_run() {
        let directory = std::env::temp_dir().join(format!("mainstay-vhost-epochs-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let at = |epoch| since(&directory, ResourceId(7), Epoch(epoch)).expect("noted").0;
        assert_eq!((at(4), at(4), at(5), at(6)), (4, 4, 4, 4));
        assert_eq!((at(8), at(9)), (8, 8), "somebody else may have been primary in 7");
        assert_eq!(at(3), 3, "another history");
        assert_eq!(since(&directory, ResourceId(8), Epoch(9)).expect("noted"), Epoch(9));
        for noise in ["", "4", "9 4", "a b", "4 99999999999999999999"] {
            fs::write(directory.join("7.epochs"), noise).expect("written");
            assert_eq!(at(10), 10, "{noise:?}");
        }
        fs::remove_dir_all(&directory).expect("removed");
    }
}

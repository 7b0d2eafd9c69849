//! Bytes that are written to the machine's disk and sent between the nodes of a lab, for each
//! operation.
//!
//! The disk's counter is that of the whole device on which all nodes of a lab lie: all copies,
//! journals and file systems are in it, and so is what other programs write. The switch of the lab
//! counts what nodes send. What they send to the client is no replication, so it is taken off.
//!
//! A database writes its pages after the transactions, and a journal is emptied later still. So the
//! bytes are counted from one moment at which nothing is written to the next one, and divided by
//! all operations in between, those of the warm-up included.

use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Unit of the kernel's counters of block devices, in bytes, whatever the device's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Counters at one moment, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Written to the disk.
    pub disk: u64,
    /// Sent from nodes to nodes.
    pub wire: u64,
}

/// Bytes of one run with its warm-up and its consequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Bytes {
    /// Written to the disk, until nothing was written any more.
    pub disk: u64,
    /// The part of it that was written after the run's end.
    pub disk_later: u64,
    /// Sent from nodes to nodes.
    pub wire: u64,
    /// Operations of the warm-up and of the run.
    pub operations: u64,
}

impl Bytes {
    /// Bytes between the counters at the beginning, at the run's end, and when all was quiet.
    #[must_use]
    pub fn between(begin: Counters, end: Counters, quiet: Counters, operations: u64) -> Self {
        Self {
            disk: quiet.disk.saturating_sub(begin.disk),
            disk_later: quiet.disk.saturating_sub(end.disk),
            wire: quiet.wire.saturating_sub(begin.wire),
            operations,
        }
    }

    /// A number of bytes for each operation.
    #[must_use]
    pub fn each(&self, bytes: u64) -> f64 {
        bytes as f64 / self.operations.max(1) as f64
    }
}

/// The file with the counters of the block device that a path lies on. `None` where the file system
/// has none of its own.
#[must_use]
pub fn disk_of(path: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(path).ok()?.dev();
    // As the kernel packs the two numbers; see makedev(3).
    let major = ((device >> 32) & 0xffff_f000) | ((device >> 8) & 0xfff);
    let minor = ((device >> 12) & 0xffff_ff00) | (device & 0xff);
    let file = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    file.exists().then_some(file)
}

/// Bytes written, from the line that a device's `stat` holds.
#[must_use]
pub fn written(stat: &str) -> Option<u64> {
    stat.split_whitespace().nth(6)?.parse::<u64>().ok().map(|sectors| sectors * SECTOR_BYTES)
}

/// Bytes that the ports `nodes` of a switch have sent to each other, from its `/proc/net/dev`. All
/// other ports are receivers that do not count. `None` when a node has no port.
#[must_use]
pub fn between_nodes(dev: &str, nodes: &[&str]) -> Option<u64> {
    let ports = dev.lines().filter_map(|line| {
        let (name, counters) = line.split_once(':')?;
        let counters: Vec<u64> = counters.split_whitespace().map_while(|word| word.parse().ok()).collect();
        // A port's first counter is of bytes that the switch has received there, its ninth of bytes
        // that the switch has sent.
        Some((name.trim(), *counters.first()?, *counters.get(8)?))
    });
    let (mut sent, mut elsewhere, mut found) = (0, 0, 0);
    for (name, received, delivered) in ports {
        if nodes.contains(&name) {
            (sent, found) = (sent + received, found + 1);
        } else if !["lo", "bridge"].contains(&name) {
            elsewhere += delivered;
        }
    }
    (found == nodes.len()).then_some(u64::saturating_sub(sent, elsewhere))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_device_are_read() {
        let stat =
            "  229171   48 18364650   160143  2563440  1163017 154214000  9172311  0 1 2 3 4 5 6 7 8\n";
        assert_eq!(written(stat), Some(154_214_000 * 512));
        assert_eq!(written("1 2 3"), None);
        if let Some(file) = disk_of(Path::new("/")) {
            assert!(written(&std::fs::read_to_string(file).unwrap()).is_some());
        }
    }

    #[test]
    fn what_the_client_receives_is_no_replication() {
        let dev = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       7       1    0    0    0     0          0         0        7       1    0    0    0     0       0          0
bridge:      99       1    0    0    0     0          0         0       99       1    0    0    0     0       0          0
client:     500       1    0    0    0     0          0         0      300       1    0    0    0     0       0          0
    n1:    1300       1    0    0    0     0          0         0      700       1    0    0    0     0       0          0
    n2:     100       1    0    0    0     0          0         0      600       1    0    0    0     0       0          0
    n3:     100       1    0    0    0     0          0         0      600       1    0    0    0     0       0          0
";
        assert_eq!(between_nodes(dev, &["n1", "n2", "n3"]), Some(1200));
        assert_eq!(between_nodes(dev, &["n1", "n4"]), None);
        assert_eq!(between_nodes("", &["n1"]), None);
    }

    #[test]
    fn bytes_are_those_from_quiet_to_quiet() {
        let at = |disk, wire| Counters { disk, wire };
        let bytes = Bytes::between(at(1000, 10), at(4000, 300), at(5000, 310), 10);
        assert_eq!((bytes.disk, bytes.disk_later, bytes.wire), (4000, 1000, 300));
        assert_eq!((bytes.each(bytes.disk), bytes.each(bytes.wire)), (400.0, 30.0));
    }
}

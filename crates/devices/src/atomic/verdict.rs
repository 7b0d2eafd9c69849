//! Decision whether a page can tear: facts in, answer out. Pure.
//!
//! Guarantees
//! - The answer is yes only if every fact that the promise needs was seen and fits. A fact that is
//!   missing is a reason for no.
//! - Each reason has a stable code, says what was found, and what to do.
//!
//! Why a fact matters: the engine makes one entry of the log of each write request of up to
//! [`REQUEST_BYTES_MAX`], and an entry is whole or absent on every replica (R26). So a page cannot
//! tear if it never lies in two requests. It must therefore reach the block layer in one piece,
//! which is the file system's business, and nothing below may cut that piece.

use super::pages::Pages;
use crate::block_queue::uncut_bytes;
use mainstay_types::{DATABASE_PAGE_BYTES, REQUEST_BYTES_MAX};
use serde::Serialize;
use std::collections::BTreeMap;

/// First Linux with which the claim was tested by others (AWS) and by us.
const KERNEL_MIN: (u32, u32) = (5, 10);
/// Memory pages in a request that FUSE must be allowed: as long as a request may be.
const FUSE_PAGES_MIN: u64 = REQUEST_BYTES_MAX / MEMORY_PAGE_BYTES;
const MEMORY_PAGE_BYTES: u64 = 4096;
/// Value by which the block layer says that segments have no limit.
const UNLIMITED: u64 = 0xffff_ffff;
/// Files that are named for one reason.
const EXAMPLES_MAX: usize = 5;

/// How the database writes its pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Writes {
    /// With O_DIRECT, one page in one call.
    Direct,
    /// Through the page cache.
    Buffered,
}

/// The file system that holds the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileSystem {
    Ext4 {
        block: u64,
        /// Bytes that are reserved together: a cluster with bigalloc, otherwise a block.
        cluster: u64,
        /// Place of the first cluster on the device, in bytes.
        first: u64,
        journals_data: bool,
    },
    Xfs {
        block: u64,
        has_realtime: bool,
    },
    /// Any other, by its name.
    Other(String),
}

impl FileSystem {
    /// Words for a line of output.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Self::Ext4 { block, cluster, .. } if cluster > block => {
                format!("ext4 with clusters of {cluster} bytes (blocks of {block})")
            }
            Self::Ext4 { block, .. } => format!("ext4 with blocks of {block} bytes"),
            Self::Xfs { block, .. } => format!("XFS with blocks of {block} bytes"),
            Self::Other(name) => name.clone(),
        }
    }
}

/// Kind of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Owner {
    /// A loop device on the FUSE file of an engine.
    Loop {
        is_direct: bool,
        /// Whether it shows a part of the file only.
        is_part: bool,
        /// Most memory pages in a request of FUSE; `None` if the kernel has no such limit.
        fuse_pages: Option<u64>,
    },
    Ublk,
    /// The kernel's nbd driver, connected by the engine of this node.
    Nbd,
    /// No device of Mainstay, and why.
    Foreign(String),
}

/// Limits of a block device's queue, in bytes; `None` where the kernel does not tell.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Limits {
    pub logical_block: Option<u64>,
    pub request: Option<u64>,
    /// Pieces of memory in one request.
    pub segments: Option<u64>,
    pub segment: Option<u64>,
    /// No request crosses a multiple of it. 0: there is no such limit.
    pub chunk: Option<u64>,
    /// Bits in which the end of a piece of memory must be zero. 0: there is no such limit.
    pub gap_mask: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// For example `/dev/loop3`.
    pub path: String,
    /// Name in `/sys/block`, for advice.
    pub queue: String,
    pub owner: Owner,
    /// Place of the file system on that device, in bytes: a partition has one.
    pub start: u64,
    pub limits: Limits,
}

/// Something about one file because of which its pages can tear.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Trouble {
    /// On another file system.
    Elsewhere,
    Cut,
    Mixed,
    Shared,
    /// Encoded, encrypted, or in the blocks of other data.
    Odd,
    /// The file system writes it through the page cache whatever the database asks.
    NoDirect,
    /// A process has it open for writing without O_DIRECT.
    OpenBuffered,
}

/// Files with one trouble.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Examples {
    pub files: u64,
    pub named: Vec<String>,
}

/// Findings about the files. Its memory does not grow with their number.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Files {
    pub files: u64,
    /// Pages that have a place on the device.
    pub pages: u64,
    pub troubles: BTreeMap<Trouble, Examples>,
}

impl Files {
    /// Adds a file.
    pub fn add(&mut self, name: &str, pages: Pages) {
        self.files += 1;
        self.pages += pages.placed;
        if pages.cut > 0 {
            self.note(Trouble::Cut, &format!("{name} ({} of {} pages)", pages.cut, pages.placed));
        }
        if pages.mixed > 0 {
            self.note(Trouble::Mixed, &format!("{name} ({} of {} pages)", pages.mixed, pages.placed));
        }
    }

    /// Adds a trouble of a file.
    pub fn note(&mut self, trouble: Trouble, name: &str) {
        let examples = self.troubles.entry(trouble).or_default();
        examples.files += 1;
        if examples.named.len() < EXAMPLES_MAX {
            examples.named.push(name.to_owned());
        }
    }
}

/// Everything on which the answer depends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Bytes of a page, one of [`DATABASE_PAGE_BYTES`].
    pub page: u64,
    pub writes: Writes,
    /// Major and minor number of the running Linux; `None` if it was not understood.
    pub kernel: Option<(u32, u32)>,
    pub file_system: FileSystem,
    pub device: Device,
    pub files: Files,
}

/// A reason for no.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// Stable name of the reason.
    pub code: &'static str,
    pub found: String,
    pub remedy: String,
    /// Files that have it, a few of them by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub examples: Vec<String>,
}

/// The answer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// Whether no page can tear.
    pub atomic: bool,
    pub page: u64,
    pub writes: Writes,
    pub device: String,
    pub file_system: String,
    /// Data files that were looked at.
    pub files: u64,
    /// Pages of them that have a place on the device.
    pub pages: u64,
    /// Reasons for no.
    pub findings: Vec<Finding>,
    /// Condition under which the answer yes holds; empty with no.
    pub condition: String,
}

/// Decides.
#[must_use]
pub fn judge(facts: &Facts) -> Answer {
    let mut judge = Judge { facts, findings: Vec::new() };
    judge.page();
    judge.kernel();
    judge.owner();
    judge.limits();
    judge.file_system();
    judge.files();
    let atomic = judge.findings.is_empty();
    Answer {
        atomic,
        page: facts.page,
        writes: facts.writes,
        device: facts.device.path.clone(),
        file_system: facts.file_system.words(),
        files: facts.files.files,
        pages: facts.files.pages,
        findings: judge.findings,
        condition: if atomic { condition(facts) } else { String::new() },
    }
}

fn condition(facts: &Facts) -> String {
    let page = facts.page;
    match facts.writes {
        Writes::Direct => format!(
            "The database must write each page of {page} bytes in one call with O_DIRECT: MariaDB and MySQL \
             do with `innodb_flush_method=O_DIRECT`. It does not hold for writes through the page cache."
        ),
        Writes::Buffered => format!(
            "The database must write each page of {page} bytes in one call, at a multiple of its size, as \
             PostgreSQL does."
        ),
    }
}

struct Judge<'a> {
    facts: &'a Facts,
    findings: Vec<Finding>,
}

impl Judge<'_> {
    fn no(&mut self, code: &'static str, found: impl Into<String>, remedy: impl Into<String>) {
        self.findings.push(Finding {
            code,
            found: found.into(),
            remedy: remedy.into(),
            examples: Vec::new(),
        });
    }

    fn page(&mut self) {
        let page = self.facts.page;
        if !DATABASE_PAGE_BYTES.contains(&page) {
            let sizes = DATABASE_PAGE_BYTES.map(|bytes| bytes.to_string()).join(", ");
            self.no(
                "page-size",
                format!("a page of {page} bytes is none that is promised"),
                format!("Give one of {sizes} with --page."),
            );
        }
    }

    fn kernel(&mut self) {
        let (major, minor) = KERNEL_MIN;
        match self.facts.kernel {
            Some(found) if found >= KERNEL_MIN => {}
            Some((a, b)) => self.no(
                "kernel-old",
                format!("this is Linux {a}.{b}, and the claim was tested from {major}.{minor} on"),
                "Use a newer kernel.",
            ),
            None => self.no(
                "kernel-unknown",
                "the release of this kernel is not understood",
                "Use a kernel of a distribution.",
            ),
        }
    }

    fn owner(&mut self) {
        let device = &self.facts.device;
        let path = &device.path;
        match &device.owner {
            Owner::Foreign(why) => self.no(
                "device-foreign",
                format!("{path} is no device of Mainstay: {why}"),
                "Put the database on a volume of a resource, with the file system directly on its device.",
            ),
            Owner::Loop { is_direct, is_part, fuse_pages } => {
                if !is_direct {
                    self.no(
                        "loop-buffered",
                        format!("the loop device {path} writes through the page cache, which cuts requests"),
                        format!("Run `losetup --direct-io=on {path}`, or restart the engine."),
                    );
                }
                if *is_part {
                    self.no(
                        "loop-part",
                        format!("the loop device {path} shows only a part of its file"),
                        "Use the device that the engine has made.",
                    );
                }
                if let Some(pages) = fuse_pages.filter(|pages| *pages < FUSE_PAGES_MIN) {
                    self.no(
                        "fuse-pages",
                        format!("FUSE cuts requests into parts of {pages} memory pages on this machine"),
                        format!(
                            "Run `sysctl fs.fuse.max_pages_limit={FUSE_PAGES_MIN}`, and restart the engine."
                        ),
                    );
                }
            }
            Owner::Ublk | Owner::Nbd => {}
        }
        if !device.start.is_multiple_of(self.facts.page.max(1)) {
            self.no(
                "partition-offset",
                format!(
                    "{path} begins {} bytes into its device, which is no multiple of the page",
                    device.start
                ),
                "Put the file system on the whole device, or let the partition begin at a multiple of 1 MiB.",
            );
        }
    }

    fn limits(&mut self) {
        let Device { limits, queue, .. } = &self.facts.device;
        let page = self.facts.page.max(1);
        let file = |name: &str| format!("/sys/block/{queue}/queue/{name}");
        let mut unknown = Vec::new();
        let mut get = |name: &'static str, value: Option<u64>| {
            if value.is_none() {
                unknown.push(name);
            }
            value
        };
        let mut bad = Vec::new();
        if get("logical_block_size", limits.logical_block)
            .is_some_and(|bytes| bytes == 0 || !page.is_multiple_of(bytes))
        {
            bad.push(("logical_block_size", limits.logical_block, "the page is no multiple of it"));
        }
        // Fewer than a single page needs are told by themselves, below.
        let (pages, pieces_min) =
            (limits.request.unwrap_or(0) / MEMORY_PAGE_BYTES, page / MEMORY_PAGE_BYTES + 1);
        let cut_by_pieces = limits.segments.is_some_and(|pieces| pieces >= pieces_min && pages >= pieces);
        if let Some(bytes) = get("max_sectors_kb", limits.request) {
            if bytes < page {
                bad.push((
                    "max_sectors_kb",
                    Some(bytes / 1024),
                    "the kernel cuts longer requests, and a page is longer",
                ));
            } else if bytes > REQUEST_BYTES_MAX {
                bad.push((
                    "max_sectors_kb",
                    Some(bytes / 1024),
                    "the engine cuts requests of more than 1024 KiB",
                ));
            } else if !bytes.is_multiple_of(page) {
                bad.push(("max_sectors_kb", Some(bytes / 1024), "it is no multiple of the page"));
            } else if cut_by_pieces {
                bad.push((
                    "max_sectors_kb",
                    Some(bytes / 1024),
                    "a write of several pages may be cut inside of one, because it has more pieces of memory than \
                     max_segments",
                ));
            }
        }
        // A page that does not begin at a page of memory needs one piece more.
        if get("max_segments", limits.segments).is_some_and(|pieces| pieces < pieces_min) {
            bad.push((
                "max_segments",
                limits.segments,
                "a page of the database may need more pieces of memory",
            ));
        }
        if let Some(bytes) = get("max_segment_size", limits.segment) {
            // A long request of the page cache may end with any piece.
            let is_fit = match self.facts.writes {
                Writes::Direct => bytes >= MEMORY_PAGE_BYTES,
                Writes::Buffered => bytes == UNLIMITED || (bytes > 0 && bytes.is_multiple_of(page)),
            };
            if !is_fit {
                bad.push(("max_segment_size", Some(bytes), "a piece of memory may end within a page"));
            }
        }
        if get("chunk_sectors", limits.chunk).is_some_and(|bytes| !bytes.is_multiple_of(page)) {
            bad.push((
                "chunk_sectors",
                limits.chunk.map(|bytes| bytes / 512),
                "requests are cut within a page",
            ));
        }
        // Kernels that do not tell it have none on our devices.
        if limits.gap_mask.is_some_and(|mask| mask >= MEMORY_PAGE_BYTES) {
            bad.push(("virt_boundary_mask", limits.gap_mask, "requests are cut between pieces of memory"));
        }
        for (name, value, why) in bad {
            let value = value.unwrap_or(0);
            let remedy = match name {
                "max_sectors_kb" => format!(
                    "Run `echo {} >{}`. The engine sets it when it makes the device, unless /sys is read-only.",
                    uncut_bytes(REQUEST_BYTES_MAX, limits.segments) / 1024,
                    file(name)
                ),
                _ => "Use a device of Mainstay without another one in between.".to_owned(),
            };
            self.no("device-limit", format!("{} is {value}: {why}", file(name)), remedy);
        }
        if !unknown.is_empty() {
            let names = unknown.join(", ");
            self.no(
                "device-limit-unknown",
                format!("the kernel does not tell {names} of {queue}"),
                "Run the command where /sys is mounted.",
            );
        }
    }

    fn file_system(&mut self) {
        let page = self.facts.page.max(1);
        let buffered = self.facts.writes == Writes::Buffered;
        let words = self.facts.file_system.words();
        match &self.facts.file_system {
            FileSystem::Other(name) => self.no(
                "file-system-kind",
                format!("{name} is no file system of which it is known how it writes pages"),
                made_anew(page),
            ),
            FileSystem::Ext4 { block, cluster, first, journals_data } => {
                let unit = (*cluster).max(*block);
                if *block == 0 || !unit.is_multiple_of(page) {
                    self.no(
                        "file-system-blocks",
                        format!("{words} may put the parts of a page of {page} bytes into several places"),
                        made_anew(page),
                    );
                } else if buffered && !block.is_multiple_of(page) {
                    self.no(
                        "buffered-writes",
                        format!("{words} writes a page of {page} bytes that comes through the page cache in parts of {block} bytes"),
                        "Let the database write with O_DIRECT, or keep its own protection of pages on.",
                    );
                }
                if !first.is_multiple_of(page) {
                    self.no(
                        "file-system-alignment",
                        format!("the first cluster of ext4 begins at byte {first}, which is no multiple of the page"),
                        made_anew(page),
                    );
                }
                if *journals_data {
                    self.no(
                        "file-system-journals-data",
                        "ext4 is mounted with data=journal, so it writes pages through its journal, block by block",
                        "Mount it without data=journal.",
                    );
                }
            }
            FileSystem::Xfs { block, has_realtime } => {
                if *block == 0 || !block.is_multiple_of(page) {
                    self.no(
                        "file-system-blocks",
                        format!("{words} may put the parts of a page of {page} bytes into several places. Hints such as extsize do not prevent that"),
                        made_anew(page),
                    );
                }
                if *has_realtime {
                    self.no(
                        "file-system-second-device",
                        "this XFS has a realtime device, on which nothing was checked",
                        "Use an XFS without a realtime device.",
                    );
                }
            }
        }
    }

    fn files(&mut self) {
        let page = self.facts.page;
        for (trouble, Examples { files, named }) in &self.facts.files.troubles {
            let of = if *files == 1 { "1 data file".to_owned() } else { format!("{files} data files") };
            let (code, found, remedy) = match trouble {
                Trouble::Elsewhere => (
                    "file-elsewhere",
                    format!("{of} not on this file system"),
                    "Move it here, or check the other place as well, and turn nothing off before both answers are yes.",
                ),
                Trouble::Cut => (
                    "file-cut",
                    format!("{of} with pages of {page} bytes that lie in several pieces or are not aligned"),
                    "Write the file anew: `OPTIMIZE TABLE` for a table, or copy it while the database is down.",
                ),
                Trouble::Mixed => (
                    "file-mixed",
                    format!("{of} with pages of {page} bytes that are written in part"),
                    "For a table run `ALTER TABLE … FORCE`, without page_compressed and ROW_FORMAT=COMPRESSED. Move \
                     a file that is not the database's out of the directory.",
                ),
                Trouble::Shared => (
                    "file-shared",
                    format!("{of} whose blocks other files share, so that writes go to other places"),
                    "Copy it with `cp --reflink=never`, and use the copy.",
                ),
                Trouble::Odd => (
                    "file-encoded",
                    format!("{of} whose blocks do not hold its bytes as they are"),
                    "Use a file system without compression and encryption.",
                ),
                Trouble::NoDirect => (
                    "file-no-direct-io",
                    format!("{of} without direct I/O: the file system writes through the page cache"),
                    "Remove what forbids it, such as data=journal, encryption or the attribute j of chattr.",
                ),
                Trouble::OpenBuffered => (
                    "file-open-buffered",
                    format!("{of} that a process has open for writing without O_DIRECT"),
                    "Set `innodb_flush_method=O_DIRECT`, and restart the database.",
                ),
            };
            self.findings.push(Finding { code, found, remedy: remedy.to_owned(), examples: named.clone() });
        }
    }
}

/// Advice to make another file system.
fn made_anew(page: u64) -> String {
    format!(
        "Make an ext4 with `mkfs.ext4 -O bigalloc -C {page}` on an empty volume, and move the database there."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 16384;

    fn facts() -> Facts {
        Facts {
            page: PAGE,
            writes: Writes::Direct,
            kernel: Some((6, 1)),
            file_system: FileSystem::Ext4 { block: 4096, cluster: PAGE, first: 0, journals_data: false },
            device: Device {
                path: "/dev/loop3".into(),
                queue: "loop3".into(),
                owner: Owner::Loop { is_direct: true, is_part: false, fuse_pages: Some(256) },
                start: 0,
                limits: Limits {
                    logical_block: Some(4096),
                    request: Some(448 << 10),
                    segments: Some(128),
                    segment: Some(65536),
                    chunk: Some(0),
                    gap_mask: Some(0),
                },
            },
            files: Files::default(),
        }
    }

    fn codes(facts: &Facts) -> Vec<&'static str> {
        let answer = judge(facts);
        assert_eq!(answer.atomic, answer.findings.is_empty());
        assert_eq!(answer.atomic, !answer.condition.is_empty());
        for finding in &answer.findings {
            assert!(!finding.found.is_empty() && finding.remedy.ends_with('.'), "{finding:?}");
        }
        answer.findings.iter().map(|finding| finding.code).collect()
    }

    fn with(change: impl FnOnce(&mut Facts)) -> Vec<&'static str> {
        let mut facts = facts();
        change(&mut facts);
        codes(&facts)
    }

    #[test]
    fn a_page_cannot_tear_where_everything_fits() {
        assert_eq!(codes(&facts()), [""; 0]);
        assert!(judge(&facts()).condition.contains("innodb_flush_method=O_DIRECT"));
        let xfs = FileSystem::Xfs { block: PAGE, has_realtime: false };
        assert_eq!(with(|facts| facts.file_system = xfs.clone()), [""; 0]);
        let buffered = |facts: &mut Facts| {
            facts.writes = Writes::Buffered;
            facts.page = 8192;
            facts.file_system = xfs;
        };
        assert_eq!(with(buffered), [""; 0]);
        for owner in [Owner::Ublk, Owner::Nbd] {
            assert_eq!(with(|facts| facts.device.owner = owner), [""; 0]);
        }
    }

    #[test]
    fn each_fact_about_the_device_that_does_not_fit_has_its_reason() {
        let foreign = Owner::Foreign("a disk".into());
        assert_eq!(with(|facts| facts.device.owner = foreign), ["device-foreign"]);
        let of_loop = |is_direct, is_part, fuse_pages| Owner::Loop { is_direct, is_part, fuse_pages };
        assert_eq!(with(|facts| facts.device.owner = of_loop(false, false, None)), ["loop-buffered"]);
        assert_eq!(with(|facts| facts.device.owner = of_loop(true, true, None)), ["loop-part"]);
        assert_eq!(with(|facts| facts.device.owner = of_loop(true, false, Some(32))), ["fuse-pages"]);
        assert_eq!(with(|facts| facts.device.owner = of_loop(true, false, None)), [""; 0]);
        assert_eq!(with(|facts| facts.device.start = 4096), ["partition-offset"]);
        assert_eq!(with(|facts| facts.device.start = 1 << 20), [""; 0]);
        assert_eq!(with(|facts| facts.kernel = Some((5, 4))), ["kernel-old"]);
        assert_eq!(with(|facts| facts.kernel = None), ["kernel-unknown"]);
        assert_eq!(with(|facts| facts.page = 12288), ["page-size", "device-limit", "file-system-blocks"]);
    }

    #[test]
    fn a_limit_that_cuts_a_page_or_is_unknown_means_no() {
        let limit = |change: fn(&mut Limits)| with(|facts| change(&mut facts.device.limits));
        let cuts: [fn(&mut Limits); 10] = [
            |limits| limits.logical_block = Some(32768),
            |limits| limits.request = Some(8192),
            |limits| limits.request = Some(1280 << 10),
            |limits| limits.request = Some(1000 << 10),
            |limits| limits.request = Some(512 << 10),
            |limits| limits.segments = Some(4),
            |limits| limits.segment = Some(512),
            |limits| limits.chunk = Some(8192),
            |limits| limits.gap_mask = Some(4096),
            |limits| limits.logical_block = Some(0),
        ];
        for (number, change) in cuts.into_iter().enumerate() {
            assert_eq!(limit(change), ["device-limit"], "{number}");
        }
        let unknown: [fn(&mut Limits); 5] = [
            |limits| limits.logical_block = None,
            |limits| limits.request = None,
            |limits| limits.segments = None,
            |limits| limits.segment = None,
            |limits| limits.chunk = None,
        ];
        for change in unknown {
            assert_eq!(limit(change), ["device-limit-unknown"]);
        }
        assert_eq!(limit(|limits| limits.gap_mask = None), [""; 0], "our devices have none");
        let long = with(|facts| {
            facts.writes = Writes::Buffered;
            facts.file_system = FileSystem::Xfs { block: PAGE, has_realtime: false };
            facts.device.limits.segment = Some(4096);
        });
        assert_eq!(long, ["device-limit"], "a long request of the page cache is cut there");
        let remedy = |facts: &Facts| judge(facts).findings[0].remedy.clone();
        let mut facts = facts();
        facts.device.limits.request = Some(1280 << 10);
        assert!(remedy(&facts).contains("echo 448 >/sys/block/loop3/queue/max_sectors_kb"));
        facts.device.limits.segments = Some(65535);
        assert!(remedy(&facts).contains("echo 1024 >"), "there it needs no more pieces than it may have");
    }

    #[test]
    fn a_file_system_that_may_scatter_a_page_means_no() {
        let ext4 =
            |block, cluster, first, journals_data| FileSystem::Ext4 { block, cluster, first, journals_data };
        let of = |file_system| with(|facts| facts.file_system = file_system);
        assert_eq!(of(ext4(4096, 4096, 0, false)), ["file-system-blocks"]);
        assert_eq!(of(ext4(4096, 8192, 0, false)), ["file-system-blocks"]);
        assert_eq!(of(ext4(16384, 16384, 0, false)), [""; 0]);
        assert_eq!(of(ext4(0, 16384, 0, false)), ["file-system-blocks"], "a size that is not known");
        assert_eq!(of(ext4(4096, 65536, 0, false)), [""; 0]);
        assert_eq!(of(ext4(1024, 16384, 1024, false)), ["file-system-alignment"]);
        assert_eq!(of(ext4(4096, 16384, 0, true)), ["file-system-journals-data"]);
        assert_eq!(of(FileSystem::Xfs { block: 4096, has_realtime: false }), ["file-system-blocks"]);
        assert_eq!(of(FileSystem::Xfs { block: PAGE, has_realtime: true }), ["file-system-second-device"]);
        assert_eq!(of(FileSystem::Other("btrfs".into())), ["file-system-kind"]);
        let buffered = with(|facts| facts.writes = Writes::Buffered);
        assert_eq!(buffered, ["buffered-writes"], "clusters do not keep a page together in the page cache");
        let unknown = with(|facts| {
            facts.writes = Writes::Buffered;
            facts.file_system = ext4(0, PAGE, 0, false);
        });
        assert_eq!(unknown, ["file-system-blocks"], "nothing is promised of blocks of no size");
    }

    #[test]
    fn a_file_with_a_trouble_means_no_and_a_few_are_named() {
        let troubles = [
            (Trouble::Elsewhere, "file-elsewhere"),
            (Trouble::Cut, "file-cut"),
            (Trouble::Mixed, "file-mixed"),
            (Trouble::Shared, "file-shared"),
            (Trouble::Odd, "file-encoded"),
            (Trouble::NoDirect, "file-no-direct-io"),
            (Trouble::OpenBuffered, "file-open-buffered"),
        ];
        for (trouble, code) in troubles {
            assert_eq!(with(|facts| facts.files.note(trouble, "t.ibd")), [code]);
        }
        let mut facts = facts();
        for number in 0..1000 {
            facts.files.add(&format!("{number}.ibd"), Pages { placed: 10, cut: 1, mixed: 0 });
        }
        let answer = judge(&facts);
        assert_eq!((answer.files, answer.pages, answer.findings.len()), (1000, 10_000, 1));
        assert!(answer.findings[0].found.starts_with("1000 data files"), "{answer:?}");
        assert_eq!(answer.findings[0].examples.len(), EXAMPLES_MAX);
        assert_eq!(answer.findings[0].examples[0], "0.ibd (1 of 10 pages)");
    }

    fn some(values: &'static [u64]) -> impl Strategy<Value = Option<u64>> {
        proptest::option::weighted(0.95, proptest::sample::select(values))
    }

    fn limits() -> impl Strategy<Value = Limits> {
        let sizes = &[0, 512, 4096, 8192, 16384, 65536, 448 << 10, 1 << 20, 1280 << 10, 0xffff_ffff];
        (some(sizes), some(sizes), some(&[0, 1, 5, 128, 257]), some(sizes), some(sizes), some(sizes))
            .prop_map(|(logical_block, request, segments, segment, chunk, gap_mask)| Limits {
                logical_block,
                request,
                segments,
                segment,
                chunk,
                gap_mask,
            })
    }

    proptest! {
        /// With yes, no limit that was seen can cut an aligned page, and no unit of the file system
        /// is smaller than the page.
        #[test]
        fn yes_is_said_only_where_no_limit_can_cut_a_page(
            limits in limits(),
            page in proptest::sample::select(&[0u64, 4096, 8192, 12288, 16384, 65536][..]),
            block in proptest::sample::select(&[0u64, 1024, 4096, 16384, 65536][..]),
            cluster in proptest::sample::select(&[0u64, 4096, 12288, 16384, 65536][..]),
            start in proptest::sample::select(&[0u64, 512, 4096, 1 << 20][..]),
            writes in proptest::sample::select(&[Writes::Direct, Writes::Buffered][..]),
        ) {
            let mut facts = facts();
            facts.page = page;
            facts.writes = writes;
            facts.file_system = FileSystem::Ext4 { block, cluster, first: 0, journals_data: false };
            facts.device.start = start;
            facts.device.limits = limits.clone();
            if judge(&facts).atomic {
                prop_assert!(DATABASE_PAGE_BYTES.contains(&page));
                prop_assert_eq!(start % page, 0);
                let request = limits.request.expect("it is known");
                prop_assert!(request >= page && request <= REQUEST_BYTES_MAX && request % page == 0);
                // Wherever in a page of memory a request begins, its size cuts it first.
                prop_assert!(limits.segments.expect("it is known") > request / 4096);
                let chunk = limits.chunk.expect("it is known");
                prop_assert!(chunk == 0 || chunk % page == 0);
                prop_assert_eq!(page % limits.logical_block.expect("it is known"), 0);
                let unit = if writes == Writes::Direct { block.max(cluster) } else { block };
                prop_assert!(unit >= page && unit % page == 0);
            }
        }
    }
}

//! Making a file system on a volume that has none.
//!
//! Guarantees
//! - A file system is made only where the version table says that no extent was ever written, or
//!   where an earlier attempt was interrupted. Everything else is content and is never formatted.
//!   Nor is a file system formatted that was whole or mounted since.
//! - The cluster knows of an attempt before its first write, and until the whole file system is on
//!   the device. So an interrupted file system is made anew, on whatever node, and is never
//!   mounted.

use super::content::{self, Content};
use super::mount::MountError;
use crate::messages::random_u64;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MAKE_POLL: Duration = Duration::from_millis(10);
/// How long a rehearsal may take.
const REHEARSAL: Duration = Duration::from_secs(2);
/// Size of what is rehearsed on, in bytes: large enough for all kinds.
const REHEARSAL_BYTES: u64 = 16 << 30;

/// Identity of a file system, as its superblock carries it.
pub type Uuid = [u8; 16];

/// Knowledge of the cluster about a volume, beside its bytes. Errors are in words for the operator.
pub trait Volume {
    /// Whether no extent was ever written.
    fn is_blank(&self) -> Result<bool, String>;
    /// The identity that an unfinished file system was to have.
    fn unfinished(&self) -> Result<Option<Uuid>, String>;
    /// Makes durable, on a majority of the nodes, that a file system is being made from now on.
    fn begin(&self, uuid: Uuid) -> Result<(), String>;
    /// Makes durable that the file system is whole, or that Mainstay has no business with it any
    /// more.
    fn finish(&self) -> Result<(), String>;
}

/// Makes sure that the volume holds a whole file system of this type, as far as that can be seen
/// without mounting it. `options`: those for making one; `None` if the service does not allow that.
///
/// # Errors
/// When there is something else, or nothing and it may not be made, or making it fails.
pub fn ensure_made(
    device: &Path,
    fstype: &str,
    options: Option<&[String]>,
    volume: &dyn Volume,
    wanted: &dyn Fn() -> bool,
) -> Result<(), MountError> {
    let read = |source| MountError::Read { device: device.to_path_buf(), source };
    let unknown = |why| MountError::Volume { device: device.to_path_buf(), why };
    let mut file = File::open(device).map_err(read)?;
    let found = content::inspect(&mut file).map_err(read)?;
    if let Some(begun) = volume.unfinished().map_err(unknown)? {
        let is_rest = match found {
            Content::Unknown => content::stranger(&mut file).map_err(read)?.is_none(),
            Content::FileSystem(family) => {
                content::uuid(&mut file, family).map_err(read)? == Some(begun)
                    && !content::may_hold_files(&mut file, family).map_err(read)?
            }
            Content::Other(_) => false,
        };
        drop(file);
        match (is_rest, options) {
            (true, Some(options)) => return make(device, fstype, options, begun, volume, wanted),
            (true, None) => return Err(MountError::Unfinished { device: device.to_path_buf() }),
            // The file system became whole, or another program has written there since.
            (false, _) => volume.finish().map_err(unknown)?,
        }
    }
    match found {
        Content::FileSystem(name) if name == content::family(fstype) => Ok(()),
        Content::FileSystem(found) => {
            Err(MountError::Foreign { device: device.to_path_buf(), found, wanted: fstype.to_owned() })
        }
        Content::Other(found) => {
            Err(MountError::Foreign { device: device.to_path_buf(), found, wanted: fstype.to_owned() })
        }
        Content::Unknown if volume.is_blank().map_err(unknown)? => {
            let blank = || MountError::Blank { device: device.to_path_buf() };
            make(device, fstype, options.ok_or_else(blank)?, new_uuid(), volume, wanted)
        }
        Content::Unknown if !content::is_known(fstype) => Ok(()),
        Content::Unknown => Err(MountError::NoFileSystem {
            device: device.to_path_buf(),
            wanted: fstype.to_owned(),
            found: content::described(device),
        }),
    }
}

/// Makes a file system. It is killed when it is not `wanted` any more.
fn make(
    device: &Path,
    fstype: &str,
    options: &[String],
    uuid: Uuid,
    volume: &dyn Volume,
    wanted: &dyn Fn() -> bool,
) -> Result<(), MountError> {
    if !content::is_made(fstype) {
        return Err(MountError::NotMade { device: device.to_path_buf(), fstype: fstype.to_owned() });
    }
    if !wanted() {
        return Err(MountError::CalledOff);
    }
    let unknown = |why| MountError::Volume { device: device.to_path_buf(), why };
    volume.begin(uuid).map_err(unknown)?;
    if !wanted() {
        return Err(MountError::CalledOff);
    }
    run(device, fstype, &arguments(fstype, uuid, options), wanted)?;
    let synced = File::options().write(true).open(device).and_then(|file| file.sync_all());
    synced.map_err(|error| MountError::Make {
        device: device.to_path_buf(),
        message: format!("its last writes failed: {error}"),
    })?;
    volume.finish().map_err(unknown)
}

/// Returns why this machine's program does not take these options; `None` if it takes them, or
/// cannot be asked. It is asked by a rehearsal on [`REHEARSAL_BYTES`] of memory, of which it writes
/// nothing.
pub fn refused(fstype: &str, options: &[String]) -> Option<String> {
    let rehearse = match fstype {
        "ext2" | "ext3" | "ext4" => "-n",
        "xfs" => "-N",
        _ => return None,
    };
    let memory = memfd_create("mainstay-mkfs", MemfdFlags::CLOEXEC).ok()?;
    ftruncate(&memory, REHEARSAL_BYTES).ok()?;
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd()));
    let rehearsed = |options: &[String]| {
        let mut words = arguments(fstype, new_uuid(), options);
        words.push(rehearse.to_owned());
        let until = Instant::now() + REHEARSAL;
        run(&path, fstype, &words, &|| Instant::now() < until)
    };
    let Err(MountError::Make { message, .. }) = rehearsed(options) else { return None };
    // A program that fails in any case has not refused these options.
    rehearsed(&[]).ok()?;
    // The status says nothing beside the words.
    let words = message.strip_prefix("exit status: ").and_then(|rest| rest.split_once(": "));
    Some(words.map_or(&*message, |(_, words)| words).replace(&*path.to_string_lossy(), "a device"))
}

/// Arguments of the program that makes a file system. A new volume is all zeroes already, so it is
/// not discarded: that would only be sent to every replica.
fn arguments(fstype: &str, uuid: Uuid, options: &[String]) -> Vec<String> {
    let identity = words(uuid);
    let is_ext = fstype.starts_with("ext");
    // mkfs.ext4 takes the last `-E` alone, so all of them become one.
    let (extended, others): (Vec<_>, Vec<_>) =
        options.chunks(2).partition(|pair| is_ext && pair.first().is_some_and(|option| option == "-E"));
    let values = extended.iter().filter_map(|pair| pair.get(1));
    let extended = values.fold("nodiscard".to_owned(), |all, value| format!("{all},{value}"));
    let metadata = format!("uuid={identity}");
    let own: &[&str] = match fstype {
        "xfs" => &["-q", "-f", "-K", "-m", &metadata],
        "ext2" | "ext3" | "ext4" => &["-q", "-F", "-E", &extended, "-U", &identity],
        "btrfs" => &["-q", "-f", "-K", "-U", &identity],
        "f2fs" => &["-q", "-f", "-t", "0", "-U", &identity],
        _ => &[],
    };
    own.iter().map(|word| (*word).to_owned()).chain(others.concat()).collect()
}

fn run(
    device: &Path,
    fstype: &str,
    arguments: &[String],
    wanted: &dyn Fn() -> bool,
) -> Result<(), MountError> {
    let failed = |message: String| MountError::Make { device: device.to_path_buf(), message };
    let mut command = Command::new(format!("mkfs.{fstype}"));
    // The volume may be formatted: that is decided.
    command.args(arguments);
    let unusable = |error| failed(format!("mkfs.{fstype} cannot be run: {error}"));
    command.arg(device).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(unusable)?;
    while child.try_wait().map_err(unusable)?.is_none() {
        if !wanted() {
            // The program may have ended just now. In either case it is over only when it was
            // waited for.
            drop(child.kill());
            drop(child.wait());
            return Err(MountError::CalledOff);
        }
        std::thread::sleep(MAKE_POLL);
    }
    // The program writes a few lines there, which fit into the pipe.
    let output = child.wait_with_output().map_err(unusable)?;
    if output.status.success() {
        return Ok(());
    }
    Err(failed(format!("{}: {}", output.status, cause(&String::from_utf8_lossy(&output.stderr)))))
}

/// Returns the words of a program before it explains its usage.
fn cause(said: &str) -> String {
    let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let told: Vec<_> = lines.take_while(|line| !line.to_lowercase().starts_with("usage")).collect();
    told.join("; ")
}

/// A random identity, as RFC 9562 has it.
fn new_uuid() -> Uuid {
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&random_u64().to_le_bytes());
    uuid[8..].copy_from_slice(&random_u64().to_le_bytes());
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    uuid
}

fn words(uuid: Uuid) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]];
    parts.join("-")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::path::PathBuf;

    /// A volume on a file, and what the cluster knows of it.
    #[derive(Default)]
    pub struct Known {
        pub blank: bool,
        pub unfinished: RefCell<Option<Uuid>>,
        pub told: RefCell<Vec<&'static str>>,
    }

    impl Volume for Known {
        fn is_blank(&self) -> Result<bool, String> {
            Ok(self.blank)
        }

        fn unfinished(&self) -> Result<Option<Uuid>, String> {
            Ok(*self.unfinished.borrow())
        }

        fn begin(&self, uuid: Uuid) -> Result<(), String> {
            self.told.borrow_mut().push("begins");
            *self.unfinished.borrow_mut() = Some(uuid);
            Ok(())
        }

        fn finish(&self) -> Result<(), String> {
            self.told.borrow_mut().push("is whole");
            *self.unfinished.borrow_mut() = None;
            Ok(())
        }
    }

    #[test]
    fn options_that_the_program_does_not_take_are_found_before_anything_is_made() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        for (fstype, good, bad, told) in [
            ("ext4", "-O bigalloc -C 16384", "-O bigalloc,nosuch -C 16384", "bigalloc,nosuch"),
            ("ext4", "-E stride=4 -b 4096", "-E nosuch=4", "nosuch"),
            ("xfs", "-b size=4096 -m rmapbt=0", "-b size=3000", "3000"),
        ] {
            assert_eq!(refused(fstype, &words(good)), None, "{fstype} {good}");
            let why = refused(fstype, &words(bad)).expect(bad);
            assert!(why.contains(told), "{why}");
            for other in ["/proc/", "Usage", "exit status"] {
                assert!(!why.contains(other), "{why}");
            }
        }
        assert_eq!(refused("btrfs", &words("-n 3")), None, "it cannot be asked");
    }

    fn file(bytes: usize) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let device = directory.path().join("volume");
        std::fs::write(&device, vec![0; bytes]).unwrap();
        (directory, device)
    }

    #[test]
    fn a_program_s_usage_is_not_its_cause() {
        let said = "size 4096 too small\n\nUsage: mkfs.xfs\n/* blocksize */ [-b size=num]\n";
        assert_eq!(cause(said), "size 4096 too small");
        assert_eq!(cause("one\ntwo\n"), "one; two");
        assert_eq!(cause(""), "");
    }

    #[test]
    fn zeroes_are_not_blank_if_something_was_written_behind_them() {
        let (_directory, device) = file(8 << 20);
        let written = Known::default();
        let refused = ensure_made(&device, "ext4", Some(&[]), &written, &|| true);
        assert!(matches!(refused, Err(MountError::NoFileSystem { .. })), "{refused:?}");
        assert!(std::fs::read(&device).unwrap().iter().all(|&byte| byte == 0), "it is as it was");
        assert!(written.told.borrow().is_empty());
    }

    #[test]
    fn content_is_never_formatted() {
        for (at, magic) in [(65_600, &b"_BHRfS_M"[..]), (0, b"LUKS\xba\xbe"), (1080, &[0x53, 0xef])] {
            let (_directory, device) = file(1 << 20);
            let mut bytes = std::fs::read(&device).unwrap();
            bytes[at..at + magic.len()].copy_from_slice(magic);
            std::fs::write(&device, &bytes).unwrap();
            // Content is not formatted even after an interrupted attempt: another program has put
            // it there since.
            for unfinished in [None, Some([9; 16])] {
                let known = Known { unfinished: RefCell::new(unfinished), ..Known::default() };
                let refused = ensure_made(&device, "xfs", Some(&[]), &known, &|| true);
                assert!(matches!(refused, Err(MountError::Foreign { .. })), "{refused:?}");
                assert_eq!(std::fs::read(&device).unwrap(), bytes);
                assert_eq!(*known.unfinished.borrow(), None);
            }
        }
    }

    #[test]
    fn an_interrupted_attempt_is_made_anew_and_is_known_until_it_is_whole() {
        let (_directory, device) = file(64 << 20);
        let known = Known { blank: true, ..Known::default() };
        // It is called off when it has been begun.
        let asked = RefCell::new(0);
        let only_at_first = || {
            *asked.borrow_mut() += 1;
            *asked.borrow() < 2
        };
        let ended = ensure_made(&device, "ext4", Some(&[]), &known, &only_at_first);
        assert!(matches!(ended, Err(MountError::CalledOff)), "{ended:?}");
        let begun = known.unfinished.borrow().expect("it is known");
        // A part of it is there.
        let mut bytes = std::fs::read(&device).unwrap();
        bytes[1080..1082].copy_from_slice(&[0x53, 0xef]);
        bytes[1128..1144].copy_from_slice(&begun);
        std::fs::write(&device, &bytes).unwrap();
        let known = Known { blank: false, unfinished: RefCell::new(Some(begun)), ..Known::default() };
        let refused = ensure_made(&device, "ext4", None, &known, &|| true);
        assert!(matches!(refused, Err(MountError::Unfinished { .. })), "{refused:?}");
        ensure_made(&device, "ext4", Some(&[]), &known, &|| true).expect("mkfs.ext4 is installed");
        assert_eq!(*known.told.borrow(), ["begins", "is whole"]);
        ensure_made(&device, "ext4", Some(&[]), &known, &|| true).expect("it is there");
        assert_eq!(known.told.borrow().len(), 2, "and nothing is made again");
    }

    /// Bytes at their places.
    type Pieces<'a> = &'a [(usize, &'a [u8])];

    /// A volume with these bytes, on which a file system of this identity was being made.
    fn begun(at: Pieces, uuid: Uuid) -> (tempfile::TempDir, PathBuf, Known) {
        let (directory, device) = file(1 << 20);
        let mut bytes = std::fs::read(&device).unwrap();
        for (at, piece) in at {
            bytes[*at..at + piece.len()].copy_from_slice(piece);
        }
        std::fs::write(&device, &bytes).unwrap();
        (directory, device, Known { unfinished: RefCell::new(Some(uuid)), ..Known::default() })
    }

    #[test]
    fn a_whole_or_mounted_file_system_is_finished_and_not_made_anew() {
        let uuid = [7; 16];
        let (ext, xfs) = ((1080, &[0x53, 0xef][..]), (0, &b"XFSB"[..]));
        let whole: [(&str, Pieces); 5] = [
            ("ext4", &[ext, (1128, &uuid), (1024 + 0x34, &[1])]),
            ("ext4", &[ext, (1128, &uuid), (1024 + 0x2c, &[1])]),
            ("xfs", &[xfs, (32, &uuid)]),
            ("btrfs", &[(65_600, b"_BHRfS_M"), (65_568, &uuid)]),
            ("f2fs", &[(1024, &[0x10, 0x20, 0xf5, 0xf2]), (1132, &uuid)]),
        ];
        for (fstype, pieces) in whole {
            let (_directory, device, known) = begun(pieces, uuid);
            let before = std::fs::read(&device).unwrap();
            ensure_made(&device, fstype, Some(&[]), &known, &|| true).expect("it is there");
            assert_eq!(*known.told.borrow(), ["is whole"], "{fstype}");
            assert_eq!(std::fs::read(&device).unwrap(), before, "{fstype}");
        }
        // The same holds for a type that is not wanted any more.
        let unfinished: [(&str, Pieces); 3] = [
            ("ext4", &[ext, (1128, &uuid)]),
            ("xfs", &[xfs, (32, &uuid), (126, &[1])]),
            ("xfs", &[ext, (1128, &uuid)]),
        ];
        for (fstype, pieces) in unfinished {
            let (_directory, device, known) = begun(pieces, uuid);
            let refused = ensure_made(&device, fstype, None, &known, &|| true);
            assert!(matches!(refused, Err(MountError::Unfinished { .. })), "{fstype}: {refused:?}");
        }
    }

    #[test]
    fn foreign_content_on_an_unfinished_file_system_stays() {
        let uuid = [7; 16];
        let others: [(usize, &[u8]); 3] = [(32_768, b"JFS1"), (257, b"ustar"), (3, b"NTFS    ")];
        for piece in others {
            let (_directory, device, known) = begun(&[piece], uuid);
            let refused = ensure_made(&device, "ext4", Some(&[]), &known, &|| true);
            assert!(matches!(refused, Err(MountError::NoFileSystem { .. })), "{refused:?}");
            assert_eq!(*known.told.borrow(), ["is whole"]);
        }
        // It carries another identity than the one that was begun.
        let piece: (usize, &[u8]) = (1024, &[0x10, 0x20, 0xf5, 0xf2]);
        let (_directory, device, known) = begun(&[piece], uuid);
        ensure_made(&device, "f2fs", Some(&[]), &known, &|| true).expect("it is of others");
        assert_eq!(*known.told.borrow(), ["is whole"]);
    }

    #[test]
    fn a_file_system_without_a_known_identity_is_not_made() {
        let (_directory, device) = file(1 << 20);
        let known = Known { blank: true, ..Known::default() };
        let refused = ensure_made(&device, "vfat", Some(&[]), &known, &|| true).expect_err("it is not made");
        assert!(refused.to_string().contains("of the type vfat"), "{refused}");
        assert!(known.told.borrow().is_empty());
    }

    #[test]
    fn options_of_a_service_stand_beside_those_of_mainstay() {
        let given = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let identity = words([7; 16]);
        let ext = arguments("ext4", [7; 16], &given(&["-E", "stride=4", "-O", "bigalloc", "-C", "16384"]));
        let expected =
            ["-q", "-F", "-E", "nodiscard,stride=4", "-U", &identity, "-O", "bigalloc", "-C", "16384"];
        assert_eq!(ext, expected);
        let xfs = arguments("xfs", [7; 16], &given(&["-m", "reflink=0"]));
        assert_eq!(xfs[3..], ["-m".to_owned(), format!("uuid={identity}"), "-m".into(), "reflink=0".into()]);
        assert_eq!(arguments("ext4", [7; 16], &[]), ["-q", "-F", "-E", "nodiscard", "-U", &identity]);
    }

    #[test]
    fn an_ext4_is_made_with_the_clusters_that_the_service_asks_for() {
        let (_directory, device) = file(64 << 20);
        let known = Known { blank: true, ..Known::default() };
        let options = ["-O", "bigalloc", "-C", "16384", "-E", "stride=4"].map(str::to_owned);
        ensure_made(&device, "ext4", Some(&options), &known, &|| true).expect("mkfs.ext4 is installed");
        let bytes = std::fs::read(&device).expect("it is there");
        let word = |at: usize| u32::from_le_bytes(bytes[1024 + at..1024 + at + 4].try_into().unwrap());
        assert_eq!((word(0x64) & 0x200, word(0x1c)), (0x200, 4), "clusters of 1024 << 4 bytes");
        assert_eq!(*known.told.borrow(), ["begins", "is whole"]);
        // The error has the words of mkfs.
        let (_directory, device) = file(64 << 20);
        let known = Known { blank: true, ..Known::default() };
        let options = ["-O", "nosuchfeature"].map(str::to_owned);
        let failed =
            ensure_made(&device, "ext4", Some(&options), &known, &|| true).expect_err("no such feature");
        assert!(failed.to_string().contains("nosuchfeature"), "{failed}");
    }

    #[test]
    fn identities_are_written_as_programs_take_them() {
        assert_eq!(words([0x12; 16]), "12121212-1212-1212-1212-121212121212");
        assert_ne!(new_uuid(), new_uuid());
    }
}

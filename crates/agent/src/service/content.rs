//! The content of a volume, as far as its bytes tell: a file system that can be mounted, or content
//! that belongs to another program.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

/// First bytes of file systems that can be mounted: their place in bytes, and the name of the
/// family.
const FILE_SYSTEMS: [(u64, &[u8], &str); 4] = [
    (0, b"XFSB", "xfs"),
    (1080, &[0x53, 0xef], "ext"),
    (65_600, b"_BHRfS_M", "btrfs"),
    (1024, &[0x10, 0x20, 0xf5, 0xf2], "f2fs"),
];
/// First bytes of content that cannot be mounted by itself: their place, and what it is called.
const OTHERS: [(u64, &[u8], &str); 9] = [
    (0, b"LUKS\xba\xbe", "a LUKS volume"),
    (512, b"LABELONE", "a physical volume of LVM"),
    (24, b"LVM2 001", "a physical volume of LVM"),
    (4086, b"SWAPSPACE2", "swap space"),
    (512, b"EFI PART", "a GPT partition table"),
    (4096, b"EFI PART", "a GPT partition table"),
    (4096, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an MD array"),
    (0, &[0xfc, 0x4e, 0x2b, 0xa9], "a member of an MD array"),
    (510, &[0x55, 0xaa], "a partition table or boot sector"),
];

/// First bytes of content on devices of other programs: their place, and what it is called. A
/// service may mount some of these if it names their type.
const STRANGERS: [(u64, &[u8], &str); 38] = [
    (16_384, b"\x01\x01\0\0\0\0\0\0\0\0\0\x01", "a member of a ZFS pool"),
    (16_384, b"SKUL\xba\xbe", "a LUKS volume"),
    (0, b"LABELONE", "a physical volume of LVM"),
    (1024, b"LABELONE", "a physical volume of LVM"),
    (1536, b"LABELONE", "a physical volume of LVM"),
    (4086, b"SWAP-SPACE", "swap space"),
    (65_526, b"SWAPSPACE2", "swap space"),
    (4086, b"S1SUSPEND", "swap space"),
    (54, b"FAT12   ", "a file system of the type vfat"),
    (54, b"FAT16   ", "a file system of the type vfat"),
    (82, b"FAT32   ", "a file system of the type vfat"),
    (3, b"NTFS    ", "a file system of the type ntfs"),
    (3, b"EXFAT   ", "a file system of the type exfat"),
    (3, b"-FVE-FS-", "a BitLocker volume"),
    (32_769, b"CD001", "a file system of the type iso9660"),
    (32_769, b"BEA01", "a file system of the type udf"),
    (32_769, b"NSR0", "a file system of the type udf"),
    (65_588, b"ReIsEr", "a file system of the type reiserfs"),
    (8244, b"ReIsEr", "a file system of the type reiserfs"),
    (65_536, b"ReIsEr4", "a file system of the type reiser4"),
    (32_768, b"JFS1", "a file system of the type jfs"),
    (0, b"hsqs", "a file system of the type squashfs"),
    (0, b"\x45\x3d\xcd\x28", "a file system of the type cramfs"),
    (1024, &[0xe2, 0xe1, 0xf5, 0xe0], "a file system of the type erofs"),
    (4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca], "a bcache device"),
    (4120, &[0xc6, 0x85, 0x73, 0xf6, 0x66, 0xce, 0x90, 0xa9], "a file system of the type bcachefs"),
    (65_536, &[0x01, 0x16, 0x19, 0x70], "a file system of the type gfs2"),
    (1024, b"OCFSV2", "a file system of the type ocfs2"),
    (2048, b"OCFSV2", "a file system of the type ocfs2"),
    (4096, b"OCFSV2", "a file system of the type ocfs2"),
    (8192, b"OCFSV2", "a file system of the type ocfs2"),
    (66_908, &[0x19, 0x01, 0x54, 0x19], "a file system of the type ufs"),
    (32, b"NXSB", "a file system of the type apfs"),
    (0, b"dmvdo001", "a VDO volume"),
    (0, b"integrt\0", "a volume of dm-integrity"),
    (0, b"bluestore block device", "a device of Ceph"),
    (32, b"ORCLDISK", "a disk of Oracle ASM"),
    (257, b"ustar", "a tar archive"),
];

/// Content that was found on a volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// A file system of this family.
    FileSystem(&'static str),
    /// Other known content, in words.
    Other(&'static str),
    /// No content of a known kind.
    Unknown,
}

/// Looks at the content that begins on the volume. A block further on that cannot be read does not
/// prevent a mount, and a failover does not wait for it.
///
/// # Errors
/// When one of the first blocks cannot be read.
pub fn inspect(device: &mut (impl Read + Seek)) -> io::Result<Content> {
    for (at, magic, name) in FILE_SYSTEMS {
        if piece(device, at, magic.len() as u64)? == magic {
            return Ok(Content::FileSystem(name));
        }
    }
    Ok(signature(device, &OTHERS)?.map_or(Content::Unknown, Content::Other))
}

/// The name of content that is neither a file system that Mainstay makes nor content that
/// [`inspect`] refuses.
///
/// # Errors
/// When it cannot be read.
pub fn stranger(device: &mut (impl Read + Seek)) -> io::Result<Option<&'static str>> {
    signature(device, &STRANGERS)
}

fn signature(
    device: &mut (impl Read + Seek),
    known: &[(u64, &[u8], &'static str)],
) -> io::Result<Option<&'static str>> {
    for &(at, magic, name) in known {
        if piece(device, at, magic.len() as u64)? == magic {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

/// The identity that a file system of this family carries; `None` for a family without a known
/// place of it.
///
/// # Errors
/// When it cannot be read.
pub fn uuid(device: &mut (impl Read + Seek), family: &str) -> io::Result<Option<[u8; 16]>> {
    let at = match family {
        "xfs" => 32,
        "ext" => 1024 + 0x68,
        "btrfs" => 65_536 + 0x20,
        "f2fs" => 1024 + 0x6c,
        _ => return Ok(None),
    };
    Ok(piece(device, at, 16)?.try_into().ok())
}

/// Whether a file system of this family may hold files: it was mounted, or was whole so that it
/// could be. If its bytes show neither, it was never mounted.
///
/// # Errors
/// When it cannot be read.
pub fn may_hold_files(device: &mut (impl Read + Seek), family: &str) -> io::Result<bool> {
    Ok(match family {
        // `sb_inprogress` is set until all the rest is on the device. The kernel does not mount it
        // before.
        "xfs" => piece(device, 126, 1)? == [0],
        // After a power cut, the superblock may be there without the blocks that it describes. A
        // mount writes the time of the last mount and the number of mounts.
        "ext" => piece(device, 1024 + 0x2c, 4)? != [0; 4] || piece(device, 1024 + 0x34, 2)? != [0; 2],
        // Their programs write the signature last.
        _ => true,
    })
}

/// Whether Mainstay makes file systems of this type: only those whose identity tells an interrupted
/// attempt.
#[must_use]
pub fn is_made(fstype: &str) -> bool {
    matches!(fstype, "xfs" | "ext2" | "ext3" | "ext4" | "btrfs" | "f2fs")
}

/// The name that [`inspect`] has for file systems of this type.
#[must_use]
pub fn family(fstype: &str) -> &str {
    if fstype.starts_with("ext") { "ext" } else { fstype }
}

/// Whether [`inspect`] knows file systems of this type.
#[must_use]
pub fn is_known(fstype: &str) -> bool {
    FILE_SYSTEMS.iter().any(|(_, _, name)| *name == family(fstype))
}

/// The content and the sizes that matter to a mount, in words for the operator.
#[must_use]
pub fn described(device: &Path) -> String {
    let describe = || -> io::Result<String> {
        let mut file = File::open(device)?;
        let found = match inspect(&mut file)? {
            Content::FileSystem(family) => {
                let sizes =
                    sizes(&mut file, family)?.map_or_else(String::new, |sizes| format!(" with {sizes}"));
                format!("a file system of the type {family}{sizes}")
            }
            Content::Other(name) => name.to_owned(),
            Content::Unknown => stranger(&mut file)?.unwrap_or("nothing that Mainstay knows").to_owned(),
        };
        let bytes = file.seek(SeekFrom::End(0))?;
        Ok(format!("there is {found} on a device of {bytes} bytes{}", sectors(device)))
    };
    describe().unwrap_or_else(|error| format!("it cannot be read: {error}"))
}

/// Sector and block sizes as a file system's own superblock says.
fn sizes(device: &mut (impl Read + Seek), family: &str) -> io::Result<Option<String>> {
    Ok(match family {
        "xfs" => {
            let superblock = piece(device, 0, 104)?;
            let block = superblock.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes);
            let sector =
                superblock.get(102..104).and_then(|b| b.try_into().ok()).map_or(0, u16::from_be_bytes);
            Some(format!("blocks of {block} bytes and sectors of {sector}"))
        }
        "ext" => {
            let log = piece(device, 1024 + 0x18, 4)?;
            let log = log.try_into().map_or(0, u32::from_le_bytes).min(16);
            Some(format!("blocks of {} bytes", 1024_u64 << log))
        }
        _ => None,
    })
}

fn sectors(device: &Path) -> String {
    let name = std::fs::canonicalize(device).ok();
    let name = name.as_deref().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let sector = name.and_then(|name| {
        std::fs::read_to_string(format!("/sys/class/block/{name}/queue/logical_block_size")).ok()
    });
    sector.map_or_else(String::new, |sector| format!(" with sectors of {}", sector.trim()))
}

fn piece(device: &mut (impl Read + Seek), offset: u64, bytes: u64) -> io::Result<Vec<u8>> {
    device.seek(SeekFrom::Start(offset))?;
    let mut piece = Vec::new();
    device.take(bytes).read_to_end(&mut piece)?;
    Ok(piece)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    const SIZE: usize = 1 << 20;

    fn volume(at: usize, bytes: &[u8]) -> Cursor<Vec<u8>> {
        let mut volume = vec![0; SIZE];
        volume[at..at + bytes.len()].copy_from_slice(bytes);
        Cursor::new(volume)
    }

    #[test]
    fn content_of_a_volume_is_known_by_its_signature() {
        for (at, magic, name) in FILE_SYSTEMS {
            let found = inspect(&mut volume(at as usize, magic)).unwrap();
            assert_eq!(found, Content::FileSystem(name));
        }
        for (at, magic, name) in OTHERS {
            assert_eq!(inspect(&mut volume(at as usize, magic)).unwrap(), Content::Other(name));
        }
        for (at, magic, name) in STRANGERS {
            assert_eq!(stranger(&mut volume(at as usize, magic)).unwrap(), Some(name));
            assert_eq!(
                inspect(&mut volume(at as usize, magic)).unwrap(),
                Content::Unknown,
                "{name} may be mounted"
            );
        }
        assert_eq!(inspect(&mut volume(700, b"rows")).unwrap(), Content::Unknown);
        assert_eq!(stranger(&mut volume(700, b"rows")).unwrap(), None);
        assert_eq!(family("ext4"), "ext");
    }

    /// A volume with damage from byte `from` on.
    struct Damaged {
        whole: Cursor<Vec<u8>>,
        from: u64,
    }

    impl Read for Damaged {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let left = self.from.saturating_sub(self.whole.position()).min(buffer.len() as u64) as usize;
            if left == 0 && self.whole.position() < self.whole.get_ref().len() as u64 {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            self.whole.read(&mut buffer[..left])
        }
    }

    impl Seek for Damaged {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.whole.seek(to)
        }
    }

    #[test]
    fn damage_behind_its_signature_does_not_hide_a_file_system() {
        let damaged = |whole| Damaged { whole, from: 60_000 };
        assert!(inspect(&mut damaged(volume(0, b""))).is_err(), "the content is not known");
        assert_eq!(inspect(&mut damaged(volume(0, b"XFSB"))).unwrap(), Content::FileSystem("xfs"));
    }

    #[test]
    fn the_identity_of_a_file_system_is_read_where_its_type_keeps_it() {
        for (name, at) in [("xfs", 32), ("ext", 1128), ("btrfs", 65_568), ("f2fs", 1132)] {
            assert_eq!(uuid(&mut volume(at, &[7; 16]), name).unwrap(), Some([7; 16]), "{name}");
        }
        assert_eq!(uuid(&mut volume(0, b""), "jfs").unwrap(), None);
    }
}

//! Options of a mount, in the words of mount(8): those that it handles itself reach no kernel.

/// Longest list of options, in bytes: the kernel takes a page of options for the file system.
pub const OPTIONS_BYTES_MAX: usize = 2048;

/// Meaning of a mount option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MountOption<'a> {
    /// Flags of mount(2) that are set and cleared, as numbers of Linux.
    Flags { set: u64, clear: u64 },
    /// For readers of fstab such as systemd. It says nothing about the mount itself.
    ForOthers,
    /// For the file system.
    FileSystem(&'a str),
    /// The option asks for another thing than this mount, or for one that Mainstay decides.
    Refused { why: &'static str, remedy: &'static str },
}

const RDONLY: u64 = 1;
const NOSUID: u64 = 1 << 1;
const NODEV: u64 = 1 << 2;
const NOEXEC: u64 = 1 << 3;
const SYNCHRONOUS: u64 = 1 << 4;
const MANDLOCK: u64 = 1 << 6;
const DIRSYNC: u64 = 1 << 7;
const NOSYMFOLLOW: u64 = 1 << 8;
const NOATIME: u64 = 1 << 10;
const NODIRATIME: u64 = 1 << 11;
const SILENT: u64 = 1 << 15;
const RELATIME: u64 = 1 << 21;
const I_VERSION: u64 = 1 << 23;
const STRICTATIME: u64 = 1 << 24;
const LAZYTIME: u64 = 1 << 25;

/// Name, flags that it sets, flags that it clears.
const FLAGS: [(&str, u64, u64); 29] = [
    ("ro", RDONLY, 0),
    ("rw", 0, RDONLY),
    ("nosuid", NOSUID, 0),
    ("suid", 0, NOSUID),
    ("nodev", NODEV, 0),
    ("dev", 0, NODEV),
    ("noexec", NOEXEC, 0),
    ("exec", 0, NOEXEC),
    ("sync", SYNCHRONOUS, 0),
    ("async", 0, SYNCHRONOUS),
    ("dirsync", DIRSYNC, 0),
    ("noatime", NOATIME, RELATIME | STRICTATIME),
    ("atime", 0, NOATIME),
    ("nodiratime", NODIRATIME, 0),
    ("diratime", 0, NODIRATIME),
    ("relatime", RELATIME, NOATIME | STRICTATIME),
    ("norelatime", 0, RELATIME),
    ("strictatime", STRICTATIME, NOATIME | RELATIME),
    ("nostrictatime", 0, STRICTATIME),
    ("lazytime", LAZYTIME, 0),
    ("nolazytime", 0, LAZYTIME),
    ("silent", SILENT, 0),
    ("loud", 0, SILENT),
    ("mand", MANDLOCK, 0),
    ("nomand", 0, MANDLOCK),
    ("iversion", I_VERSION, 0),
    ("noiversion", 0, I_VERSION),
    ("nosymfollow", NOSYMFOLLOW, 0),
    ("symfollow", 0, NOSYMFOLLOW),
];

const FOR_OTHERS: [&str; 8] =
    ["defaults", "auto", "noauto", "nofail", "_netdev", "nouser", "noowner", "nogroup"];
const BY_USERS: [&str; 4] = ["user", "users", "owner", "group"];
const OTHER_MOUNTS: [&str; 13] = [
    "remount",
    "bind",
    "rbind",
    "move",
    "shared",
    "rshared",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "unbindable",
    "runbindable",
    "beneath",
];
const LOOPS: [&str; 4] = ["loop", "offset", "sizelimit", "encryption"];

/// The options of a list that is separated by commas, in its order. Empty ones are left out.
pub fn mount_options(list: &str) -> impl Iterator<Item = MountOption<'_>> {
    list.split(',').map(str::trim).filter(|option| !option.is_empty()).map(kind_of)
}

fn kind_of(option: &str) -> MountOption<'_> {
    if let Some(&(_, set, clear)) = FLAGS.iter().find(|(name, ..)| *name == option) {
        return MountOption::Flags { set, clear };
    }
    let name = option.split_once('=').map_or(option, |(name, _)| name);
    let refused = |why, remedy| MountOption::Refused { why, remedy };
    // Options of mount(8) itself. The mount point is made in any case.
    if let Some(what) = name.strip_prefix("X-mount.").or_else(|| name.strip_prefix("x-mount."))
        && what != "mkdir"
    {
        return refused("it is carried out by mount(8), which Mainstay does not use", "leave it out");
    }
    if FOR_OTHERS.contains(&option) || name == "comment" || name.starts_with("x-") || name.starts_with("X-") {
        return MountOption::ForOthers;
    }
    if BY_USERS.contains(&name) {
        return refused("it lets users mount the file system, which only Mainstay does", "leave it out");
    }
    if OTHER_MOUNTS.contains(&name) {
        return refused("it changes or copies another mount", "leave it out");
    }
    if LOOPS.contains(&name) {
        return refused("it is for files, and a volume is a device", "leave it out");
    }
    MountOption::FileSystem(option)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_fstab_reach_no_kernel() {
        let for_others = "defaults,nofail,_netdev,auto,noauto,x-systemd.requires=a.mount,x-gvfs-show,comment=db,X-mount.mkdir=0755";
        assert!(mount_options(for_others).all(|option| option == MountOption::ForOthers));
        for refused in [
            "user",
            "users",
            "owner",
            "remount",
            "bind",
            "loop",
            "offset=4096",
            "user=joe",
            "X-mount.subdir=a",
        ] {
            let found: Vec<_> = mount_options(refused).collect();
            assert!(matches!(found[..], [MountOption::Refused { .. }]), "{refused}: {found:?}");
        }
    }

    #[test]
    fn the_later_of_two_options_counts() {
        let flags = |list: &str| {
            mount_options(list).fold(0, |flags, option| match option {
                MountOption::Flags { set, clear } => flags & !clear | set,
                _ => flags,
            })
        };
        assert_eq!(flags("noatime, nodev,logbsize=256k"), NOATIME | NODEV);
        assert_eq!(flags("ro,rw,noatime,relatime"), RELATIME);
        assert_eq!(flags("nosuid,suid"), 0);
        let data: Vec<_> = mount_options("noatime,,logbsize=256k,defaults").collect();
        assert!(data.contains(&MountOption::FileSystem("logbsize=256k")));
    }
}

//! Directories that a machine needs as they are.
//!
//! Guarantees
//! - [`system_directory`] names the directory of the system that a path is, lies in or covers.
//!   Mainstay puts no user's files there.
//! - The paths that a Linux system leaves to data and to local programs stay free: below `/srv`,
//!   `/mnt`, `/opt`, `/home`, `/var/lib`, `/usr/local` and the like.

/// Directories of the system, all that is in them included.
const TREES: [&str; 70] = [
    "/bin",
    "/boot",
    "/dev",
    "/efi",
    "/etc",
    "/gnu",
    "/initrd",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/lost+found",
    "/nix",
    "/proc",
    "/root/.ssh",
    "/run/credentials",
    "/run/dbus",
    "/run/initramfs",
    "/run/lock",
    "/run/log",
    "/run/netns",
    "/run/systemd",
    "/run/udev",
    "/run/user",
    "/sbin",
    "/snap",
    "/sys",
    "/usr/bin",
    "/usr/etc",
    "/usr/games",
    "/usr/include",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/libexec",
    "/usr/libx32",
    "/usr/local/bin",
    "/usr/local/etc",
    "/usr/local/include",
    "/usr/local/lib",
    "/usr/local/lib64",
    "/usr/local/libexec",
    "/usr/local/man",
    "/usr/local/sbin",
    "/usr/local/share",
    "/usr/sbin",
    "/usr/share",
    "/usr/src",
    "/var/cache/apt",
    "/var/cache/dnf",
    "/var/lib/NetworkManager",
    "/var/lib/alternatives",
    "/var/lib/apt",
    "/var/lib/dbus",
    "/var/lib/dhcp",
    "/var/lib/dnf",
    "/var/lib/dpkg",
    "/var/lib/initramfs-tools",
    "/var/lib/pacman",
    "/var/lib/pam",
    "/var/lib/polkit-1",
    "/var/lib/private",
    "/var/lib/rpm",
    "/var/lib/selinux",
    "/var/lib/systemd",
    "/var/lib/ucf",
    "/var/lock",
    "/var/log/journal",
    "/var/run",
    "/var/spool/cron",
];

/// Directories of the system with room for others in them.
const SHARED: [&str; 16] = [
    "/home",
    "/media",
    "/opt",
    "/root",
    "/run",
    "/tmp",
    "/usr",
    "/usr/local",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/log",
    "/var/mail",
    "/var/opt",
    "/var/spool",
    "/var/tmp",
];

/// Directories of [`SHARED`] in which only other directories of that list are free: `/usr/x` is the
/// system's, `/usr/local/x` is not.
const NOT_BELOW: [&str; 1] = ["/usr"];

/// The directory of the system that `path` is, lies in or covers; `None` where a user may put
/// something. `path` is absolute and has no links, `.` or `..` in it.
#[must_use]
pub fn system_directory(path: &str) -> Option<&'static str> {
    if path == "/" {
        return Some("/");
    }
    if let Some(tree) = TREES.iter().find(|tree| is_within(path, tree)) {
        return Some(tree);
    }
    let shared = |name: &&&str| path == **name || is_within(name, path);
    let within = |name: &&&str| is_within(path, name) && !is_within(path, "/usr/local");
    SHARED.iter().find(shared).or_else(|| NOT_BELOW.iter().find(within)).copied()
}

/// Whether `path` is `above` or below it. Both are plain and absolute.
#[must_use]
pub fn is_within(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_the_system_are_refused_as_places_of_services() {
        for path in [
            "/",
            "/bin",
            "/boot/efi",
            "/dev/shm",
            "/etc",
            "/etc/ssh",
            "/etc/mysql",
            "/home",
            "/lib/modules",
            "/lib64",
            "/opt",
            "/proc/1",
            "/root",
            "/root/.ssh",
            "/run",
            "/run/systemd/system",
            "/sbin",
            "/sys/fs/cgroup",
            "/tmp",
            "/usr",
            "/usr/bin",
            "/usr/lib/systemd",
            "/usr/local",
            "/usr/local/bin",
            "/usr/share",
            "/usr/share/doc/x",
            "/usr/x",
            "/var",
            "/var/cache",
            "/var/lib",
            "/var/lib/dpkg",
            "/var/lib/dpkg/info",
            "/var/lib/rpm",
            "/var/lib/systemd",
            "/var/log",
            "/var/log/journal",
            "/var/run",
            "/var/run/db",
            "/var/spool/cron",
            "/var/tmp",
        ] {
            assert!(
                system_directory(path).is_some_and(|found| is_within(path, found) || is_within(found, path)),
                "{path}"
            );
        }
    }

    #[test]
    fn data_and_local_programs_have_their_places() {
        for path in [
            "/srv",
            "/srv/db",
            "/mnt",
            "/mnt/db",
            "/media/disk",
            "/opt/app",
            "/home/app",
            "/root/db",
            "/data",
            "/pgdata/16",
            "/tmp/db",
            "/run/db",
            "/usr/local/mysql/data",
            "/usr/local/pgsql",
            "/var/lib/mysql",
            "/var/lib/postgresql/16",
            "/var/lib/docker",
            "/var/log/mysql",
            "/var/www",
            "/var/opt/mssql",
            "/var/tmp/db",
            "/var/spool/postfix",
            // Names that only begin like one of the system.
            "/binary",
            "/etcetera",
            "/usrlocal",
            "/var/library",
            "/library",
            "/var/lib/dpkg2",
            "/system",
            "/sysadmin",
        ] {
            assert_eq!(system_directory(path), None, "{path}");
        }
    }

    #[test]
    fn a_directory_above_a_system_directory_is_one_too() {
        for path in TREES.iter().chain(&SHARED) {
            let mut above = *path;
            while let Some((parent, _)) = above.rsplit_once('/').filter(|(parent, _)| !parent.is_empty()) {
                assert!(system_directory(parent).is_some(), "{parent} holds {path}");
                above = parent;
            }
        }
    }
}

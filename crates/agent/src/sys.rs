//! The few calls into the kernel for which no crate has a safe form.
#![allow(unsafe_code)]

use crate::service::footing::Footing;
use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Gid, Uid};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Numeric identity that a process gets.
#[derive(Clone, Debug)]
pub struct Identity {
    pub uid: Uid,
    pub gid: Gid,
    pub groups: Vec<Gid>,
}

/// Arranges that `command` starts as leader of a session of its own, inside the cgroup behind
/// `cgroup_procs` (its open `cgroup.procs`) before it runs its first instruction, and as
/// `identity`. It does not begin if its `footing` does not hold.
pub fn isolate(command: &mut Command, cgroup_procs: File, identity: Option<Identity>, footing: Footing) {
    // An agent that the kernel spares when memory is short would hand that on to the database, and
    // everything else would be killed before it.
    let is_spared = std::fs::read_to_string("/proc/self/oom_score_adj").is_ok_and(|own| own.starts_with('-'));
    let prepare = move || -> io::Result<()> {
        (&cgroup_procs).write_all(b"0")?;
        if is_spared
            && let Ok(own) =
                open(c"/proc/self/oom_score_adj", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())
        {
            let _ = nix::unistd::write(&own, b"0");
        }
        // The process looks only now: from here on a kill of the cgroup finds it.
        footing.look()?;
        nix::unistd::setsid()?;
        if let Some(identity) = &identity {
            nix::unistd::setgroups(&identity.groups)?;
            nix::unistd::setgid(identity.gid)?;
            nix::unistd::setuid(identity.uid)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, in a process that may
    // hold copies of locks of other threads. The closure makes the system calls write, open, close,
    // pread, statx, setsid, setgroups, setgid and setuid on values made before the fork; it neither
    // allocates nor takes a lock (an error from the operating system is carried as its number).
    unsafe {
        command.pre_exec(prepare);
    }
}

/// Ignores the signals that end a process by default and that others may send by mistake, to a
/// whole session or group.
pub fn ignore_signals() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for name in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGPIPE] {
        // SAFETY: ignoring a signal runs no handler.
        let _ = unsafe { signal(name, SigHandler::SigIgn) };
    }
}

/// The link-layer address `mac` on interface `index`, for frames of this Ethernet protocol.
#[must_use]
pub fn link_address(index: u32, mac: [u8; 6], protocol: u16) -> socket2::SockAddr {
    let length = u32::try_from(size_of::<libc::sockaddr_ll>()).expect("an address is a few bytes");
    let mut storage = socket2::SockAddrStorage::zeroed();
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    // SAFETY: `SockAddrStorage` is at least as large and as aligned as every socket address of the
    // kernel, `sockaddr_ll` among them, and all bit patterns of its fields are valid.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = u16::try_from(libc::AF_PACKET).expect("address families are small");
    link.sll_protocol = protocol.to_be();
    link.sll_ifindex = i32::try_from(index).unwrap_or(0);
    link.sll_halen = 6;
    link.sll_addr = address;
    // SAFETY: the storage holds a complete `sockaddr_ll` of the stated length and family.
    unsafe { socket2::SockAddr::new(storage, length) }
}

/// A process that may be no child of this one.
pub struct OtherProcess(OwnedFd);

impl OtherProcess {
    /// The process that has this id now. It stays the same one when the id is used again.
    ///
    /// # Errors
    /// When there is none, or when the kernel is older than 5.3.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: the call takes two numbers and no pointer.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just made this descriptor, and nothing else knows it.
            Ok(fd) if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits until the process has ended, and no longer than `patience`; says whether it has.
    #[must_use]
    pub fn ends_within(&self, patience: std::time::Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = i32::try_from(patience.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `poll` is one valid `pollfd`, and lives until the call returns.
        let ready = unsafe { libc::poll(&raw mut poll, 1, ms) };
        ready == 1 && poll.revents & libc::POLLIN != 0
    }
}

/// Whether the kernel speaks IPv6 on interfaces of this network namespace.
#[must_use]
pub fn has_ipv6() -> bool {
    std::path::Path::new("/proc/sys/net/ipv6/conf/all").exists()
}

/// Ethernet protocol numbers.
pub const ARP_PROTOCOL: u16 = 0x0806;
pub const IPV6_PROTOCOL: u16 = 0x86dd;

/// Why the kernel would not mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    UnknownType,
    Option(String),
}

const FSCONFIG_SET_FLAG: libc::c_uint = 0;
const FSCONFIG_SET_STRING: libc::c_uint = 1;

/// Asks the kernel whether it knows a file system and takes these options for it, separated by
/// commas. Nothing is mounted, and no device is looked at. If the kernel does not tell, because it
/// is too old or forbids the question, the options count as taken.
///
/// # Errors
/// The file system or the option that the kernel refuses.
pub fn try_options(fstype: &str, options: &str) -> Result<(), Refusal> {
    let Ok(name) = CString::new(fstype) else { return Err(Refusal::UnknownType) };
    // SAFETY: fsopen(2) reads a string that ends with a zero, and gives a descriptor or -1.
    let opened = unsafe { libc::syscall(libc::SYS_fsopen, name.as_ptr(), libc::FSOPEN_CLOEXEC) };
    let Ok(descriptor @ 0..) = i32::try_from(opened) else {
        return if Errno::last() == Errno::ENODEV { Err(Refusal::UnknownType) } else { Ok(()) };
    };
    // SAFETY: the kernel has just made the descriptor for this call, and nothing else owns it.
    let context = unsafe { OwnedFd::from_raw_fd(descriptor) };
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let (key, value) = match option.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (option, None),
        };
        let (Ok(key), Ok(value)) = (CString::new(key), value.map(CString::new).transpose()) else {
            return Err(Refusal::Option(option.to_owned()));
        };
        let (command, value) = match &value {
            Some(value) => (FSCONFIG_SET_STRING, value.as_ptr()),
            None => (FSCONFIG_SET_FLAG, std::ptr::null()),
        };
        // SAFETY: fsconfig(2) reads two strings that end with a zero and outlive the call, the
        // second one only with a command that has one; the descriptor is open.
        let answer = unsafe {
            libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key.as_ptr(), value, 0)
        };
        if answer < 0 && Errno::last() == Errno::EINVAL {
            return Err(Refusal::Option(option.to_owned()));
        }
    }
    Ok(())
}

mod calls {
    nix::ioctl_read!(block_device_bytes, 0x12, 114, u64);
    nix::ioctl_read_bad!(loop_status, 0x4c05, super::LoopStatus);
    nix::ioctl_read!(xfs_geometry, b'X', 126, super::XfsGeometry);
    nix::ioctl_write_ptr!(xfs_grow, b'X', 110, super::XfsGrow);
    nix::ioctl_write_ptr!(ext4_resize, b'f', 16, u64);
    nix::ioctl_write_ptr!(btrfs_resize, 0x94, 3, super::BtrfsArguments);
}

/// `struct loop_info64`, what of it is used by name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LoopStatus {
    /// Number of the device of the file system that holds the file, as `stat` gives it.
    device: u64,
    rest: [u64; 28],
}

/// Number of the device of the file system that holds the file under a loop device, as `stat`
/// gives it.
pub fn loop_file_device(device: &File) -> Result<u64, Errno> {
    let mut status = LoopStatus::default();
    // SAFETY: LOOP_GET_STATUS64 writes one `loop_info64`.
    unsafe { calls::loop_status(device.as_raw_fd(), &raw mut status) }?;
    Ok(status.device)
}

/// `struct xfs_fsop_geom`, what of it is used by name.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct XfsGeometry {
    pub block_bytes: u32,
    others: [u32; 6],
    /// Share of the space that inodes may take.
    pub inode_percent: u32,
    pub data_blocks: u64,
    rest: [u64; 27],
}

/// `struct xfs_growfs_data`.
#[repr(C)]
pub struct XfsGrow {
    blocks: u64,
    inode_percent: u32,
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
pub struct BtrfsArguments {
    descriptor: i64,
    name: [u8; 4088],
}

const _: () = assert!(size_of::<XfsGeometry>() == 256 && size_of::<XfsGrow>() == 16);
const _: () = assert!(size_of::<BtrfsArguments>() == 4096);

/// Size of a block device.
pub fn device_bytes(device: &File) -> Result<u64, Errno> {
    let mut bytes = 0;
    // SAFETY: BLKGETSIZE64 writes one u64, and the descriptor is open.
    unsafe { calls::block_device_bytes(device.as_raw_fd(), &raw mut bytes) }?;
    Ok(bytes)
}

/// Reads the geometry of the XFS that has this file.
pub fn xfs_geometry(file: &File, geometry: &mut XfsGeometry) -> Result<(), Errno> {
    // SAFETY: XFS_IOC_FSGEOMETRY writes one `xfs_fsop_geom`, which has the size of `XfsGeometry`.
    unsafe { calls::xfs_geometry(file.as_raw_fd(), &raw mut *geometry) }?;
    Ok(())
}

/// Makes the XFS that has this file this number of blocks large.
pub fn xfs_grow(file: &File, blocks: u64, inode_percent: u32) -> Result<(), Errno> {
    let grow = XfsGrow { blocks, inode_percent };
    // SAFETY: XFS_IOC_FSGROWFSDATA reads one `xfs_growfs_data`.
    unsafe { calls::xfs_grow(file.as_raw_fd(), &raw const grow) }?;
    Ok(())
}

/// Makes the ext4 that has this file this number of blocks large.
pub fn ext4_grow(file: &File, blocks: u64) -> Result<(), Errno> {
    // SAFETY: EXT4_IOC_RESIZE_FS reads one u64.
    unsafe { calls::ext4_resize(file.as_raw_fd(), &raw const blocks) }?;
    Ok(())
}

/// Makes the btrfs that has this file as large as its device.
pub fn btrfs_grow(file: &File) -> Result<(), Errno> {
    let mut arguments = BtrfsArguments { descriptor: 0, name: [0; 4088] };
    arguments.name[..3].copy_from_slice(b"max");
    // SAFETY: BTRFS_IOC_RESIZE reads one `btrfs_ioctl_vol_args`, whose name ends with a zero.
    unsafe { calls::btrfs_resize(file.as_raw_fd(), &raw const arguments) }?;
    Ok(())
}

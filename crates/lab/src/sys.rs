//! Calls that only the kernel's own interface offers. The only unsafe code of this crate.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// `_IOR('X', 125, __u32)`.
const XFS_IOC_GOINGDOWN: libc::c_ulong = 0x8004_587D;
const XFS_FSOP_GOING_FLAGS_NOLOGFLUSH: u32 = 2;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232);
const _: () = assert!(size_of::<LoopConfig>() == 304);

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Number of a loop device that is free now. Another process may take it first.
pub fn loop_free(control: &File) -> io::Result<u32> {
    // SAFETY: this request takes no argument and touches no memory of this process.
    check(unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE as _) })
        .map(|number| number.cast_unsigned())
}

/// Attaches a file with direct I/O. The device detaches by itself when its last user closes it.
pub fn loop_attach(device: &File, file: &File, block_bytes: u32) -> io::Result<()> {
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        sizelimit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = file.as_raw_fd().cast_unsigned();
    let config = LoopConfig { fd, block_size: block_bytes, info, reserved: [0; 8] };
    // SAFETY: `config` has the layout the request expects (asserted above) and lives through the
    // call, which only reads it.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE as _, &raw const config) }).map(drop)
}

/// Detaches a loop device, or lets it detach when its last user closes it.
pub fn loop_detach(device: &File) -> io::Result<()> {
    // SAFETY: this request takes no pointer and touches no memory of this process.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD as _, 0) }).map(drop)
}

/// Shuts an XFS file system down as a power cut would: all that is only in memory is lost, the log
/// included.
pub fn xfs_power_cut(mounted: &File) -> io::Result<()> {
    let flags = XFS_FSOP_GOING_FLAGS_NOLOGFLUSH;
    // SAFETY: the request reads four bytes from the pointer, which points to a live u32.
    check(unsafe { libc::ioctl(mounted.as_raw_fd(), XFS_IOC_GOINGDOWN as _, &raw const flags) }).map(drop)
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// From now on the usual signals that end a command only leave a note. So the command can clean up,
/// or wait for a child that received the same signal. A handler, not "ignore": children start with
/// the default.
pub fn note_interrupts() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: the action is zeroed and then given a handler that only stores to an atomic,
        // which is allowed in a signal handler; the old action is not asked for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Lets the kernel kill the child when this process dies, however it dies.
pub fn die_with_parent(command: &mut Command) {
    // SAFETY: the closure makes one system call that is allowed between fork and exec, and
    // allocates nothing.
    unsafe {
        command.pre_exec(|| check(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL)).map(drop));
    }
}

/// Closes everything but the standard streams when another program is started. A node outlives the
/// lab command, and must not hold the files that the caller of the command had open.
pub fn keep_only_standard_streams() {
    // SAFETY: this only sets the close-on-exec flag of descriptors and touches no memory.
    unsafe {
        libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed());
    }
}

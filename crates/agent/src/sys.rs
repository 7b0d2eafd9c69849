//! The few calls into the kernel for which no crate has a safe form.
#![allow(unsafe_code)]

use nix::unistd::{Gid, Uid};
use std::fs::File;
use std::io::{self, Write};
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
/// `cgroup_procs` (its open `cgroup.procs`) before it runs its first instruction, and as `identity`.
pub fn isolate(command: &mut Command, cgroup_procs: File, identity: Option<Identity>) {
    let prepare = move || -> io::Result<()> {
        (&cgroup_procs).write_all(b"0")?;
        nix::unistd::setsid()?;
        if let Some(identity) = &identity {
            nix::unistd::setgroups(&identity.groups)?;
            nix::unistd::setgid(identity.gid)?;
            nix::unistd::setuid(identity.uid)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed, in a process that may hold
    // copies of locks of other threads. The closure makes the system calls write, setsid, setgroups,
    // setgid and setuid on values made before the fork; it neither allocates nor takes a lock (an error
    // from the operating system is carried as its number).
    unsafe {
        command.pre_exec(prepare);
    }
}

/// The link-layer address `mac` on interface `index`, for ARP.
#[must_use]
pub fn arp_address(index: u32, mac: [u8; 6]) -> socket2::SockAddr {
    let length = u32::try_from(size_of::<libc::sockaddr_ll>()).expect("an address is a few bytes");
    let mut storage = socket2::SockAddrStorage::zeroed();
    let mut address = [0; 8];
    address[..6].copy_from_slice(&mac);
    // SAFETY: `SockAddrStorage` is at least as large and as aligned as every socket address of the kernel,
    // `sockaddr_ll` among them, and all bit patterns of its fields are valid.
    let link = unsafe { storage.view_as::<libc::sockaddr_ll>() };
    link.sll_family = u16::try_from(libc::AF_PACKET).expect("address families are small");
    link.sll_protocol = ARP_PROTOCOL.to_be();
    link.sll_ifindex = i32::try_from(index).unwrap_or(0);
    link.sll_halen = 6;
    link.sll_addr = address;
    // SAFETY: the storage holds a complete `sockaddr_ll` of the stated length and family.
    unsafe { socket2::SockAddr::new(storage, length) }
}

/// Ethernet protocol number of ARP.
pub const ARP_PROTOCOL: u16 = 0x0806;

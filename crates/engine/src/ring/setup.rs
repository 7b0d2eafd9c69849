//! How a ring is made, and what it asks of the kernel.

use super::{ENTRIES, RingError};
use io_uring::{IoUring, opcode};
use std::io;

/// Makes a ring with the best flags that the kernel takes, and says whether it has all of them.
pub(super) fn build() -> Result<(IoUring, bool), RingError> {
    let mut full = IoUring::builder();
    full.setup_clamp().setup_single_issuer().setup_defer_taskrun().setup_coop_taskrun();
    full.setup_submit_all().setup_taskrun_flag().setup_cqsize(ENTRIES * 8);
    match full.build(ENTRIES) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {}
        result => return result.map(|uring| (uring, true)).map_err(explain),
    }
    let mut plain = IoUring::builder();
    plain.setup_clamp().setup_cqsize(ENTRIES * 8);
    plain.build(ENTRIES).map(|uring| (uring, false)).map_err(explain)
}

fn explain(source: io::Error) -> RingError {
    match source.raw_os_error() {
        Some(libc::ENOSYS) => RingError::Missing(source),
        Some(libc::EPERM | libc::EACCES) => {
            let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
            RingError::Forbidden { sysctl: sysctl.trim().to_owned(), source }
        }
        Some(libc::ENOMEM) => RingError::Memory(source),
        _ => RingError::System { what: "making a ring", source },
    }
}

/// Whether the kernel can do what a ring needs.
pub(super) fn check_features(uring: &IoUring) -> Result<(), RingError> {
    let params = uring.params();
    if !params.is_feature_nodrop() {
        return Err(RingError::Unsupported("the guarantee that completions are not dropped"));
    }
    if !params.is_feature_ext_arg() {
        return Err(RingError::Unsupported("waiting with a time limit"));
    }
    let mut probe = io_uring::Probe::new();
    let known = uring.submitter().register_probe(&mut probe);
    known.map_err(|source| RingError::System { what: "probing the ring", source })?;
    let needed = [
        (opcode::Read::CODE, "read"),
        (opcode::Writev::CODE, "vectored write"),
        (opcode::Fsync::CODE, "fsync"),
        (opcode::Fallocate::CODE, "fallocate"),
        (opcode::Accept::CODE, "accept"),
        (opcode::Connect::CODE, "connect"),
        (opcode::Recv::CODE, "receive"),
        (opcode::SendMsg::CODE, "vectored send"),
        (opcode::RecvMsg::CODE, "vectored receive"),
        (opcode::PollAdd::CODE, "poll"),
        (opcode::AsyncCancel::CODE, "cancel"),
    ];
    match needed.iter().find(|(code, _)| !probe.is_supported(*code)) {
        Some((_, name)) => Err(RingError::Unsupported(name)),
        None => Ok(()),
    }
}

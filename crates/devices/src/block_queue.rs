//! Device nodes and queue settings, common to the kernel's block devices over a frontend.
//!
//! One setting matters for more than speed: what is longer than a request of the engine may be is
//! cut by the kernel, anywhere. [`limit_requests`] sets the limit, and tells whether it holds
//! (R26).

// A device node is made by a system call that takes a pointer to a string.
#![allow(unsafe_code)]

use mainstay_types::{BLOCK_BYTES, DATABASE_PAGE_BYTES, REQUEST_BYTES_MAX};
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Largest discard that arrives as one request, in bytes: large enough for mkfs, small enough for a
/// log entry.
const DISCARD_BYTES_MAX: u64 = 64 << 20;

/// Sets what the block layer leaves to the administrator. None of it is needed to be right, only to
/// be fast, and some systems mount sysfs read-only.
pub fn tune(device: &Path) {
    let settings = [
        // Requests come one by one from a file system that has ordered them; the engine batches
        // them.
        ("scheduler", "none".to_owned()),
        ("discard_max_bytes", DISCARD_BYTES_MAX.to_string()),
        // The file system reads ahead as far as one request goes.
        ("read_ahead_kb", (REQUEST_BYTES_MAX / 1024).to_string()),
    ];
    for (name, value) in settings {
        set(device, name, &value);
    }
}

/// Makes no request of the device longer than `bytes`, nor so long that the kernel may cut it for
/// its pieces of memory, and reads back what the kernel made of it. Returns the longest write that
/// reaches the engine as one request, in bytes. A longer write is cut at a multiple of the largest
/// page of a database, counted from its start.
///
/// # Errors
/// Why longer requests remain possible, in words. The kernel cuts those where it likes, so that a
/// page in the middle of one may become a part of two entries of the log.
pub fn limit_requests(device: &Path, bytes: u64) -> Result<u64, String> {
    let pieces = setting(device, "max_segments").and_then(|setting| fs::read_to_string(setting).ok());
    let bytes = uncut_bytes(bytes, pieces.and_then(|pieces| pieces.trim().parse().ok()));
    set(device, SECTORS, &(bytes / 1024).to_string());
    let now = setting(device, SECTORS).and_then(|setting| fs::read_to_string(setting).ok());
    judge_limit(device, now.as_deref(), bytes)
}

/// Longest request of at most `bytes` bytes that is not cut for its pieces of memory, of which the
/// kernel takes `pieces` at once. Each page of memory may be a piece of its own, and memory that
/// begins inside a page has one more.
pub fn uncut_bytes(bytes: u64, pieces: Option<u64>) -> u64 {
    let uncut = pieces.map_or(bytes, |pieces| bytes.min(pieces.saturating_sub(1) * BLOCK_BYTES));
    let whole_pages = uncut / LARGEST_PAGE * LARGEST_PAGE;
    if whole_pages == 0 { uncut.max(BLOCK_BYTES) } else { whole_pages }
}

fn judge_limit(device: &Path, now: Option<&str>, bytes: u64) -> Result<u64, String> {
    let (device, wanted) = (device.display(), bytes / 1024);
    match now.and_then(|now| now.trim().parse::<u64>().ok()) {
        Some(kb) if kb <= wanted => Ok(kb * 1024),
        Some(kb) => Err(format!(
            "the kernel cuts long writes: {SECTORS} of {device} is {kb} and could not be set to {wanted}; is /sys read-only?"
        )),
        None => Err(format!("the kernel may cut long writes: {SECTORS} of {device} cannot be read")),
    }
}

/// The largest page of a database, in bytes; a multiple of all others.
const LARGEST_PAGE: u64 = DATABASE_PAGE_BYTES[DATABASE_PAGE_BYTES.len() - 1];

/// Longest request of a device, in KiB.
const SECTORS: &str = "max_sectors_kb";

/// File of a queue setting.
fn setting(device: &Path, name: &str) -> Option<PathBuf> {
    Some(Path::new("/sys/block").join(device.file_name()?).join("queue").join(name))
}

/// Sets a queue setting, unless it has that value already: for each change the kernel stops the
/// queue for 10 to 25 ms, and a failover waits for it. A loop device has the right scheduler from
/// the start, and keeps the settings of its earlier life.
pub fn set(device: &Path, name: &str, value: &str) {
    let Some(setting) = setting(device, name) else { return };
    if fs::read_to_string(&setting).is_ok_and(|now| is_set(&now, value)) {
        return;
    }
    if let Err(error) = fs::write(setting, value) {
        tracing::debug!(?device, name, value, %error, "queue setting not taken");
    }
}

/// Whether a setting is as wanted: alone, or the one in brackets among those that there are.
fn is_set(now: &str, value: &str) -> bool {
    let chosen = now.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
    chosen.unwrap_or(now.trim()) == value
}

/// Makes the node of a device where no udev does so, as in a container that has /dev without udev.
pub fn ensure_node(path: &Path, numbers: libc::dev_t) {
    if path.exists() {
        return;
    }
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return };
    // SAFETY: the pointer is to a zero-terminated string that outlives the call. A failure shows at
    // the open that follows; EEXIST means that udev was faster.
    unsafe { libc::mknod(name.as_ptr(), libc::S_IFBLK | 0o660, numbers) };
}

#[cfg(test)]
mod tests {
    use super::{LARGEST_PAGE, is_set, judge_limit, uncut_bytes};
    use mainstay_types::{BLOCK_BYTES, DATABASE_PAGE_BYTES};
    use std::path::Path;

    /// S712: no write is promised to be whole where the kernel may cut it.
    #[test]
    fn a_limit_of_requests_that_does_not_hold_is_told_with_the_device() {
        let judge = |now| judge_limit(Path::new("/dev/loop3"), now, 1 << 20);
        assert_eq!(judge(Some("1024\n")), Ok(1 << 20));
        assert_eq!(judge(Some("512\n")), Ok(512 << 10), "longer writes come as several requests");
        let words = judge(Some("1280\n")).expect_err("longer than the engine takes");
        assert!(words.contains("/dev/loop3") && words.contains("1280"), "{words}");
        for unknown in [None, Some(""), Some("none")] {
            judge(unknown).expect_err("not known");
        }
    }

    /// S752: a request is cut between pages before it is cut for its pieces of memory.
    #[test]
    fn a_request_has_fewer_pieces_of_memory_than_the_kernel_takes_at_once() {
        const MIB: u64 = 1 << 20;
        for (bytes, pieces, uncut) in [
            (MIB, Some(128), 448 << 10),
            (MIB, Some(65535), MIB),
            (MIB, Some(256), MIB - LARGEST_PAGE),
            (MIB, None, MIB),
            (128 << 10, Some(128), 128 << 10),
            (MIB, Some(9), 32 << 10),
            (MIB, Some(0), 4096),
        ] {
            assert_eq!(uncut_bytes(bytes, pieces), uncut, "{bytes} bytes in {pieces:?}");
        }
        assert!(DATABASE_PAGE_BYTES.iter().all(|page| LARGEST_PAGE.is_multiple_of(*page)));
        for pieces in 2..300u64 {
            let uncut = uncut_bytes(MIB, Some(pieces));
            assert!(uncut / BLOCK_BYTES < pieces, "{pieces} pieces hold {uncut} bytes wherever they begin");
        }
    }

    #[test]
    fn a_setting_is_known_alone_and_among_others() {
        assert!(is_set("1024\n", "1024") && !is_set("1280\n", "1024"));
        assert!(is_set("[none] mq-deadline kyber \n", "none") && is_set("mq-deadline [none]\n", "none"));
        assert!(!is_set("none [mq-deadline]\n", "none") && !is_set("", "none"));
    }
}

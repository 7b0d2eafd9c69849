//! Device nodes and queue settings, common to the kernel's block devices over a frontend.

// A device node is made by a system call that takes a pointer to a string.
#![allow(unsafe_code)]

use mainstay_types::REQUEST_BYTES_MAX;
use std::ffi::CString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
        // As long as one request to the engine may be, so that none is cut into a long and a short
        // part.
        ("max_sectors_kb", (REQUEST_BYTES_MAX / 1024).to_string()),
        ("discard_max_bytes", DISCARD_BYTES_MAX.to_string()),
        // The file system reads ahead as far as one request goes.
        ("read_ahead_kb", (REQUEST_BYTES_MAX / 1024).to_string()),
    ];
    for (name, value) in settings {
        set(device, name, &value);
    }
}

/// Sets a queue setting, unless it has that value already: for each change the kernel stops the
/// queue for 10 to 25 ms, and a failover waits for it. A loop device has the right scheduler from
/// the start, and keeps the settings of its earlier life.
pub fn set(device: &Path, name: &str, value: &str) {
    let Some(device) = device.file_name() else { return };
    let setting = Path::new("/sys/block").join(device).join("queue").join(name);
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
    use super::is_set;

    #[test]
    fn a_setting_is_known_alone_and_among_others() {
        assert!(is_set("1024\n", "1024") && !is_set("1280\n", "1024"));
        assert!(is_set("[none] mq-deadline kyber \n", "none") && is_set("mq-deadline [none]\n", "none"));
        assert!(!is_set("none [mq-deadline]\n", "none") && !is_set("", "none"));
    }
}

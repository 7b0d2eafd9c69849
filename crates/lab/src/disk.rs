//! A node's disk: a sparse image file, a loop device with direct I/O, XFS on it. With
//! `--directories` the disk is a directory instead, and none of this is needed.

use super::{sys, tool};
use crate::failure::{Code, Context, Failure, Outcome};
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Sector size of the device; the same as a block of a volume, so the engine's direct writes fit.
const SECTOR_BYTES: u32 = 4096;
/// XFS refuses less.
pub const DISK_BYTES_MIN: u64 = 300 << 20;

/// An attached loop device. It stays attached as long as this, or a mount of it, exists.
pub struct Attached {
    pub path: PathBuf,
    _device: File,
}

/// How often XFS pushes its metadata, for the whole machine. Agents shorten it when they mount a
/// service's file system, as they would on a machine of their own.
const XFS_PUSH: &str = "/proc/sys/fs/xfs/xfssyncd_centisecs";

/// The machine's setting, if it has one.
pub fn xfs_push() -> Option<String> {
    std::fs::read_to_string(XFS_PUSH).ok().map(|text| text.trim().to_owned())
}

/// Puts the machine's setting back.
pub fn restore_xfs_push(before: &str) -> Outcome<()> {
    std::fs::write(XFS_PUSH, before).or_fail(Code::LabSysctl, || format!("write {XFS_PUSH}"))
}

/// Makes the image with an empty file system. `reflink`: the file system can clone files.
pub fn create(image: &Path, bytes: u64, reflink: bool) -> Outcome<()> {
    File::create(image)
        .and_then(|file| file.set_len(bytes))
        .or_fail(Code::LabDisk, || format!("make the disk {}", image.display()))?;
    let attached = attach(image)?;
    let reflink = if reflink { "reflink=1" } else { "reflink=0" };
    tool::run("mkfs.xfs", &["-q", "-K", "-m", reflink, &attached.path.to_string_lossy()])
}

pub fn attach(image: &Path) -> Outcome<Attached> {
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path);
    let file = open(image).or_fail(Code::LabDisk, || format!("open the disk {}", image.display()))?;
    let control = open(Path::new("/dev/loop-control")).map_err(|error| {
        Failure::new(Code::LabDisk, format!("cannot open /dev/loop-control: {error}"), "modprobe loop")
    })?;
    // Another process can take a free device between the question and its use.
    for _ in 0..50 {
        let number = sys::loop_free(&control).or_fail(Code::LabDisk, || "find a free loop device".into())?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path).or_fail(Code::LabDisk, || format!("open {}", path.display()))?;
        match sys::loop_attach(&device, &file, SECTOR_BYTES) {
            Ok(()) => return Ok(Attached { path, _device: device }),
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            other => other.or_fail(Code::LabDisk, || format!("attach {}", image.display()))?,
        }
    }
    Err(Failure::new(Code::LabDisk, "no loop device stays free long enough", "Try again."))
}

/// Loop devices whose file lies in `dir`, also when the file has been deleted.
pub fn attached_below(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return vec![] };
    let below = |name: &str| {
        let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        file.is_ok_and(|file| Path::new(file.trim()).starts_with(dir))
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| below(name)).map(|name| Path::new("/dev").join(name)).collect()
}

/// Waits until no loop device uses a file in `dir`, detaching what does not go by itself; returns
/// what still remains when the time is over.
pub fn wait_detached(dir: &Path, limit: Duration) -> Vec<PathBuf> {
    let start = Instant::now();
    let mut asked = false;
    loop {
        let left = attached_below(dir);
        if left.is_empty() || start.elapsed() > limit {
            return left;
        }
        // Mounts go away together with the namespace of their processes, a moment after those.
        if !asked && start.elapsed() > Duration::from_millis(500) {
            asked = true;
            for device in &left {
                let _ = File::open(device).and_then(|device| sys::loop_detach(&device));
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Loses everything on the file system mounted at `path` that is not durable yet.
pub fn power_cut(path: &Path) -> Outcome<()> {
    File::open(path)
        .and_then(|mounted| sys::xfs_power_cut(&mounted))
        .or_fail(Code::LabDisk, || format!("cut the power of {}", path.display()))
}

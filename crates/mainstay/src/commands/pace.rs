//! How far long work is, how fast it goes, and how long the rest takes.

use super::resource::duration;
use crate::output::Progress;
use mainstay_api::rest::{PeerView, ResourceView};
use mainstay_types::size::size_words;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Least time over which a rate is measured.
const MEASURED_FOR: Duration = Duration::from_secs(1);

/// Replicas that are filled, as one command sees them again and again.
#[derive(Default)]
pub struct Pace {
    /// Bytes that a replica lacked when it was seen first.
    lacked: BTreeMap<String, (Instant, u64)>,
}

impl Pace {
    /// One line about work on a resource: what is being filled first, because the end of a line may
    /// have no room. `summary`: of the resource.
    pub fn line(&mut self, doing: &str, resource: &ResourceView, summary: &str) -> String {
        let live = resource.replicas.iter().filter_map(|replica| replica.live.as_ref());
        let now = Instant::now();
        let filled: Vec<String> =
            live.flat_map(|live| &live.peers).filter_map(|peer| self.filled(peer, now)).collect();
        if filled.is_empty() {
            format!("{doing}: {summary}")
        } else {
            format!("{doing}: {}; {summary}", filled.join(", "))
        }
    }

    fn filled(&mut self, peer: &PeerView, now: Instant) -> Option<String> {
        let node = &peer.node;
        if let Some(copied) = copied(peer) {
            self.lacked.remove(node);
            return Some(format!("{node} {copied}"));
        }
        if peer.lag_bytes == 0 {
            self.lacked.remove(node);
            return None;
        }
        let (since, lacked) = *self.lacked.entry(node.clone()).or_insert((now, peer.lag_bytes));
        if peer.lag_bytes > lacked {
            // Clients write faster than the replica catches up.
            self.lacked.insert(node.clone(), (now, peer.lag_bytes));
        }
        let passed = now.duration_since(since);
        let gained = lacked.saturating_sub(peer.lag_bytes);
        let rate = if passed >= MEASURED_FOR { gained as f64 / passed.as_secs_f64() } else { 0.0 };
        let left = if rate >= 1.0 {
            let left_ms = peer.lag_bytes as f64 / rate * 1e3;
            format!(", {} left at {}/s", duration(left_ms as u64), size_words(rate as u64))
        } else {
            String::new()
        };
        Some(format!("{node} lacks {}{left}", size_words(peer.lag_bytes)))
    }
}

/// How far a copy is, and how long it will take at the rate of late.
pub fn copied(peer: &PeerView) -> Option<String> {
    let percent = peer.progress_percent?;
    let left = match (peer.copy_left_ms, peer.copy_bytes_per_s) {
        (Some(left_ms), Some(bytes_per_s)) => {
            format!(", {} left at {}/s", duration(left_ms), size_words(bytes_per_s))
        }
        _ => String::new(),
    };
    Some(format!("{percent} % copied{left}"))
}

/// How fast work went that has done this many bytes; empty until that can be told.
pub fn at_rate(bytes: u64, took_ms: u64) -> String {
    let rate = u128::from(bytes) * 1000 / u128::from(took_ms.max(1));
    match u64::try_from(rate) {
        Ok(rate) if rate > 0 && took_ms >= 1000 => format!(" at {}/s", size_words(rate)),
        _ => String::new(),
    }
}

/// Tells how far the copy of a file is, while this lives.
pub struct Copying {
    is_done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Copying {
    /// `whole`: bytes that the copy has at most, because it leaves holes out; 0 if that is not known.
    pub fn of(file: &Path, whole: u64) -> Self {
        let is_done = Arc::new(AtomicBool::new(false));
        let (file, done, began) = (file.to_path_buf(), is_done.clone(), Instant::now());
        let thread = std::thread::spawn(move || {
            let mut progress = Progress::new();
            while !done.load(Ordering::Relaxed) {
                let bytes = file.metadata().map_or(0, |found| found.blocks() * 512);
                progress.show(&copying(&file, (bytes, whole), began.elapsed()));
                std::thread::park_timeout(super::POLL);
            }
        });
        Self { is_done, thread: Some(thread) }
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        self.is_done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            drop(thread.join());
        }
    }
}

fn copying(file: &Path, (bytes, whole): (u64, u64), took: Duration) -> String {
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
    let rate = at_rate(bytes, took_ms);
    let left_ms = u128::from(whole.saturating_sub(bytes)) * u128::from(took_ms) / u128::from(bytes.max(1));
    let left = match u64::try_from(left_ms) {
        Ok(left_ms) if !rate.is_empty() => format!(", at most {} left", duration(left_ms)),
        _ => String::new(),
    };
    if whole == 0 {
        return format!("copying {name}: {}{rate}", size_words(bytes));
    }
    format!("copying {name}: {} of at most {}{rate}{left}", size_words(bytes), size_words(whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn peer(lag_bytes: u64, percent: Option<u8>) -> PeerView {
        let peer = json!({
            "node": "n2", "state": "catching-up", "lag_entries": 1, "lag_bytes": lag_bytes, "progress_percent": percent,
            "copy_bytes_per_s": 8 << 20, "copy_left_ms": 12_000
        });
        serde_json::from_value(peer).expect("a peer")
    }

    #[test]
    fn a_copy_tells_its_rate_and_what_is_left_and_so_does_a_replica_that_catches_up() {
        let mut pace = Pace::default();
        let begun = Instant::now();
        let after = |ms| begun + Duration::from_millis(ms);
        let said = |pace: &mut Pace, peer: PeerView, ms| pace.filled(&peer, after(ms)).unwrap_or_default();
        assert_eq!(said(&mut pace, peer(9, Some(37)), 0), "n2 37 % copied, 12 s left at 8 MiB/s");
        assert_eq!(said(&mut pace, peer(64 << 20, None), 0), "n2 lacks 64 MiB");
        assert_eq!(said(&mut pace, peer(48 << 20, None), 2000), "n2 lacks 48 MiB, 6 s left at 8 MiB/s");
        assert_eq!(said(&mut pace, peer(80 << 20, None), 3000), "n2 lacks 80 MiB", "clients write faster");
        assert_eq!(said(&mut pace, peer(0, None), 4000), "");
    }

    #[test]
    fn a_rate_is_told_once_it_is_known() {
        assert_eq!(at_rate(0, 5000), "");
        assert_eq!(at_rate(4 << 20, 500), "");
        assert_eq!(at_rate(20 << 20, 2000), " at 10 MiB/s");
        let said =
            |bytes, s| copying(Path::new("/c/volume0.part"), (bytes, 60 << 20), Duration::from_secs(s));
        assert_eq!(said(0, 0), "copying volume0: 0 B of at most 60 MiB");
        assert_eq!(
            said(20 << 20, 2),
            "copying volume0: 20 MiB of at most 60 MiB at 10 MiB/s, at most 4 s left"
        );
    }
}

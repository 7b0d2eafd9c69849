//! Messages to the supervisor that has started this process, in systemd's protocol: that it is
//! ready, and that it is alive.
//!
//! Guarantees
//! - The loop that does the work says that the process is alive, and nothing else does. A process
//!   whose loop hangs is therefore killed and started again.
//! - No message blocks its sender. Without a supervisor nothing is sent.
//! - A process that this one has started does not speak for it: systemd gives the number of the
//!   process that is to say that it is alive.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::thread;
use std::time::Duration;

/// Messages that the process is alive per time in which systemd wants one.
const BEATS: u32 = 3;

/// Says that the process has started. `status`: one line for `systemctl status`.
pub fn ready(status: &str) {
    tell(&format!("READY=1\nSTATUS={status}"));
}

/// Says that the process ends because it was told to.
pub fn stopping() {
    tell("STOPPING=1");
}

/// Says that the process is alive. For the loop that does its work.
pub fn alive() {
    tell("WATCHDOG=1");
}

/// Calls `ask` again and again, as often as the supervisor wants to hear [`alive`]. `ask` hands the
/// question to the loop, which then calls [`alive`].
///
/// # Errors
/// When no thread can be started.
pub fn keep_asking(ask: impl Fn() + Send + 'static) -> io::Result<()> {
    let variable = |name: &str| std::env::var(name).ok();
    let own = std::process::id();
    let Some(every) = interval(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID"), own) else {
        return Ok(());
    };
    thread::Builder::new().name("alive".into()).spawn(move || {
        loop {
            ask();
            thread::sleep(every);
        }
    })?;
    Ok(())
}

/// Time between two messages, if this process is to send them.
fn interval(usec: Option<String>, pid: Option<String>, own: u32) -> Option<Duration> {
    if pid.is_some_and(|pid| pid.parse() != Ok(own)) {
        return None;
    }
    let usec: u64 = usec?.parse().ok()?;
    (usec > 0).then(|| Duration::from_micros(usec) / BEATS)
}

fn tell(message: &str) {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&place, message) {
        tracing::warn!(%error, "the supervisor could not be told: {}", message.lines().next().unwrap_or_default());
    }
}

fn send(place: &OsStr, message: &str) -> io::Result<()> {
    let address = match place.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(place)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_reaches_a_supervisor_by_path_and_by_abstract_name() {
        let mut name = std::env::temp_dir();
        name.push(format!("mainstay-supervisor-{}", std::process::id()));
        let mut buffer = [0; 64];
        let by_path = UnixDatagram::bind(&name).unwrap();
        send(name.as_os_str(), "READY=1").unwrap();
        let length = by_path.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");
        std::fs::remove_file(&name).unwrap();
        assert!(send(name.as_os_str(), "READY=1").is_err(), "nobody is there, and it does not wait");

        let hidden = format!("mainstay-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(hidden.as_bytes()).unwrap();
        let by_name = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{hidden}")), "WATCHDOG=1").unwrap();
        let length = by_name.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"WATCHDOG=1");
    }

    #[test]
    fn a_full_queue_of_the_supervisor_blocks_nobody() {
        let hidden = format!("mainstay-full-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(hidden.as_bytes()).unwrap();
        let _silent = UnixDatagram::bind_addr(&address).unwrap();
        let place = format!("@{hidden}");
        let refused = (0..10_000).find_map(|_| send(OsStr::new(&place), "WATCHDOG=1").err());
        assert_eq!(refused.map(|error| error.kind()), Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn only_the_process_that_is_meant_says_that_it_is_alive() {
        let at = |usec: &str, pid: Option<&str>| interval(Some(usec.into()), pid.map(str::to_owned), 7);
        assert_eq!(at("30000000", Some("7")), Some(Duration::from_secs(10)));
        assert_eq!(at("30000000", None), Some(Duration::from_secs(10)));
        assert_eq!(at("30000000", Some("8")), None, "a child of the engine has its environment");
        assert_eq!(at("0", None), None);
        assert_eq!(interval(None, None, 7), None);
    }
}

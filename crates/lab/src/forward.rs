//! Lets programs of this machine reach a port inside a lab, of whose network this machine is no
//! part: a browser, for example, that is to show the console of a node.

use super::cgroup;
use super::state::{CLIENT, Lab};
use crate::failure::{Code, Context, Outcome};
use nix::sched::{CloneFlags, setns};
use std::fs::File;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Most connections at once.
const CONNECTIONS_MAX: usize = 64;
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Passes connections to `listen` on to `to`, until the process is ended.
pub fn run(lab: &Lab, to: SocketAddr, listen: SocketAddr) -> Outcome<()> {
    let listener = TcpListener::bind(listen).or_fail(Code::LabExec, || format!("listen at {listen}"))?;
    // Ends with the lab.
    cgroup::enter(lab, CLIENT)?;
    let path = Path::new("/run/netns").join(lab.netns(CLIENT));
    let network = File::open(&path).or_fail(Code::LabExec, || format!("open {}", path.display()))?;
    // The listener stays in the network in which it was made. What is connected from now on is in
    // the lab, because threads begin in the network of the one that starts them.
    setns(network, CloneFlags::CLONE_NEWNET)
        .or_fail(Code::LabExec, || "enter the client's network".into())?;
    println!("{listen} leads to {to} in the lab {}. Ctrl-C ends this.", lab.name);
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((client, _)) = listener.accept() else {
            std::thread::sleep(PAUSE);
            continue;
        };
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let open = open.clone();
        std::thread::spawn(move || {
            // The other end sees a connection that failed.
            drop(pass(&client, to));
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

/// Carries a connection to its end.
fn pass(client: &TcpStream, to: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect_timeout(&to, CONNECT_WITHIN)?;
    std::thread::scope(|scope| {
        scope.spawn(|| copy(client, &server));
        copy(&server, client);
    });
    Ok(())
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // An error ends the connection, as an end of the stream does.
    drop(io::copy(&mut from, &mut to));
    drop(to.flush());
    drop(to.shutdown(Shutdown::Write));
}

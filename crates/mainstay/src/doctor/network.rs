//! Ports of the node, and the ways between machines that are to be nodes.
//!
//! A doctor that listens answers one line: it connects back to the address that asks, at the ports
//! that the line names, and says which of them it reached. It connects nowhere else.

use super::{Node, Row};
use crate::failure::{Code, Failure, Outcome};
use crate::output::Output;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

/// How long one connection may take.
const LIMIT: Duration = Duration::from_secs(3);
const HELLO: &str = "mainstay-doctor 1";
const LINE_MAX: u64 = 64;

pub fn rows(node: &Node, peers: &[String]) -> Vec<Row> {
    let own = [("agent", node.agent), ("engine", node.engine)];
    // Held until the peers have called back.
    let (mut rows, mut held) = (Vec::new(), Vec::new());
    for (program, address) in own {
        let check = format!("port {}", address.port());
        let socket = node.run_dir.join(format!("{program}.sock"));
        match TcpListener::bind(address) {
            Ok(listener) => {
                held.push(listener);
                rows.push(Row::ok(&check, format!("free for the {program}")));
            }
            Err(_) if UnixStream::connect(&socket).is_ok() => {
                rows.push(Row::ok(&check, format!("the {program} of this machine has it")));
            }
            Err(error) => rows.push(Row::fails(
                &check,
                format!("cannot be had for the {program}: {error}"),
                &format!("the {program} does not start"),
                format!(
                    "See what has it: ss -ltnp 'sport = :{}'. Or choose another with the key listen of [{program}].",
                    address.port()
                ),
            )),
        }
    }
    for peer in peers {
        rows.push(peer_row(peer, own.map(|(_, address)| address.port())));
    }
    rows
}

fn peer_row(peer: &str, ports: [u16; 2]) -> Row {
    let check = format!("peer {peer}");
    let list = |ports: &[u16]| ports.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let open = |ports: &str| {
        format!(
            "Open the ports {ports} for TCP in the firewalls of both machines. If nothing listens there, run there: mainstay doctor --listen"
        )
    };
    let costs = "the machines cannot be nodes of one cluster";
    let (mut back, mut unreached) = (None, Vec::new());
    for port in ports {
        match ask(peer, port, ports) {
            Ok(answer) => back = back.or(answer),
            Err(error) => unreached.push(format!("port {port}: {error}")),
        }
    }
    if !unreached.is_empty() {
        let found = format!("not reached from here: {}", unreached.join("; "));
        return Row::fails(&check, found, costs, open(&list(&ports)));
    }
    match back {
        None => Row::ok(
            &check,
            "reached from here. An agent answers there, so the way back is checked when the node joins",
        ),
        Some(reached) => {
            let missing: Vec<u16> = ports.into_iter().filter(|port| !reached.contains(port)).collect();
            if missing.is_empty() {
                return Row::ok(&check, format!("ports {} are reached both ways", list(&ports)));
            }
            Row::fails(
                &check,
                format!("it does not reach this machine at {}", list(&missing)),
                costs,
                open(&list(&missing)),
            )
        }
    }
}

fn resolved(peer: &str, port: u16) -> io::Result<SocketAddr> {
    let found = match peer.parse::<IpAddr>() {
        Ok(address) => Some(SocketAddr::new(address, port)),
        Err(_) => (peer.split(':').next().unwrap_or(peer), port).to_socket_addrs()?.next(),
    };
    found.ok_or_else(|| io::Error::other("the name has no address"))
}

/// Connects, and asks to be called back. The ports that were reached; `None` if no doctor answers.
fn ask(peer: &str, port: u16, ports: [u16; 2]) -> io::Result<Option<Vec<u16>>> {
    let mut stream = TcpStream::connect_timeout(&resolved(peer, port)?, LIMIT)?;
    // The other doctor tries both ports before it answers.
    stream.set_read_timeout(Some(LIMIT * 3))?;
    let answer = (|| {
        writeln!(stream, "{HELLO} {} {}", ports[0], ports[1])?;
        line(&mut stream)
    })();
    Ok(answer.ok().as_deref().and_then(numbers))
}

fn line(stream: &mut TcpStream) -> io::Result<String> {
    let mut text = String::new();
    let mut byte = [0];
    while text.len() < LINE_MAX as usize && stream.read(&mut byte)? == 1 && byte[0] != b'\n' {
        text.push(char::from(byte[0]));
    }
    Ok(text)
}

/// The ports in a line of the two doctors.
fn numbers(line: &str) -> Option<Vec<u16>> {
    let rest = line.strip_prefix(HELLO)?;
    rest.split_whitespace().map(|word| word.parse().ok()).collect()
}

/// Answers other doctors until the command is ended.
pub fn listen(node: &Node, output: Output) -> Outcome<u8> {
    let mut threads = Vec::new();
    for address in [node.agent, node.engine] {
        let listener = TcpListener::bind(address).map_err(|error| {
            let remedy = "If the agent or the engine runs here, leave --listen out: it answers itself.";
            Failure::new(Code::BadAddress, format!("cannot listen at {address}: {error}"), remedy)
        })?;
        threads.push(thread::spawn(move || serve(&listener)));
    }
    output.note(&format!(
        "Answers at {} and {} until you end it. Run on the other machine: mainstay doctor --peer ADDRESS",
        node.agent, node.engine
    ));
    for thread in threads {
        let _ = thread.join();
    }
    Ok(0)
}

fn serve(listener: &TcpListener) {
    for stream in listener.incoming().flatten() {
        // One at a time: a doctor that sends nothing holds others up for the limit only.
        let _ = answer(stream);
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    let peer = stream.peer_addr()?.ip();
    let Some(ports) = numbers(&line(&mut stream)?).filter(|ports| ports.len() <= 2) else { return Ok(()) };
    let reached = ports
        .into_iter()
        .filter(|port| TcpStream::connect_timeout(&SocketAddr::new(peer, *port), LIMIT).is_ok());
    let reached: Vec<String> = reached.map(|port| port.to_string()).collect();
    writeln!(stream, "{HELLO} {}", reached.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    fn bound() -> (TcpListener, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    #[test]
    fn a_doctor_that_listens_says_which_ports_it_reaches() {
        let (doctor, port) = bound();
        thread::spawn(move || serve(&doctor));
        let (_held, open) = bound();
        let (closed, shut) = bound();
        drop(closed);
        assert_eq!(ask("127.0.0.1", port, [open, shut]).unwrap(), Some(vec![open]));
        // A peer that answers nothing that a doctor says is reached all the same.
        let (other, silent) = bound();
        thread::spawn(move || drop(other.accept()));
        assert_eq!(ask("127.0.0.1", silent, [open, shut]).unwrap(), None);
        assert!(ask("127.0.0.1", shut, [open, shut]).is_err());
        let row = peer_row("127.0.0.1", [shut, shut]);
        assert!(row.verdict == Verdict::Fails && row.remedy.contains("doctor --listen"), "{row:?}");
    }
}

//! Questions to the agents: one thread for each asks for destinations again and again. Each request
//! waits at its agent until something changes. All agents are asked at the same time, so that the
//! death of one delays nothing.

use mainstay_api::rest::DestinationsPage;
use mainstay_client::Client;
use std::io;
use std::thread;
use std::time::Duration;

/// Port of agents for routers, where an address names none.
pub const PORT: u16 = 7403;
/// How long an agent waits for a change before it answers that there was none, in milliseconds.
const WAIT_MS: u64 = 5_000;
/// Time for an answer beyond that: for the connection, and for a majority to confirm the answer.
const MARGIN: Duration = Duration::from_secs(3);
/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(500);
/// Answers of one agent follow each other no faster than this, even if it does not wait.
const PACE: Duration = Duration::from_millis(5);

/// Answer of an agent, or why there is none.
pub type Answer = Result<DestinationsPage, String>;

/// The client of an agent: of its socket if the address is an absolute path.
fn client(address: &str) -> Client {
    let client = if address.starts_with('/') { Client::new(address) } else { Client::over_tcp(address) };
    client.with_timeout(Duration::from_millis(WAIT_MS) + MARGIN)
}

/// Asks the agent at this address until `tell` says that nothing more is wanted.
///
/// # Errors
/// When the system has no more threads.
pub fn ask(address: String, tell: impl Fn(Answer) -> bool + Send + 'static) -> io::Result<()> {
    let asks = move || {
        let client = client(&address);
        let mut after = 0;
        loop {
            let path = format!("/v1/destinations?after={after}&wait_ms={WAIT_MS}");
            let answer = client.get::<DestinationsPage>(&path).map_err(|error| error.problem().message);
            let is_good = answer.is_ok();
            // The next answer of an agent that has failed is to come at once.
            after = answer.as_ref().map_or(0, |page| page.revision);
            if !tell(answer) {
                return;
            }
            thread::sleep(if is_good { PACE } else { PAUSE });
        }
    };
    thread::Builder::new().name("router-agent".into()).spawn(asks).map(drop)
}

/// The address with the port of agents for routers where it names none.
#[must_use]
pub fn with_port(address: &str) -> String {
    let bare = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(address);
    if let Ok(ip) = bare.parse::<std::net::IpAddr>() {
        return std::net::SocketAddr::new(ip, PORT).to_string();
    }
    let names_port = address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    if names_port || address.starts_with('/') { address.to_owned() } else { format!("{address}:{PORT}") }
}

#[cfg(test)]
mod tests {
    use super::with_port;

    #[test]
    fn an_agent_without_a_port_is_asked_at_the_port_for_routers() {
        for (given, asked) in [
            ("10.0.0.1", "10.0.0.1:7403"),
            ("10.0.0.1:9", "10.0.0.1:9"),
            ("n1", "n1:7403"),
            ("n1:9", "n1:9"),
            ("2001:db8::1", "[2001:db8::1]:7403"),
            ("[2001:db8::1]", "[2001:db8::1]:7403"),
            ("[2001:db8::1]:9", "[2001:db8::1]:9"),
            ("/run/mainstay/agent.sock", "/run/mainstay/agent.sock"),
        ] {
            assert_eq!(with_port(given), asked);
        }
    }
}

//! Connections to a program, by the path of a socket or by host and port.

use crate::stage::Stage;
use crate::words::quoted;
use crate::{Outcome, Probed};
use mainstay_ha::host_and_port;
use std::io::ErrorKind;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Pause before the next attempt while the queue of a socket is full.
const QUEUE_PAUSE: Duration = Duration::from_millis(20);

/// Both directions of a connection.
pub trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// A connection to a server.
pub struct Connection {
    pub stream: Box<dyn Stream>,
    /// Whether nobody but the server can see the bytes.
    pub is_secret: bool,
    /// The server's place, in words.
    pub place: String,
}

impl Connection {
    /// Opens the server's socket, or else connects to its address.
    pub async fn open(socket: Option<String>, address: Option<&str>, stage: &Stage) -> Probed<Self> {
        match (socket, address) {
            (Some(path), _) => {
                let stream = Box::new(open_socket(&path, stage).await?);
                Ok(Self { stream, is_secret: true, place: path })
            }
            (None, Some(address)) => {
                let stream = Box::new(open_address(address, stage).await?);
                Ok(Self { stream, is_secret: false, place: address.to_owned() })
            }
            (None, None) => Err(Outcome::Unhealthy("neither a socket nor an address is named".into())),
        }
    }

    /// Sends bytes.
    pub async fn send(&mut self, bytes: &[u8]) -> Probed<()> {
        let sent = self.stream.write_all(bytes).await;
        sent.map_err(|error| broken(&self.place, &error))
    }

    /// Sends the protocol's own goodbye and closes. The outcome of the probe is known by then, so
    /// an error changes nothing.
    pub async fn part(mut self, goodbye: &[u8]) {
        let _ = self.stream.write_all(goodbye).await;
        let _ = self.stream.shutdown().await;
    }
}

/// Outcome of a connection that broke.
pub fn broken(place: &str, error: &std::io::Error) -> Outcome {
    let why = match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "the server closed the connection in the middle; its log says why".to_owned()
        }
        _ => format!("the connection broke: {error}"),
    };
    Outcome::Unhealthy(format!("{place}: {why}"))
}

async fn open_socket(path: &str, stage: &Stage) -> Probed<UnixStream> {
    let refused = |why: &str| Outcome::Unhealthy(format!("{path}: {why}"));
    stage.reach(format!("nothing takes connections at {path}"));
    loop {
        match UnixStream::connect(path).await {
            Ok(stream) => return Ok(stream),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                stage.reach(format!("the server at {path} takes no connections, and its queue is full"));
                tokio::time::sleep(QUEUE_PAUSE).await;
            }
            Err(error) => {
                return Err(match error.kind() {
                    ErrorKind::NotFound => refused(
                        "there is no such socket: the server does not run, or has another path for it",
                    ),
                    ErrorKind::ConnectionRefused => {
                        refused("nothing listens at this socket: the server does not run")
                    }
                    ErrorKind::PermissionDenied => {
                        refused("this user may not open the socket: run the probe as the server's user")
                    }
                    _ => refused(&error.to_string()),
                });
            }
        }
    }
}

/// Connects to `host:port`.
pub async fn open_address(address: &str, stage: &Stage) -> Probed<TcpStream> {
    let refused = |why: String| Outcome::Unhealthy(format!("{address}: {why}"));
    let Some((host, port)) = host_and_port(address) else {
        return Err(refused("this is not host:port".into()));
    };
    stage.reach(format!(
        "the address of {host} was not found out; write an IP address to need no name server"
    ));
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| refused(format!("no address of {host} is known: {error}")))?;
    stage.reach(format!("{address} does not answer: the machine is down, or a firewall drops the packets"));
    let mut last = None;
    for address in found {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                // Each message is one write, and the answer is waited for.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) if error.kind() == ErrorKind::ConnectionRefused => {
            refused("nothing listens there: the server does not run, or listens elsewhere".into())
        }
        Some(error) => refused(error.to_string()),
        None => refused(format!("no address of {} is known", quoted(host.as_bytes()))),
    })
}

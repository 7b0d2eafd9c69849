//! The router's ports. A port is bound from the start to the end, so that one that cannot be had is
//! told at the start. It is listened on only while the switch says so: otherwise a client is
//! refused at once.

use crate::switch::RouteId;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc::Sender;
use tokio::task::JoinHandle;

/// Pause after a failure to accept, for example while there are no descriptors.
const PAUSE: Duration = Duration::from_millis(100);

/// A connection of a client.
pub struct Arrival {
    pub route: RouteId,
    pub stream: TcpStream,
    pub from: SocketAddr,
}

pub struct Door {
    pub address: SocketAddr,
    route: RouteId,
    backlog: u32,
    /// Bound, and not listening.
    reserved: Option<TcpSocket>,
    open: Option<JoinHandle<()>>,
}

impl Door {
    /// # Errors
    /// When the address cannot be bound.
    pub fn reserve(address: SocketAddr, route: RouteId, backlog: u32) -> io::Result<Self> {
        // A port that another program listens on can be bound in some cases, and not listened on.
        bind(address)?.listen(backlog)?;
        Ok(Self { address, route, backlog, reserved: Some(bind(address)?), open: None })
    }

    #[must_use]
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Listens, and sends every client that connects to `arrivals`.
    ///
    /// # Errors
    /// When another program has the port.
    pub fn open(&mut self, arrivals: &Sender<Arrival>) -> io::Result<()> {
        if self.is_open() {
            return Ok(());
        }
        let socket = self.reserved.take().map_or_else(|| bind(self.address), Ok)?;
        let listener = socket.listen(self.backlog)?;
        let (route, arrivals) = (self.route, arrivals.clone());
        self.open = Some(tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, from)) => {
                        if arrivals.send(Arrival { route, stream, from }).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        tracing::debug!(%error, "cannot accept a connection");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }));
        Ok(())
    }

    /// Stops listening. The kernel resets clients that have connected and were not accepted yet.
    pub async fn close(&mut self) {
        if let Some(open) = self.open.take() {
            open.abort();
            // The task ends because it was told so.
            let _ = open.await;
            self.reserved = bind(self.address).ok();
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Sessions of before may still use the port.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

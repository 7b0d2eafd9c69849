//! Ports beside the socket of the API. Each serves its own routes and nothing else, and nothing can
//! be changed there.
//!
//! If another program has the port, the agent says so, goes on, and tries again.
//!
//! A port takes at most [`Port::places`] connections; more wait in its backlog (R18). The kernel
//! finds out whether the peer of a silent connection is gone.

use crate::placed::Placed;
use axum::Router;
use axum::serve::Listener;
use mainstay_types::Code;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Before a port that is taken is tried again.
pub const RETRY: Duration = Duration::from_secs(5);
/// Silence on a connection after which the kernel asks whether the peer is still there.
const SILENT: Duration = Duration::from_secs(30);
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// One port, and the words that the log has for it.
pub struct Port {
    /// Name of the content in the log, as a plural.
    pub serves: &'static str,
    /// Option of the command line that names another address.
    pub option: &'static str,
    /// Rest of a sentence of the log: an action that is possible without the port.
    pub without: &'static str,
    pub code: Code,
    /// Most connections at once.
    pub places: usize,
}

/// Serves routes at this address for as long as the process lives.
pub async fn serve(port: Port, address: SocketAddr, routes: Router) {
    let Port { serves, option, without, code, places } = port;
    let mut told = None;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            // Once for each reason.
            Err(error) if told.replace(error.kind()) != Some(error.kind()) => {
                tracing::error!(
                    %address, %error, %code,
                    "cannot serve {serves}: free the address, or name another one with {option}; it is tried again every {RETRY:?}, and {without}"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::info!(%address, "{serves} are served");
    let bounded = Bounded { listener, places: Arc::new(Semaphore::new(places)) };
    if let Err(error) = axum::serve(bounded, routes).await {
        tracing::error!(%address, %error, "{serves} are no longer served");
    }
}

/// A listener with a limited number of places.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Placed<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Placed<TcpStream>, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let alive = TcpKeepalive::new().with_time(SILENT).with_interval(SILENT / 3);
                    // Without keepalive, a peer that is gone may hold its place for longer.
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&alive);
                    return (Placed::new(stream, place), from);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

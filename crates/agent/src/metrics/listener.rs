//! `GET /metrics` over TCP, for Prometheus, which reads no Unix sockets. Nothing else is served
//! there, and nothing can be changed.
//!
//! A port that is taken costs the metrics and not the node. The agent says so, goes on, and tries
//! again. `mainstay metrics` and the socket of the API have the same page meanwhile.
//!
//! The listener takes at most [`CONNECTIONS_MAX`] connections; more wait in its backlog (R18). The
//! kernel finds out whether the peer of a silent connection is gone.

use super::scrape;
use super::text::Format;
use crate::agent::Agent;
use crate::http::Refused;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use mainstay_types::Code;
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Most connections at once.
pub const CONNECTIONS_MAX: usize = 16;
/// Before a port that is taken is tried again.
pub const RETRY: Duration = Duration::from_secs(5);
/// Silence on a connection after which the kernel asks whether the peer is still there.
const SILENT: Duration = Duration::from_secs(30);
/// After a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves the page at this address for as long as the process lives.
pub async fn serve(agent: Arc<Agent>, address: SocketAddr) {
    let mut told = None;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            // Once for each reason.
            Err(error) if told.replace(error.kind()) != Some(error.kind()) => {
                tracing::error!(
                    %address, %error, code = %Code::MetricsAddress,
                    "cannot serve metrics: free the address, or name another one with --metrics-listen; it is tried again every {RETRY:?}, and `mainstay metrics` works without"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::info!(%address, "metrics are served");
    let routes = Router::new()
        .route("/metrics", get(answer))
        .fallback(async || (StatusCode::NOT_FOUND, "There is only /metrics here.\n"))
        .with_state(agent);
    let bounded = Bounded { listener, places: Arc::new(Semaphore::new(CONNECTIONS_MAX)) };
    if let Err(error) = axum::serve(bounded, routes).await {
        tracing::error!(%address, %error, "metrics are no longer served");
    }
}

/// Also a route of the API.
pub async fn answer(State(agent): State<Arc<Agent>>, headers: HeaderMap) -> Response {
    let format = Format::wanted(headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()));
    match scrape(agent, format).await {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text.to_string()).into_response(),
        Err(error) => Refused::from(error).into_response(),
    }
}

/// A listener with a limited number of places.
struct Bounded {
    listener: TcpListener,
    places: Arc<Semaphore>,
}

impl Listener for Bounded {
    type Io = Placed;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Placed, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        loop {
            match self.listener.accept().await {
                Ok((stream, from)) => {
                    let alive = TcpKeepalive::new().with_time(SILENT).with_interval(SILENT / 3);
                    // Without keepalive, a peer that is gone may hold its place for longer.
                    let _ = SockRef::from(&stream).set_tcp_keepalive(&alive);
                    return (Placed { stream, _place: place }, from);
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection for metrics");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection in its place.
struct Placed {
    stream: TcpStream,
    _place: Option<OwnedSemaphorePermit>,
}

impl AsyncRead for Placed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Placed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

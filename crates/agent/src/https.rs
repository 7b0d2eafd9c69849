//! The API over TLS 1.3 for people and programs on other machines, who prove themselves by tokens
//! (R24).
//!
//! Guarantees
//! - Nothing is read of a request before the TLS handshake is over, and nothing but the files of
//!   the [`console`] is answered to a request without a token of the record that is good at this
//!   time; see [`bearer`].
//! - A connection has [`PROVE_WITHIN`] for handshake, request and proof together. Until then it has
//!   one of few places ([`places`]). Requests of a sender of wrong tokens are refused for a while
//!   ([`attempts`]).
//! - Whatever comes over this port, the API's socket is served: this port has threads of its own.
//! - The certificate is that of the node's own files or one of the cluster's authority, and never
//!   the other one instead ([`certificate`]).

mod attempts;
pub mod bearer;
mod certificate;
mod console;
mod places;

use crate::agent::Agent;
use crate::http;
use crate::ports::RETRY;
use crate::threads;
use attempts::Attempts;
use axum::extract::Request;
use axum::middleware;
use certificate::Certificate;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use mainstay_types::Code;
use places::{Place, Places};
use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, sleep_until, timeout_at};
use tokio_rustls::TlsAcceptor;

/// Time from the beginning of a connection until its first request has proven itself.
const PROVE_WITHIN: Duration = Duration::from_secs(10);
/// Time for the headers of a request, and between two requests of a connection.
const HEADERS_WITHIN: Duration = Duration::from_secs(30);
/// Time after which a connection ends whose answer is not taken.
const IDLE_MAX: Duration = Duration::from_secs(90);
/// Most headers of a request.
const HEADERS_MAX: usize = 64;
/// Most bytes of a connection that are read ahead, and with it of the headers of a request.
const BUFFER_BYTES: usize = 32 << 10;
/// Threads for connections, and for work that waits.
const THREADS: usize = 1;
const WAITING_THREADS_MAX: usize = 64;
/// Silence after which the kernel asks whether the other end is still there.
const SILENT: Duration = Duration::from_secs(30);
/// Pause after a failure to accept.
const PAUSE: Duration = Duration::from_millis(100);

/// Address of the server, and its own certificate if it has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiListen {
    pub address: SocketAddr,
    /// `None`: the cluster's authority gives the certificate.
    pub files: Option<CertificateFiles>,
    /// Whether the files of the console are served.
    pub console: bool,
}

/// A certificate and its key, in PEM form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFiles {
    /// The certificate of the server, followed by those between it and its authority.
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Everything that the connections share.
struct Server {
    agent: Arc<Agent>,
    attempts: Attempts,
    /// Requests for files of the console.
    files: Attempts,
    places: Places,
}

/// The other end of a connection.
#[derive(Clone)]
pub(crate) struct Remote {
    pub from: IpAddr,
    place: Arc<Place>,
}

impl Remote {
    /// Data of a long answer was taken, so the connection is in use.
    pub fn is_used(&self) {
        drop(self.place.proven());
    }
}

/// Serves the API at this address, in the background, for as long as the process lives.
///
/// # Errors
/// When no thread can be started.
pub fn serve(agent: Arc<Agent>, listen: ApiListen) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(WAITING_THREADS_MAX)
        .thread_name("agent-https")
        .enable_all()
        .build()?;
    threads::spawn("agent-https", move || runtime.block_on(run(agent, listen)));
    Ok(())
}

async fn run(agent: Arc<Agent>, listen: ApiListen) {
    let (address, has_console) = (listen.address, listen.console);
    let certificate = Certificate::first(&agent, listen).await;
    let listener = bind(address).await;
    tracing::info!(%address, "the API is served over TLS");
    let (attempts, files) = (Attempts::with_wrong_tokens(), Attempts::for_files());
    let server = Arc::new(Server { agent, attempts, files, places: Places::default() });
    let mut routes = http::router(server.agent.clone())
        .layer(middleware::from_fn_with_state(server.clone(), bearer::authenticate));
    if has_console {
        routes = routes.layer(middleware::from_fn_with_state(server.clone(), console::answer));
    }
    let routes = TowerToHyperService::new(http::numbered(routes));
    loop {
        match listener.accept().await {
            // Without a place the connection is closed at once.
            Ok((stream, from)) => {
                let from = from.ip().to_canonical();
                let Some(place) = server.places.take(from, Instant::now()) else { continue };
                let remote = Remote { from, place: Arc::new(place) };
                tokio::spawn(connection(stream, remote, certificate.acceptor(), routes.clone()));
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

/// Listens at the address, as soon as that is possible.
async fn bind(address: SocketAddr) -> TcpListener {
    let mut told = None;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            // Once for each reason.
            Err(error) if told.replace(error.kind()) != Some(error.kind()) => {
                let code = Code::ApiAddress;
                tracing::error!(
                    %address, %error, %code,
                    "cannot serve the API over TLS: free the address, or name another one with --api-listen; it is tried again every {RETRY:?}, and the socket works without"
                );
            }
            Err(_) => {}
        }
        sleep(RETRY).await;
    }
}

type Routes = TowerToHyperService<axum::Router>;

/// Serves a connection to its end.
async fn connection(stream: TcpStream, remote: Remote, acceptor: TlsAcceptor, routes: Routes) {
    let alive = TcpKeepalive::new().with_time(SILENT).with_interval(SILENT / 3);
    // Without keepalive, a peer that is gone may hold its place for longer.
    let _ = SockRef::from(&stream).set_tcp_keepalive(&alive);
    let (from, place) = (remote.from, remote.place.clone());
    let stream = match timeout_at(place.deadline().into(), acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "no TLS 1.3 with a client of the API");
            return;
        }
        Err(_) => return,
    };
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(remote.clone());
        routes.call(request)
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_headers(HEADERS_MAX)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    loop {
        let deadline = place.deadline();
        tokio::select! {
            ended = &mut served => {
                if let Err(error) = ended {
                    tracing::debug!(%from, %error, "a connection of the API ended");
                }
                return;
            }
            () = sleep_until(deadline.into()) => {}
        }
        // A request may have come meanwhile.
        if place.deadline() <= Instant::now() {
            return;
        }
    }
}

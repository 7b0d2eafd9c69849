//! A blocking client of the agent's HTTP API over its unix socket, for the command line and for
//! tests, over TLS from other machines, and over TCP, for routers.
//!
//! One connection per request: requests are rare.

mod server;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
pub use hyper::Method;
use hyper::http::request::Builder;
use hyper::{Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use mainstay_api::rest::{AGE_HEADER, NODE_HEADER, OPERATION_HEADER};
use mainstay_types::{Code, Problem};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
pub use server::{BadServer, Knows, Server};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// How long an agent may take to answer a question about the present state. For a part of that time
/// it waits for other nodes.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long an agent may take to carry out a change. It has to answer questions meanwhile.
const CHANGE_WITHIN: Duration = Duration::from_secs(120);
/// Pause between two questions to the agent whether it lives, while it carries out a change.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Path of that question. Its answer does not matter, and costs the agent nothing.
const LOOK_AT: &str = "/v1/alive";

/// Largest answer that is accepted, in bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("no agent answers at {path}: {source}")]
    Unreachable {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Another server answers than the one that was asked for. Nothing was sent to it.
    #[error("the server at {path} cannot be believed: {why}")]
    Unproven { path: PathBuf, why: String },
    #[error("the agent's answer could not be read: {0}")]
    Transport(String),
    #[error("the agent at {path} accepted the connection and did not answer within {within:?}")]
    Timeout { path: PathBuf, within: Duration },
    /// The agent refused the request or failed to carry it out.
    #[error("{problem:#}")]
    Refused { status: u16, problem: Problem },
}

impl ClientError {
    /// The stable code, for `--json` and exit codes.
    #[must_use]
    pub fn problem(&self) -> Problem {
        let (code, remedy) = match self {
            Self::Refused { problem, .. } => return problem.clone(),
            Self::Unreachable { path, .. } if path.starts_with(server::SCHEME) => (
                Code::AgentUnreachable,
                "Check host, port and network. An agent serves other machines only with `api_listen` in its configuration.",
            ),
            Self::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => (
                Code::AgentForbidden,
                "Run the command as root. docs/access.md says how other users get rights.",
            ),
            Self::Unreachable { path, .. } if is_no_socket(path) => (
                Code::AgentUnreachable,
                "What is there is no socket: name the agent's own with --socket, for example `--socket /run/mainstay/agent.sock`.",
            ),
            Self::Unreachable { .. } => (
                Code::AgentUnreachable,
                "Start the agent on this node (`mainstay agent`), or name another socket with --socket or a lab with --lab.",
            ),
            Self::Unproven { .. } => (
                Code::ServerUnproven,
                "Give the cluster's authority with --ca or --fingerprint, and a name or an address of the node with --server. If the message speaks of time, compare the clocks.",
            ),
            Self::Transport(_) => (Code::AgentAnswerUnreadable, "Look at the agent's log."),
            Self::Timeout { .. } => (
                Code::AgentTimeout,
                "Its process is stopped or hangs: look at it and at its log. A change that was asked for may still happen.",
            ),
        };
        Problem::new(code, self.to_string(), remedy)
    }
}

/// Whether the path leads to something that is no socket.
fn is_no_socket(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| !found.file_type().is_socket())
}

/// Called with what an answer says of its age.
pub type OnStale = fn(&Stale);

/// Age of an answer that no majority of the voters has confirmed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// Name of the node that answered.
    pub node: String,
    /// Age in milliseconds, if the node knows it.
    pub age_ms: Option<u64>,
}

/// A request that takes long is told after this time.
const SLOW_AFTER: Duration = Duration::from_millis(1500);

/// Functions that are called while requests are under way, to keep the waiting user informed.
#[derive(Clone, Copy, Debug)]
pub struct OnWait {
    /// A request that changes something begins.
    pub change: fn(),
    /// A request is not answered yet: its method and its path.
    pub slow: fn(&Method, &str),
    /// A change was answered whose work goes on: the id of its operation.
    pub goes_on: fn(&str),
}

/// Where an agent is asked.
#[derive(Clone, Debug)]
enum At {
    Socket(PathBuf),
    /// Host and port.
    Tcp(String),
    Server(Arc<Server>),
}

impl At {
    /// The place as errors tell it.
    fn shown(&self) -> PathBuf {
        match self {
            Self::Socket(path) => path.clone(),
            Self::Tcp(address) => address.into(),
            Self::Server(server) => server.shown(),
        }
    }
}

/// Talks to one agent.
#[derive(Clone, Debug)]
pub struct Client {
    at: At,
    on_stale: Option<OnStale>,
    on_wait: Option<OnWait>,
    /// `None`: the time limit that suits the request.
    timeout: Option<Duration>,
    patience: Patience,
}

/// How long an agent may be silent.
#[derive(Clone, Copy, Debug)]
struct Patience {
    answer: Duration,
    look_every: Duration,
}

impl Client {
    /// `socket` is `<run>/agent.sock`.
    #[must_use]
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self::at(At::Socket(socket.as_ref().to_path_buf()))
    }

    /// A client of a port that an agent serves beside its socket. `address` names host and port.
    #[must_use]
    pub fn over_tcp(address: impl Into<String>) -> Self {
        Self::at(At::Tcp(address.into()))
    }

    /// A client of an agent on another machine.
    #[must_use]
    pub fn of_server(server: Server) -> Self {
        Self::at(At::Server(Arc::new(server)))
    }

    fn at(at: At) -> Self {
        Self {
            at,
            on_stale: None,
            on_wait: None,
            timeout: None,
            patience: Patience { answer: ANSWER_WITHIN, look_every: LOOK_EVERY },
        }
    }

    /// The same client with another time limit per request.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// The same client, which calls `on_stale` for each answer that no majority of the voters has
    /// confirmed.
    #[must_use]
    pub fn with_on_stale(mut self, on_stale: OnStale) -> Self {
        self.on_stale = Some(on_stale);
        self
    }

    /// The same client, which tells of requests while they are under way.
    #[must_use]
    pub fn with_on_wait(mut self, on_wait: OnWait) -> Self {
        self.on_wait = Some(on_wait);
        self
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None)
    }

    /// Gets a body that is not JSON, unchanged.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get_text(&self, path: &str) -> Result<String, ClientError> {
        let bytes = self.call_bytes(Method::GET, path, None)?;
        String::from_utf8(bytes.into()).map_err(|error| ClientError::Transport(error.to_string()))
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn post<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.call(Method::POST, path, Some(encode(body)?))
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn put<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.call(Method::PUT, path, Some(encode(body)?))
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn patch<B: Serialize, T: DeserializeOwned>(&self, path: &str, body: &B) -> Result<T, ClientError> {
        self.call(Method::PATCH, path, Some(encode(body)?))
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::DELETE, path, None)
    }

    fn call<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
    ) -> Result<T, ClientError> {
        let bytes = self.call_bytes(method, path, body)?;
        serde_json::from_slice(&bytes).map_err(|error| ClientError::Transport(error.to_string()))
    }

    fn call_bytes(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Bytes, ClientError> {
        let changes = method != Method::GET;
        // Threads that the runtime starts inherit what this sets of signals.
        if let Some(on_wait) = self.on_wait.filter(|_| changes) {
            (on_wait.change)();
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ClientError::Transport(error.to_string()))?;
        let within = self.timeout.unwrap_or(if changes { CHANGE_WITHIN } else { self.patience.answer });
        runtime.block_on(async {
            let asked = self.within(within, self.exchange(method.clone(), path, body));
            let answer = async {
                tokio::pin!(asked);
                tokio::select! {
                    answer = &mut asked => return answer,
                    () = tokio::time::sleep(SLOW_AFTER) => {}
                }
                if let Some(on_wait) = self.on_wait {
                    (on_wait.slow)(&method, path);
                }
                asked.await
            };
            tokio::pin!(answer);
            loop {
                let pause = tokio::time::sleep(self.patience.look_every);
                tokio::select! {
                    answer = &mut answer => return answer,
                    () = pause, if changes => {}
                }
                // Only silence counts: an agent that has just ended says so to the request itself.
                let silence = self.patience.answer.saturating_sub(self.patience.look_every);
                let look = self.within(silence, self.exchange(Method::GET, LOOK_AT, None));
                tokio::select! {
                    answer = &mut answer => return answer,
                    look = look => if let Err(ClientError::Timeout { path, .. }) = look {
                        return Err(ClientError::Timeout { path, within: self.patience.answer });
                    },
                }
            }
        })
    }

    async fn within<T>(
        &self,
        within: Duration,
        exchange: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        let late = || ClientError::Timeout { path: self.at.shown(), within };
        tokio::time::timeout(within, exchange).await.map_err(|_| late())?
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Bytes, ClientError> {
        let unreachable = |source| ClientError::Unreachable { path: self.at.shown(), source };
        match &self.at {
            At::Socket(socket) => {
                let stream = tokio::net::UnixStream::connect(socket).await.map_err(unreachable)?;
                self.exchange_over(stream, (request(AGENT, method, path), body.unwrap_or_default())).await
            }
            At::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address).await.map_err(unreachable)?;
                self.exchange_over(stream, (request(AGENT, method, path), body.unwrap_or_default())).await
            }
            At::Server(server) => {
                let request = request(server.address(), method, path);
                let request = request.header(header::AUTHORIZATION, server.authorization());
                self.exchange_over(server.connect().await?, (request, body.unwrap_or_default())).await
            }
        }
    }

    async fn exchange_over(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        (request, body): (Builder, Bytes),
    ) -> Result<Bytes, ClientError> {
        let transport = |error: &dyn std::error::Error| ClientError::Transport(error.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| transport(&error))?;
        tokio::spawn(connection);
        let request = request.body(Full::new(body)).map_err(|error| transport(&error))?;
        let response = sender.send_request(request).await.map_err(|error| transport(&error))?;
        let status = response.status();
        if let (Some(on_stale), Some(stale)) = (self.on_stale, stale(response.headers())) {
            on_stale(&stale);
        }
        if let (Some(on_wait), Some(id)) = (self.on_wait, operation(response.headers())) {
            (on_wait.goes_on)(id);
        }
        let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| ClientError::Transport(error.to_string()))?
            .to_bytes();
        if status.is_success() { Ok(bytes) } else { Err(refusal(status, &bytes)) }
    }
}

/// Name of the host in requests to an agent whose place has none.
const AGENT: &str = "agent";

fn request(host: &str, method: Method, path: &str) -> Builder {
    let request = Request::builder().method(method).uri(path);
    request.header(header::HOST, host).header(header::CONTENT_TYPE, "application/json")
}

fn stale(headers: &header::HeaderMap) -> Option<Stale> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let age = text(AGE_HEADER)?;
    Some(Stale { node: text(NODE_HEADER).unwrap_or_default().to_owned(), age_ms: age.parse().ok() })
}

/// The operation that an answer names.
fn operation(headers: &header::HeaderMap) -> Option<&str> {
    headers.get(OPERATION_HEADER).and_then(|id| id.to_str().ok()).filter(|id| is_id(id))
}

/// Whether this has the form of the id of an operation.
fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn encode<B: Serialize>(body: &B) -> Result<Bytes, ClientError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| ClientError::Transport(error.to_string()))
}

/// Words of a problem that is not of Mainstay (RFC 9457).
#[derive(Deserialize)]
struct Foreign {
    #[serde(default)]
    detail: Option<String>,
    #[serde(default)]
    title: Option<String>,
}

fn refusal(status: StatusCode, bytes: &[u8]) -> ClientError {
    let problem = serde_json::from_slice(bytes).unwrap_or_else(|_| {
        let foreign = serde_json::from_slice::<Foreign>(bytes).ok();
        let words = foreign.and_then(|foreign| foreign.detail.or(foreign.title));
        let words = words.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
        Problem::new(Code::Http, format!("{status}: {words}"), String::new())
    });
    ClientError::Refused { status: status.as_u16(), problem }
}

#[cfg(test)]
mod tests {
    use super::{
        AGE_HEADER, Client, ClientError, Code, NODE_HEADER, OPERATION_HEADER, OnWait, Patience, Stale,
        StatusCode, header, refusal, stale,
    };
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::Mutex;
    use std::time::{Duration, Instant};

    #[test]
    fn an_answer_without_a_majority_says_its_age() {
        let answer = |age: Option<&str>| {
            let mut headers = header::HeaderMap::new();
            headers.insert(NODE_HEADER, "n3".parse().unwrap());
            if let Some(age) = age {
                headers.insert(AGE_HEADER, age.parse().unwrap());
            }
            stale(&headers)
        };
        assert_eq!(answer(None), None);
        assert_eq!(answer(Some("4500")), Some(Stale { node: "n3".into(), age_ms: Some(4500) }));
        assert_eq!(answer(Some("unknown")), Some(Stale { node: "n3".into(), age_ms: None }));
    }

    #[test]
    fn the_operation_of_a_change_that_goes_on_is_told() {
        static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let path = std::env::temp_dir().join(format!("mainstay-named-{}.sock", std::process::id()));
        drop(std::fs::remove_file(&path));
        let listener = UnixListener::bind(&path).unwrap();
        let ids = ["0d1c2b3a00000007", "", "\u{7f}", "../../v1/status"];
        let server = std::thread::spawn(move || {
            for id in ids {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 4096];
                let _ = stream.read(&mut asked).unwrap();
                let named =
                    if id.is_empty() { String::new() } else { format!("{OPERATION_HEADER}: {id}\r\n") };
                write!(stream, "HTTP/1.1 200 OK\r\n{named}content-length: 4\r\n\r\nnull").unwrap();
            }
        });
        let goes_on = |id: &str| TOLD.lock().unwrap().push(id.to_owned());
        let client = Client::new(&path).with_on_wait(OnWait { change: || (), slow: |_, _| (), goes_on });
        for _ in ids {
            // An answer with a header that is none is no answer.
            drop(client.put::<_, ()>("/v1/nodes/n1/cordon", &()));
        }
        server.join().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(*TOLD.lock().unwrap(), ["0d1c2b3a00000007"]);
    }

    #[test]
    fn refusals_of_this_and_earlier_releases_and_of_proxies_are_told() {
        let old = r#"{"code":"unknown-node","message":"there is no node n9","remedy":"Look."}"#;
        let new = r#"{"type":"/errors/unknown-node","title":"Unknown node","status":404,"detail":"there is no node n9","code":"unknown-node","message":"there is no node n9","cause":"It has left.","remedy":"Look.","request":"00"}"#;
        for text in [old, new] {
            let ClientError::Refused { status, problem } = refusal(StatusCode::NOT_FOUND, text.as_bytes())
            else {
                panic!("{text}")
            };
            assert_eq!((status, &problem.code, problem.remedy.as_str()), (404, &Code::UnknownNode, "Look."));
            assert_eq!(problem.message, "there is no node n9");
        }
        for (text, told) in [
            (r#"{"title":"Too large","detail":"at most 1 MiB","status":413}"#, "at most 1 MiB"),
            (r#"{"title":"Too large"}"#, "Too large"),
            ("<html>", "<html>"),
        ] {
            let problem = refusal(StatusCode::PAYLOAD_TOO_LARGE, text.as_bytes()).problem();
            assert_eq!(problem.code, Code::Http);
            assert_eq!(problem.message, format!("413 Payload Too Large: {told}"));
        }
    }

    /// The agent takes the connection and sends nothing, like a stopped process.
    #[test]
    fn a_change_waits_for_a_silent_agent_no_longer_than_a_question() {
        let path = std::env::temp_dir().join(format!("mainstay-silent-{}.sock", std::process::id()));
        drop(std::fs::remove_file(&path));
        let _silent = UnixListener::bind(&path).unwrap();
        let patience = Patience { answer: Duration::from_secs(4), look_every: Duration::from_secs(2) };
        let client = Client { patience, ..Client::new(&path) };
        let asked = Instant::now();
        let error = client.put::<_, ()>("/v1/anything", &()).unwrap_err();
        let waited = asked.elapsed();
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(error, ClientError::Timeout { within, .. } if within == patience.answer), "{error}");
        assert!(waited < patience.answer + patience.look_every, "{waited:?}");
    }
}

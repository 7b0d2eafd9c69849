//! A blocking client of the agent's HTTP API over its unix socket, for the command line and for tests.
//!
//! One connection per request: the socket is local and requests are rare.

use crate::rest::ErrorBody;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    #[error("the agent's answer could not be read: {0}")]
    Transport(String),
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The agent refused the request or failed to carry it out.
    #[error("{body}")]
    Refused { status: u16, body: ErrorBody },
}

impl ClientError {
    /// The stable code, for `--json` and exit codes.
    #[must_use]
    pub fn body(&self) -> ErrorBody {
        let (code, remedy) = match self {
            Self::Refused { body, .. } => return body.clone(),
            Self::Unreachable { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                ("agent-forbidden", "Run the command as root, or as a user who may open the socket.")
            }
            Self::Unreachable { .. } => (
                "agent-unreachable",
                "Start the agent on this node (`mainstay agent`), or name another socket with --socket or a lab with --lab.",
            ),
            Self::Transport(_) => ("agent-answer-unreadable", "Look at the agent's log."),
            Self::Timeout(_) => ("agent-timeout", "The change may still happen: ask for the status."),
        };
        ErrorBody { code: code.into(), message: self.to_string(), remedy: remedy.into() }
    }
}

/// Talks to the agent behind one socket.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
    timeout: Duration,
}

impl Client {
    /// `socket` is `<run>/agent.sock`.
    #[must_use]
    pub fn new(socket: impl AsRef<Path>) -> Self {
        Self { socket: socket.as_ref().to_path_buf(), timeout: Duration::from_secs(120) }
    }

    /// The same client with another time limit per request.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(Method::GET, path, None)
    }

    /// What is not JSON, as it is.
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
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| ClientError::Transport(error.to_string()))?;
        runtime.block_on(async {
            tokio::time::timeout(self.timeout, self.exchange(method, path, body))
                .await
                .map_err(|_| ClientError::Timeout(self.timeout))?
        })
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<Bytes>) -> Result<Bytes, ClientError> {
        let stream = tokio::net::UnixStream::connect(&self.socket)
            .await
            .map_err(|source| ClientError::Unreachable { path: self.socket.clone(), source })?;
        let transport = |error: &dyn std::error::Error| ClientError::Transport(error.to_string());
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| transport(&error))?;
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "agent")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body.unwrap_or_default()))
            .map_err(|error| transport(&error))?;
        let response = sender.send_request(request).await.map_err(|error| transport(&error))?;
        let status = response.status();
        let bytes = Limited::new(response.into_body(), ANSWER_BYTES_MAX)
            .collect()
            .await
            .map_err(|error| ClientError::Transport(error.to_string()))?
            .to_bytes();
        if status.is_success() { Ok(bytes) } else { Err(refusal(status, &bytes)) }
    }
}

fn encode<B: Serialize>(body: &B) -> Result<Bytes, ClientError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| ClientError::Transport(error.to_string()))
}

fn refusal(status: StatusCode, bytes: &[u8]) -> ClientError {
    let body = serde_json::from_slice(bytes).unwrap_or_else(|_| ErrorBody {
        code: "http".into(),
        message: format!("{status}: {}", String::from_utf8_lossy(bytes)),
        remedy: String::new(),
    });
    ClientError::Refused { status: status.as_u16(), body }
}

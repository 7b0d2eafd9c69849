//! Messages: a letter, a length of four bytes, and a body.

use crate::connection::{Connection, broken};
use crate::reader::Reader;
use crate::words::quoted;
use crate::{Outcome, Probed};
use std::fmt;
use tokio::io::AsyncReadExt;

/// Version 3.0 of the protocol, which all servers since 2003 speak.
const VERSION: u32 = 3 << 16;
/// The body of a request for TLS.
pub const TLS_WANTED: [u8; 4] = 80_877_103_u32.to_be_bytes();
/// Begin of a body that is kept, in bytes: enough for an error and every message of a login.
const BODY_BYTES_MAX: usize = 16 << 10;
/// Longest body, in bytes. The server allows no longer one.
const LENGTH_MAX: u32 = 1 << 30;

/// Both directions of messages.
pub struct Messages {
    pub connection: Connection,
}

pub struct Message {
    pub kind: u8,
    /// Begin of the body.
    pub body: Vec<u8>,
}

impl Messages {
    pub fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Sends a message. Only the first one of a connection has no letter.
    pub async fn send(&mut self, kind: Option<u8>, body: &[u8]) -> Probed<()> {
        let mut message: Vec<u8> = kind.into_iter().collect();
        let length = u32::try_from(body.len() + 4).unwrap_or(u32::MAX);
        message.extend_from_slice(&length.to_be_bytes());
        message.extend_from_slice(body);
        self.connection.send(&message).await
    }

    async fn read(&mut self, into: &mut [u8]) -> Probed<()> {
        let read = self.connection.stream.read_exact(into).await;
        read.map(drop).map_err(|error| broken(&self.connection.place, &error))
    }

    /// One byte, which is not a message.
    pub async fn letter(&mut self) -> Probed<u8> {
        let mut letter = [0];
        self.read(&mut letter).await?;
        Ok(letter[0])
    }

    /// The next message.
    pub async fn next(&mut self) -> Probed<Message> {
        let mut head = [0; 5];
        self.read(&mut head).await?;
        let [kind, length @ ..] = head;
        let length = u32::from_be_bytes(length);
        if !(4..=LENGTH_MAX).contains(&length) {
            let place = &self.connection.place;
            return Err(Outcome::Unhealthy(format!("{place}: the answer is not one of PostgreSQL")));
        }
        let (mut body, mut left) = (Vec::new(), length as usize - 4);
        while left > 0 {
            let mut part = [0; 4096];
            let taken = left.min(part.len());
            self.read(&mut part[..taken]).await?;
            let kept = taken.min(BODY_BYTES_MAX - body.len());
            body.extend_from_slice(&part[..kept]);
            left -= taken;
        }
        Ok(Message { kind, body })
    }
}

/// The first message of a connection.
pub fn startup(user: &str, database: &str) -> Vec<u8> {
    let mut body = VERSION.to_be_bytes().to_vec();
    for text in ["user", user, "database", database, "application_name", "mainstay-probe", ""] {
        body.extend_from_slice(text.as_bytes());
        body.push(0);
    }
    body
}

/// A refusal of the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerError {
    /// SQLSTATE; empty if the server gave none.
    pub state: String,
    pub message: String,
    /// Whether the server ends the session.
    pub is_fatal: bool,
}

impl ServerError {
    /// Reads the fields of the message as far as they are readable.
    pub fn read(body: &[u8]) -> Self {
        let mut error = Self::default();
        let mut reader = Reader(body);
        while let Some(kind @ 1..) = reader.u8() {
            let Some(text) = reader.zero_ended() else { break };
            match kind {
                // The severity that is not translated.
                b'V' => error.is_fatal = matches!(text, b"FATAL" | b"PANIC"),
                b'C' => error.state = quoted(text),
                b'M' => error.message = quoted(text),
                _ => {}
            }
        }
        error
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.state, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ERROR: &[u8] =
        b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0Fpostmaster.c\0L2367\0\0";

    #[test]
    fn an_error_is_read_with_its_state() {
        let error = ServerError::read(ERROR);
        assert_eq!(error.to_string(), "error 57P03: the database system is starting up");
        assert!(error.is_fatal && !ServerError::read(b"VERROR\0C42P01\0\0").is_fatal);
    }

    #[test]
    fn a_startup_message_ends_its_list() {
        assert_eq!(
            startup("u", "d"),
            b"\0\x03\0\0user\0u\0database\0d\0application_name\0mainstay-probe\0\0"
        );
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_server_panic(
            at in 0..ERROR.len(),
            with in any::<u8>(),
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut near = ERROR.to_vec();
            near[at] = with;
            let _ = ServerError::read(&near);
            let _ = ServerError::read(&noise);
        }
    }
}

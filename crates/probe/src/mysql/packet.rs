//! Packets: a length of three bytes, a number, and a payload.

use crate::Outcome;
use crate::Probed;
use crate::connection::{Connection, broken};
use crate::reader::Reader;
use crate::words::quoted;
use std::fmt;
use tokio::io::AsyncReadExt;

/// Longest payload that is read as a whole, in bytes. Those of a login are far shorter.
const WHOLE_BYTES_MAX: usize = 64 << 10;
/// Begin of a packet of a result that is kept, in bytes: enough for an error.
const HEAD_BYTES: usize = 1024;
/// Length of a payload that goes on in the next packet.
const GOES_ON: usize = 0xff_ff_ff;
/// Length from which on a packet that begins like an end is a row instead.
const END_BYTES: usize = 9;
/// Bytes with which a client says what it can do: long passwords, protocol 4.1, transactions,
/// scrambles of 20 bytes, and plugins.
const CAPABILITIES: u32 = 0x1 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
/// Both sides go on with TLS after a shortened login.
const TLS: u32 = 0x800;
/// Largest packet that the client announces, in bytes.
const PACKET_BYTES_MAX: u32 = 16 << 20;
/// utf8mb4_general_ci, which both servers have.
const CHARACTER_SET: u8 = 45;
/// Version of the handshake that all servers of the last twenty years speak.
const HANDSHAKE: u8 = 10;

/// Both directions of packets.
pub struct Packets {
    pub connection: Connection,
    /// Number of the next packet.
    number: u8,
}

/// Begin of a packet whose rest was read and dropped.
pub struct Head {
    pub begin: Vec<u8>,
    /// Length of the whole payload, in bytes.
    length: usize,
}

impl Head {
    /// Whether the packet ends the columns or the rows of a result.
    pub fn is_end(&self) -> bool {
        self.begin.first() == Some(&0xfe) && self.length < END_BYTES
    }
}

impl Packets {
    pub fn new(connection: Connection) -> Self {
        Self { connection, number: 0 }
    }

    /// Begins a new exchange.
    pub fn begin(&mut self) {
        self.number = 0;
    }

    /// Sends a payload shorter than 16 MiB.
    pub async fn send(&mut self, payload: &[u8]) -> Probed<()> {
        let length = u32::try_from(payload.len()).unwrap_or(u32::MAX).to_le_bytes();
        let mut packet = vec![length[0], length[1], length[2], self.number];
        packet.extend_from_slice(payload);
        self.number = self.number.wrapping_add(1);
        self.connection.send(&packet).await
    }

    async fn read(&mut self, into: &mut [u8]) -> Probed<()> {
        let read = self.connection.stream.read_exact(into).await;
        read.map(drop).map_err(|error| broken(&self.connection.place, &error))
    }

    async fn length(&mut self) -> Probed<usize> {
        let mut header = [0; 4];
        self.read(&mut header).await?;
        self.number = header[3].wrapping_add(1);
        Ok(usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16)
    }

    /// The next payload, which is a short one.
    pub async fn whole(&mut self) -> Probed<Vec<u8>> {
        let length = self.length().await?;
        if length > WHOLE_BYTES_MAX {
            let place = &self.connection.place;
            return Err(Outcome::Unhealthy(format!("{place}: the answer is not one of MariaDB or MySQL")));
        }
        let mut payload = vec![0; length];
        self.read(&mut payload).await?;
        Ok(payload)
    }

    /// The begin of the next payload, whatever its length.
    pub async fn head(&mut self) -> Probed<Head> {
        let (mut begin, mut all) = (Vec::new(), 0_usize);
        loop {
            let length = self.length().await?;
            let mut left = length;
            while left > 0 {
                let mut part = [0; 4096];
                let taken = left.min(part.len());
                self.read(&mut part[..taken]).await?;
                let kept = taken.min(HEAD_BYTES - begin.len());
                begin.extend_from_slice(&part[..kept]);
                left -= taken;
            }
            all = all.saturating_add(length);
            if length < GOES_ON {
                return Ok(Head { begin, length: all });
            }
        }
    }
}

/// The server's first packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Greeting {
    pub version: String,
    pub scramble: Vec<u8>,
    /// Name of the plugin that accounts have by default.
    pub plugin: String,
    pub has_tls: bool,
}

impl Greeting {
    pub fn read(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        if reader.u8()? != HANDSHAKE {
            return None;
        }
        let version = reader.zero_ended()?;
        // MariaDB precedes its version by one that old clients understand.
        let version = quoted(version.strip_prefix(b"5.5.5-").unwrap_or(version));
        reader.bytes(4)?;
        let mut scramble = reader.bytes(8)?.to_vec();
        reader.bytes(1)?;
        let has_tls = u32::from(reader.u16_le()?) & TLS != 0;
        reader.bytes(1 + 2 + 2)?;
        let length = reader.u8()?;
        reader.bytes(10)?;
        // At least 13 bytes, the last of which is a zero.
        let second = reader.bytes(usize::from(length.saturating_sub(8).max(13)))?;
        scramble.extend_from_slice(second.strip_suffix(b"\0").unwrap_or(second));
        let plugin = reader.zero_ended().unwrap_or(reader.0);
        let plugin = String::from_utf8_lossy(plugin).into_owned();
        Some(Self { version, scramble, plugin, has_tls })
    }
}

/// The begin of the client's answer to the greeting. With TLS it is sent alone first, and the
/// handshake follows.
pub fn begin_login(with_tls: bool) -> Vec<u8> {
    let capabilities = CAPABILITIES | if with_tls { TLS } else { 0 };
    let mut payload = Vec::new();
    payload.extend_from_slice(&capabilities.to_le_bytes());
    payload.extend_from_slice(&PACKET_BYTES_MAX.to_le_bytes());
    payload.push(CHARACTER_SET);
    payload.extend_from_slice(&[0; 23]);
    payload
}

/// The client's answer to the greeting.
pub fn login(user: &str, answer: &[u8], plugin: &str, with_tls: bool) -> Vec<u8> {
    let mut payload = begin_login(with_tls);
    payload.extend_from_slice(user.as_bytes());
    payload.push(0);
    // Scrambles have at most 32 bytes.
    payload.push(u8::try_from(answer.len()).unwrap_or(0));
    payload.extend_from_slice(answer);
    payload.extend_from_slice(plugin.as_bytes());
    payload.push(0);
    payload
}

/// A refusal of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServerError {
    pub code: u16,
    message: String,
}

impl ServerError {
    /// The error, if the packet is one.
    pub fn read(payload: &[u8]) -> Option<Self> {
        let mut reader = Reader(payload);
        if reader.u8()? != 0xff {
            return None;
        }
        let code = reader.u16_le()?;
        // Before the login there is no state.
        if reader.0.first() == Some(&b'#') {
            reader.bytes(6)?;
        }
        Some(Self { code, message: quoted(reader.0) })
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error {}: {}", self.code, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A greeting of MariaDB 10.11 with the scramble "abcdefghijklmnopqrst".
    fn greeting() -> Vec<u8> {
        let mut payload =
            b"\x0a5.5.5-10.11.19-MariaDB\0\x07\0\0\0abcdefgh\0\xfe\xf7\x2d\x02\0\xff\x81\x15".to_vec();
        payload.extend_from_slice(&[0; 10]);
        payload.extend_from_slice(b"ijklmnopqrst\0mysql_native_password\0");
        payload
    }

    #[test]
    fn a_greeting_of_mariadb_is_read() {
        let read = Greeting::read(&greeting()).unwrap();
        assert_eq!(read.version, "10.11.19-MariaDB");
        assert_eq!(read.scramble, b"abcdefghijklmnopqrst");
        assert_eq!(read.plugin, "mysql_native_password");
        assert!(!read.has_tls);
        let mut with_tls = greeting();
        // The capabilities follow the first part of the scramble and a zero.
        let at = with_tls.windows(8).position(|part| part == b"abcdefgh").unwrap() + 9;
        with_tls[at + 1] |= 0x08;
        assert!(Greeting::read(&with_tls).unwrap().has_tls);
    }

    #[test]
    fn every_shorter_greeting_is_refused_or_lacks_only_the_plugin() {
        let whole = greeting();
        let plugin_at = whole.len() - b"mysql_native_password\0".len();
        for end in 0..whole.len() {
            assert_eq!(Greeting::read(&whole[..end]).is_some(), end >= plugin_at, "{end}");
        }
    }

    #[test]
    fn an_error_is_read_with_and_without_its_state() {
        let error = ServerError::read(b"\xff\x15\x04#28000Access denied\n").unwrap();
        assert_eq!(error.to_string(), "error 1045: Access denied");
        let error = ServerError::read(b"\xff\x10\x04Too many connections").unwrap();
        assert_eq!(error.to_string(), "error 1040: Too many connections");
        assert_eq!(ServerError::read(b"\xff\x15\x04#28"), None);
        assert_eq!(ServerError::read(b"\0\0\0"), None);
    }

    proptest! {
        #[test]
        fn no_bytes_of_a_server_panic(
            at in 0..200_usize,
            with in any::<u8>(),
            noise in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut near = greeting();
            let length = near.len();
            near[at % length] = with;
            for bytes in [&near, &noise] {
                let _ = Greeting::read(bytes);
                let _ = ServerError::read(bytes);
                let _ = crate::mysql::auth::next(bytes, crate::mysql::auth::SHA2, true);
                let _ = crate::mysql::auth::reply("mysql_native_password", b"secret", bytes);
                let _ = crate::mysql::auth::reply("caching_sha2_password", b"secret", bytes);
            }
        }
    }
}

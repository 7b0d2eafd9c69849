//! Plugins by which accounts log in.

use crate::reader::Reader;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};

/// The plugin of most accounts: SHA-1 of password and scramble.
pub const NATIVE: &str = "mysql_native_password";
/// The plugin of MySQL 8: SHA-256, and the password itself where no other machine listens.
pub const SHA2: &str = "caching_sha2_password";
/// Plugins that ask the kernel for the user of the client: MariaDB's and MySQL's.
const SOCKET: [&str; 2] = ["unix_socket", "auth_socket"];
/// Bytes of a scramble.
const SCRAMBLE_BYTES: usize = 20;

/// The client's next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// The login is complete.
    Done,
    /// The server goes on by itself.
    Wait,
    /// The server wants the password itself.
    Password,
    /// The server wants the password itself, and others may listen.
    NeedsSecrecy,
    /// The account has another plugin.
    Switch { to: String, data: Vec<u8> },
}

/// The next step after a packet of the server that is no error. `plugin`: the one in use.
pub fn next(packet: &[u8], plugin: &str, is_secret: bool) -> Option<Reply> {
    let mut reader = Reader(packet);
    match reader.u8()? {
        0 => Some(Reply::Done),
        0xfe if reader.0.is_empty() => {
            Some(Reply::Switch { to: "mysql_old_password".into(), data: Vec::new() })
        }
        0xfe => {
            let to = String::from_utf8_lossy(reader.zero_ended()?).into_owned();
            let data = reader.0.strip_suffix(b"\0").unwrap_or(reader.0).to_vec();
            Some(Reply::Switch { to, data })
        }
        1 if plugin == SHA2 => match reader.u8()? {
            3 => Some(Reply::Wait),
            4 if is_secret => Some(Reply::Password),
            4 => Some(Reply::NeedsSecrecy),
            _ => None,
        },
        _ => None,
    }
}

/// The answer of a plugin to a scramble; `None` for an unknown plugin and for a scramble that is
/// too short.
pub fn reply(plugin: &str, password: &[u8], scramble: &[u8]) -> Option<Vec<u8>> {
    match plugin {
        _ if SOCKET.contains(&plugin) => Some(Vec::new()),
        NATIVE | SHA2 if password.is_empty() => Some(Vec::new()),
        NATIVE => {
            let one = digest(&SHA1_FOR_LEGACY_USE_ONLY, password);
            let two = digest(&SHA1_FOR_LEGACY_USE_ONLY, one.as_ref());
            let mut mixed = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
            mixed.update(scramble.get(..SCRAMBLE_BYTES)?);
            mixed.update(two.as_ref());
            Some(xor(one.as_ref(), mixed.finish().as_ref()))
        }
        SHA2 => {
            let one = digest(&SHA256, password);
            let two = digest(&SHA256, one.as_ref());
            // The other plugin mixes in the reverse order.
            let mut mixed = Context::new(&SHA256);
            mixed.update(two.as_ref());
            mixed.update(scramble.get(..SCRAMBLE_BYTES)?);
            Some(xor(one.as_ref(), mixed.finish().as_ref()))
        }
        _ => None,
    }
}

fn xor(one: &[u8], other: &[u8]) -> Vec<u8> {
    one.iter().zip(other).map(|(one, other)| one ^ other).collect()
}

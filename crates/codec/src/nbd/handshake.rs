//! The fixed newstyle handshake, from the greeting until an export is chosen.
//!
//! ```text
//! Flags ──client flags──▶ Options ──GO, EXPORT_NAME──▶ End::Transmit
//!                           │  ▲└───────ABORT─────────▶ End::Closed
//!                           └──┘ every other option
//! any state ──bytes that are no handshake──▶ End::Refused
//! ```
//! Where TLS is [required](Tls::Required) (the protocol's FORCEDTLS), another step comes first:
//! ```text
//! Flags ──▶ Options without TLS ──STARTTLS──▶ End::StartTls ──tls_is_up──▶ Options, as above
//!             │  ▲ ├──────────────ABORT─────▶ End::Closed
//!             │  │ └──EXPORT_NAME; bytes behind STARTTLS──▶ End::Refused
//!             └──┘ every other option: TLS is required
//! ```
//! TLS voids everything that the client said before it, except the client's flags. One of them is a
//! choice: whether zeroes follow the answer to `EXPORT_NAME`. An attacker on the way who changes it
//! makes the client hang up. A client that keeps to the protocol waits for the answer to STARTTLS.
//! So bytes behind STARTTLS, before TLS, come from an attacker on the way, who wants them to be
//! taken for the client's own once TLS is up. The other mode of the protocol, SELECTIVETLS, lets
//! the client, and so an attacker on the way, choose whether to encrypt. This server does not offer
//! it.
//!
//! Answers are in the order of the options. A client waits for the answer to one option before it
//! sends the next. So the caller takes no more bytes while answers are waiting to be sent. That
//! bounds both (R18).

use super::{Fields, STRING_BYTES_MAX, flags};
use mainstay_types::{BLOCK_BYTES, REQUEST_BYTES_MAX};

/// Length of the greeting, the first bytes that a server sends.
pub const GREETING_BYTES: usize = 18;
/// Longest data of an option, in bytes: the longest name and some queries of the longest kind.
pub const OPTION_BYTES_MAX: usize = 16 << 10;
/// Length of an option without its data.
const OPTION_HEADER_BYTES: usize = 16;
/// Longest input that is needed at once. A caller must be able to keep this many bytes.
pub const INPUT_BYTES_MAX: usize = OPTION_HEADER_BYTES + OPTION_BYTES_MAX;
/// Most options of one client.
pub const OPTIONS_MAX: u32 = 4096;

const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE: u16 = 1 << 0;
const NO_ZEROES: u16 = 1 << 1;
/// Follow the answer to `EXPORT_NAME`, unless the client does without.
const ZEROES: [u8; 124] = [0; 124];

const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_LIST: u32 = 3;
const OPT_STARTTLS: u32 = 5;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const OPT_LIST_META_CONTEXT: u32 = 9;
const OPT_SET_META_CONTEXT: u32 = 10;

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;
const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
const REP_ERR_INVALID: u32 = 1 << 31 | 3;
const REP_ERR_TLS_REQD: u32 = 1 << 31 | 5;
const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;

const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

/// The only context there is, and the number it is known by.
pub const ALLOCATION: &str = "base:allocation";
pub const ALLOCATION_ID: u32 = 1;

/// Something that a client may choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// At most [`STRING_BYTES_MAX`] bytes.
    pub name: String,
    /// For humans.
    pub description: String,
    pub bytes: u64,
    /// Without `SEND_DF`, which comes with structured replies.
    pub flags: u16,
    /// In bytes: the smallest block that a client may ask for, the block size that is fast, and the
    /// longest payload that is fast.
    pub block_bytes_min: u32,
    pub block_bytes_preferred: u32,
    pub payload_bytes_max: u32,
}

impl Export {
    /// A volume of a primary: any byte may be asked for, whole blocks are fast, and requests longer
    /// than the log takes are slow.
    #[must_use]
    pub fn volume(name: String, description: String, bytes: u64) -> Self {
        Self {
            name,
            description,
            bytes,
            flags: flags::VOLUME,
            block_bytes_min: 1,
            block_bytes_preferred: BLOCK_BYTES as u32,
            payload_bytes_max: REQUEST_BYTES_MAX as u32,
        }
    }
}

/// Result of a handshake: the chosen export and the agreed extensions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// Name of the export, as it was offered.
    pub export: String,
    pub structured: bool,
    /// The client may ask for [`ALLOCATION`] of this export.
    pub allocation: bool,
}

/// Protection of a client's options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tls {
    /// No TLS: the client's options need none.
    Absent,
    /// TLS has not begun, and the server answers no other option before it has.
    Required,
    Up,
}

/// How a handshake ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// TLS begins after the remaining answers have been sent. Behind it the handshake goes on: see
    /// [`Handshake::tls_is_up`].
    StartTls,
    /// Requests follow, after the remaining answers have been sent.
    Transmit(Negotiated),
    /// The client has said that it goes. Close when the remaining answers have been sent.
    Closed,
    /// Close at once: the bytes are no handshake, or ask for something that cannot be refused
    /// otherwise.
    Refused(&'static str),
}

/// One client's handshake.
#[derive(Debug)]
pub struct Handshake {
    tls: Tls,
    greeted: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which [`ALLOCATION`] was chosen.
    allocation: Option<String>,
    options: u32,
}

impl Handshake {
    #[must_use]
    pub fn new(tls: Tls) -> Self {
        Self { tls, greeted: false, no_zeroes: false, structured: false, allocation: None, options: 0 }
    }

    /// Begins the protected part of the handshake, after [`End::StartTls`]. All further input came
    /// through TLS, from a client that has proved its identity.
    pub fn tls_is_up(&mut self) {
        self.tls = Tls::Up;
    }

    /// Whether [`tls_is_up`](Self::tls_is_up) was called.
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.tls == Tls::Up
    }

    /// Returns the greeting, which the server sends before it receives anything.
    #[must_use]
    pub fn greeting() -> [u8; GREETING_BYTES] {
        let mut out = [0; GREETING_BYTES];
        out[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
        out[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
        out[16..].copy_from_slice(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
        out
    }

    /// Takes one step with the bytes that were received and not consumed, and appends the answer to
    /// `out`. Returns how many bytes it consumed, and whether this was the last step. Zero bytes:
    /// it needs more, never more than [`INPUT_BYTES_MAX`] in all. Call it until it consumes
    /// nothing, each time with the present exports.
    pub fn step(&mut self, input: &[u8], exports: &[Export], out: &mut Vec<u8>) -> (usize, Option<End>) {
        if !self.greeted {
            return self.client_flags(input);
        }
        let mut fields = Fields(input);
        let (Some(magic), Some(option), Some(len)) = (fields.u64(), fields.u32(), fields.u32()) else {
            return (0, None);
        };
        if magic != OPTION_MAGIC {
            return (0, Some(End::Refused("it sent something else than an option")));
        }
        if len as usize > OPTION_BYTES_MAX {
            return (0, Some(End::Refused("it sent an option that is too long")));
        }
        let Some(data) = fields.take(len as usize) else { return (0, None) };
        let consumed = OPTION_HEADER_BYTES + data.len();
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return (consumed, Some(End::Refused("it sent too many options")));
        }
        let mut answer = OptionReply { option, out };
        let end = match self.tls {
            Tls::Required => Self::without_tls(option, data, input.len() > consumed, &mut answer),
            Tls::Absent | Tls::Up => self.option(option, data, exports, &mut answer),
        };
        (consumed, end)
    }

    /// `more`: something has come behind the option.
    fn without_tls(option: u32, data: &[u8], more: bool, answer: &mut OptionReply<'_>) -> Option<End> {
        match option {
            OPT_STARTTLS if !data.is_empty() => answer.error(REP_ERR_INVALID, "this option has no data"),
            OPT_STARTTLS if more => {
                return Some(End::Refused("something came behind STARTTLS before TLS had begun"));
            }
            OPT_STARTTLS => {
                answer.ack();
                return Some(End::StartTls);
            }
            OPT_ABORT => {
                answer.ack();
                return Some(End::Closed);
            }
            // Has no way to say no but to hang up.
            OPT_EXPORT_NAME => return Some(End::Refused("it asked for an export without TLS")),
            _ => answer.error(REP_ERR_TLS_REQD, "this server wants TLS first: connect with nbds://"),
        }
        None
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Option<End>) {
        let Some(found) = Fields(input).u32() else { return (0, None) };
        let known = u32::from(FIXED_NEWSTYLE | NO_ZEROES);
        if found & !known != 0 {
            return (4, Some(End::Refused("it wants a handshake that is not known here")));
        }
        if found & u32::from(FIXED_NEWSTYLE) == 0 {
            return (4, Some(End::Refused("it does not know the fixed newstyle handshake")));
        }
        self.greeted = true;
        self.no_zeroes = found & u32::from(NO_ZEROES) != 0;
        (4, None)
    }

    fn option(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &[Export],
        answer: &mut OptionReply<'_>,
    ) -> Option<End> {
        match option {
            OPT_EXPORT_NAME => return Some(self.export_name(data, exports, answer.out)),
            OPT_ABORT => {
                answer.ack();
                return Some(End::Closed);
            }
            OPT_LIST | OPT_STARTTLS | OPT_STRUCTURED_REPLY if !data.is_empty() => {
                answer.error(REP_ERR_INVALID, "this option has no data");
            }
            OPT_LIST => {
                for export in exports {
                    let len = export.name.len() as u32;
                    let parts = [&len.to_be_bytes(), export.name.as_bytes(), export.description.as_bytes()];
                    answer.reply(REP_SERVER, &parts);
                }
                answer.ack();
            }
            OPT_STARTTLS if self.tls == Tls::Up => answer.error(REP_ERR_INVALID, "TLS is up already"),
            OPT_STARTTLS => answer.error(
                REP_ERR_UNSUP,
                "there is no TLS here: this is a Unix socket, or the server was given no certificate",
            ),
            OPT_INFO | OPT_GO => return self.info(option == OPT_GO, data, exports, answer),
            OPT_STRUCTURED_REPLY => {
                self.structured = true;
                answer.ack();
            }
            OPT_LIST_META_CONTEXT => self.contexts(false, data, exports, answer),
            OPT_SET_META_CONTEXT => self.contexts(true, data, exports, answer),
            _ => answer.error(REP_ERR_UNSUP, "this option is not known here"),
        }
        None
    }

    /// The old way to choose, which has no way to say no but to hang up.
    fn export_name(&self, name: &[u8], exports: &[Export], out: &mut Vec<u8>) -> End {
        let Some(export) = find(name, exports) else {
            return End::Refused("it asked for an export that is not here");
        };
        out.extend_from_slice(&export.bytes.to_be_bytes());
        out.extend_from_slice(&self.flags(export).to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&ZEROES);
        }
        self.chosen(export)
    }

    fn flags(&self, export: &Export) -> u16 {
        export.flags | if self.structured { flags::SEND_DF } else { 0 }
    }

    fn chosen(&self, export: &Export) -> End {
        End::Transmit(Negotiated {
            export: export.name.clone(),
            structured: self.structured,
            allocation: self.allocation.as_deref() == Some(&export.name),
        })
    }

    fn info(&self, go: bool, data: &[u8], exports: &[Export], answer: &mut OptionReply<'_>) -> Option<End> {
        let Some((name, wanted)) = parse_info(data) else {
            answer.error(REP_ERR_INVALID, "the lengths in this option do not fit");
            return None;
        };
        let Some(export) = find(name, exports) else {
            answer.unknown();
            return None;
        };
        let wants = |info: u16| wanted.chunks_exact(2).any(|found| found == info.to_be_bytes());
        let about =
            [&INFO_EXPORT.to_be_bytes()[..], &export.bytes.to_be_bytes(), &self.flags(export).to_be_bytes()];
        answer.reply(REP_INFO, &about);
        let sizes = [export.block_bytes_min, export.block_bytes_preferred, export.payload_bytes_max];
        let sizes = sizes.map(u32::to_be_bytes);
        if wants(INFO_BLOCK_SIZE) {
            answer.reply(REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        }
        // The name too where it was left to us.
        if wants(INFO_NAME) || name.is_empty() {
            answer.reply(REP_INFO, &[&INFO_NAME.to_be_bytes(), export.name.as_bytes()]);
        }
        if wants(INFO_DESCRIPTION) {
            answer.reply(REP_INFO, &[&INFO_DESCRIPTION.to_be_bytes(), export.description.as_bytes()]);
        }
        answer.ack();
        go.then(|| self.chosen(export))
    }

    fn contexts(&mut self, set: bool, data: &[u8], exports: &[Export], answer: &mut OptionReply<'_>) {
        if set {
            // Also when the rest fails.
            self.allocation = None;
        }
        if !self.structured {
            return answer.error(REP_ERR_INVALID, "structured replies must be agreed on first");
        }
        let Some((name, any, found)) = parse_contexts(data, set) else {
            return answer.error(REP_ERR_INVALID, "the lengths in this option do not fit");
        };
        let Some(export) = find(name, exports) else { return answer.unknown() };
        // No query at all lists everything, and selects nothing.
        if found || (!set && !any) {
            let id = if set { ALLOCATION_ID } else { 0 };
            answer.reply(REP_META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION.as_bytes()]);
            if set {
                self.allocation = Some(export.name.clone());
            }
        }
        answer.ack();
    }
}

/// The replies to one option.
struct OptionReply<'a> {
    option: u32,
    out: &'a mut Vec<u8>,
}

impl OptionReply<'_> {
    fn reply(&mut self, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
        for number in [self.option, kind, len as u32] {
            self.out.extend_from_slice(&number.to_be_bytes());
        }
        for part in parts {
            self.out.extend_from_slice(part);
        }
    }

    fn ack(&mut self) {
        self.reply(REP_ACK, &[]);
    }

    fn error(&mut self, kind: u32, words: &str) {
        self.reply(kind, &[words.as_bytes()]);
    }

    fn unknown(&mut self) {
        self.error(
            REP_ERR_UNKNOWN,
            "no such export on this node now: exports are named RESOURCE/VOLUME and are where the resource is primary",
        );
    }
}

/// No name means the only export, if there is only one.
fn find<'a>(name: &[u8], exports: &'a [Export]) -> Option<&'a Export> {
    match (name, exports) {
        (b"", [only]) => Some(only),
        _ => exports.iter().find(|export| export.name.as_bytes() == name),
    }
}

/// The name, and the numbers of the details that the client asks for, as they were sent.
fn parse_info(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut fields = Fields(data);
    let name = fields.string().filter(|name| name.len() <= STRING_BYTES_MAX)?;
    let count = fields.u16()?;
    let wanted = fields.take(2 * usize::from(count))?;
    fields.is_empty().then_some((name, wanted))
}

/// The name of the export, whether there was any query, and whether one of them means
/// [`ALLOCATION`].
fn parse_contexts(data: &[u8], set: bool) -> Option<(&[u8], bool, bool)> {
    let mut fields = Fields(data);
    let name = fields.string().filter(|name| name.len() <= STRING_BYTES_MAX)?;
    let count = fields.u32()?;
    let mut found = false;
    for _ in 0..count {
        // Ends early when there are fewer than announced, so the count costs nothing.
        let query = fields.string().filter(|query| query.len() <= STRING_BYTES_MAX)?;
        found |= query == ALLOCATION.as_bytes() || (!set && query == b"base:");
    }
    fields.is_empty().then_some((name, count > 0, found))
}

#[cfg(test)]
mod tests;

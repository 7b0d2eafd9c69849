//! The bytes of records, and of the segments that hold them.
//!
//! A segment is [`SEGMENT_HEADER`], then records. A record is the length of its body (4 bytes), the
//! CRC-32C of its body (4 bytes), both little-endian, and the body: the version of the form (1
//! byte), then unsigned LEB128 numbers. A list of numbers is written without its zeroes: a zero is
//! followed by the number of further zeroes. Most numbers of a replica are zero, so a replica
//! without work takes some ten bytes.
//!
//! A name stands in the first record of a segment that has its replica, and again after the agent
//! was restarted.
//!
//! A record that does not fit its checksum is skipped by its length. If the length is damaged, the
//! rest of the segment is lost.

use crate::kept::step_of;
use crate::minute::{Minute, Peer, Work};
use mainstay_types::{NodeId, ResourceId};
use std::collections::{BTreeMap, BTreeSet};

/// First bytes of a segment.
pub const SEGMENT_HEADER: [u8; 8] = *b"MSHIST\0\x01";
/// Most bytes of the body of a record.
pub const RECORD_BYTES_MAX: usize = 4 << 20;

const VERSION: u8 = 1;
/// Length and checksum of a record.
const HEAD_BYTES: usize = 8;
/// Most bytes of a name.
const NAME_BYTES_MAX: usize = 255;

fn crc32c(bytes: &[u8]) -> u32 {
    // The checksum has 32 bits.
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Returns the bytes of a record. Names of replicas in `named` are left out, and the others are
/// added to `named`. `None` if the record would be larger than [`RECORD_BYTES_MAX`].
#[must_use]
pub fn encode(minute: &Minute, named: &mut BTreeSet<ResourceId>) -> Option<Vec<u8>> {
    let mut body = vec![VERSION];
    number(&mut body, minute.end_ms);
    number(&mut body, minute.span_ms);
    let mut node = minute.node;
    sparse(&mut body, node.numbers());
    number(&mut body, minute.resources.len() as u64);
    let mut last = 0;
    for (resource, work) in &minute.resources {
        number(&mut body, resource.0 - last);
        last = resource.0;
        let name = if named.insert(*resource) { work.name.as_str() } else { "" };
        let name = if name.len() <= NAME_BYTES_MAX { name } else { "" };
        number(&mut body, name.len() as u64);
        body.extend_from_slice(name.as_bytes());
        sparse(&mut body, work.clone().numbers());
        number(&mut body, work.peers.len() as u64);
        for (node, peer) in &work.peers {
            number(&mut body, u64::from(node.0));
            let mut peer = *peer;
            sparse(&mut body, peer.numbers());
        }
    }
    let length = u32::try_from(body.len()).ok().filter(|_| body.len() <= RECORD_BYTES_MAX)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32c(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Some(bytes)
}

fn number(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn sparse<'a>(out: &mut Vec<u8>, numbers: impl Iterator<Item = &'a mut u64>) {
    let mut zeroes = 0;
    for value in numbers {
        if *value == 0 {
            zeroes += 1;
            continue;
        }
        end_of_zeroes(out, zeroes);
        zeroes = 0;
        number(out, *value);
    }
    end_of_zeroes(out, zeroes);
}

fn end_of_zeroes(out: &mut Vec<u8>, zeroes: u64) {
    if zeroes > 0 {
        out.push(0);
        number(out, zeroes - 1);
    }
}

/// The records of a segment, oldest first.
pub struct Records<'a> {
    bytes: &'a [u8],
    at: usize,
    /// End of the last record that was whole.
    good: usize,
    names: BTreeMap<ResourceId, String>,
}

impl<'a> Records<'a> {
    /// The records of these bytes; none if they do not begin as a segment does.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        let is_segment = bytes.starts_with(&SEGMENT_HEADER);
        let good = if is_segment { SEGMENT_HEADER.len() } else { 0 };
        let at = if is_segment { good } else { bytes.len() };
        Self { bytes, at, good, names: BTreeMap::new() }
    }

    /// Length of the segment up to the last whole record that was returned; 0 if it is no segment.
    /// A writer goes on from there after all records were read.
    #[must_use]
    pub fn good_bytes(&self) -> usize {
        self.good
    }

    /// The body of the next record, unless its checksum does not fit.
    fn body(&mut self) -> Option<Option<&'a [u8]>> {
        let head = self.bytes.get(self.at..)?.first_chunk::<HEAD_BYTES>()?;
        let [a, b, c, d, rest @ ..] = *head;
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        let from = self.at + HEAD_BYTES;
        let body = self.bytes.get(from..)?.get(..length).filter(|_| length <= RECORD_BYTES_MAX)?;
        self.at = from + length;
        Some((crc32c(body) == u32::from_le_bytes(rest)).then_some(body))
    }
}

impl Iterator for Records<'_> {
    type Item = Minute;

    fn next(&mut self) -> Option<Minute> {
        loop {
            let Some(body) = self.body()? else { continue };
            let Some(mut minute) = decode(body) else { continue };
            self.good = self.at;
            for (resource, work) in &mut minute.resources {
                if !work.name.is_empty() {
                    self.names.insert(*resource, work.name.clone());
                } else if let Some(name) = self.names.get(resource) {
                    work.name.clone_from(name);
                }
            }
            return Some(minute);
        }
    }
}

/// Returns a segment with the same work in fewer records: those that end in the same step are added
/// up. `None` if it is no segment.
#[must_use]
pub fn thin(bytes: &[u8], step_ms: u64) -> Option<Vec<u8>> {
    thin_from(bytes, 0, step_ms)
}

/// The same with steps that begin at `from_ms`.
pub(crate) fn thin_from(bytes: &[u8], from_ms: u64, step_ms: u64) -> Option<Vec<u8>> {
    if !bytes.starts_with(&SEGMENT_HEADER) {
        return None;
    }
    let step_of = |minute: &Minute| step_of(from_ms, step_ms, minute);
    let (mut out, mut named) = (SEGMENT_HEADER.to_vec(), BTreeSet::new());
    let mut write = |sum: &Minute| out.extend(encode(sum, &mut named).unwrap_or_default());
    let mut sum: Option<Minute> = None;
    for minute in Records::of(bytes) {
        match &mut sum {
            Some(sum) if step_of(sum) == step_of(&minute) => sum.add(&minute),
            _ => {
                sum.iter().for_each(&mut write);
                sum = Some(minute);
            }
        }
    }
    sum.iter().for_each(&mut write);
    Some(out)
}

/// Bytes that are left to decode.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = *self.take(1)?.first_chunk()?;
            let part = u64::from(byte & 0x7f);
            // The tenth byte has room for one bit.
            value |= part.checked_mul(1 << shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn sparse<'b>(&mut self, numbers: impl Iterator<Item = &'b mut u64>) -> Option<()> {
        let mut zeroes = 0;
        for value in numbers {
            if zeroes > 0 {
                zeroes -= 1;
                continue;
            }
            *value = self.number()?;
            if *value == 0 {
                zeroes = self.number()?;
            }
        }
        (zeroes == 0).then_some(())
    }
}

fn decode(body: &[u8]) -> Option<Minute> {
    let mut rest = Rest(body);
    if rest.take(1)? != [VERSION] {
        return None;
    }
    let mut minute = Minute { end_ms: rest.number()?, span_ms: rest.number()?, ..Minute::default() };
    rest.sparse(minute.node.numbers())?;
    let mut last = 0u64;
    for _ in 0..rest.number()? {
        last = last.checked_add(rest.number()?)?;
        let length = usize::try_from(rest.number()?).ok().filter(|length| *length <= NAME_BYTES_MAX)?;
        let name = str::from_utf8(rest.take(length)?).ok()?.to_owned();
        let mut work = Work { name, ..Work::default() };
        rest.sparse(work.numbers())?;
        for _ in 0..rest.number()? {
            let node = NodeId(u32::try_from(rest.number()?).ok()?);
            let mut peer = Peer::default();
            rest.sparse(peer.numbers())?;
            work.peers.insert(node, peer);
        }
        minute.resources.insert(ResourceId(last), work);
    }
    rest.0.is_empty().then_some(minute)
}

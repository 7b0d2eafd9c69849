//! The tables of docs/internals/formats.md. They are written from the constants of this crate, and
//! compared field by field with the encoded bytes. The test fails if a field moves, grows or gets
//! another meaning. It also fails if the page says anything else.
//!
//! `MAINSTAY_BLESS=1 cargo test -p mainstay-codec --test formats` writes the tables anew; see the
//! head of golden.rs first.

#![allow(clippy::disallowed_methods, reason = "the page is a file")]

mod support;

use mainstay_codec::batch::{
    BATCH_FIXED_BYTES, BATCH_MAGIC, BATCH_VERSION, DESC_BYTES, HEADER_BLOCK_BYTES, LOCAL_BYTES, LOCAL_OFFSET,
};
use mainstay_codec::frame::{
    EPOCHS_MAX, FRAME_HEADER_BYTES, FRAME_MAGIC, META_BYTES_MAX, PAYLOAD_BYTES_MAX, PROTOCOL_VERSION,
};
use mainstay_codec::journal_label::{JOURNAL_LABEL_BYTES, JOURNAL_LABEL_MAGIC, JOURNAL_LABEL_VERSION};
use mainstay_codec::old_map::{
    OLD_CHUNK_BYTES, OLD_MAP_MAGIC, OLD_MAP_SECTOR_BYTES, OLD_MAP_VERSION, OLD_MAP_WORDS, encode_old_sector,
};
use mainstay_codec::superblock::{
    CLIENT_OFFSET, SUPERBLOCK_BYTES, SUPERBLOCK_FILLED_VERSION, SUPERBLOCK_MAGIC, SUPERBLOCK_VERSION,
    SnapshotRecord, TablePlace, VOIDS_MAX,
};
use mainstay_codec::versions::{VERSIONS_PAGE_BYTES, VERSIONS_PER_PAGE, encode_page};
use mainstay_codec::{
    Answered, Ask, Batch, BlockSums, ClientAnswer, ClientAsk, EntryKind, Message, NewEntry, Refusal, Reject,
    crc32c, rollback_range, snapshot_range,
};
use mainstay_types::{
    BATCH_BYTES_MAX, BATCH_ENTRIES_MAX, Chain, Epoch, Index, Position, Range, ResourceId, SNAPSHOTS_MAX,
    SnapshotId, VOLUMES_MAX, VolumeId,
};
use std::fmt::Write as _;
use std::path::PathBuf;
use support::samples::{
    LOCAL, OLD_MAP_SECTOR, OLD_MAP_SECTOR_WORDS, VERSIONS, VERSIONS_PAGE, envelope, journal_label, messages,
    old_map_header, sample_batch, superblock,
};
use support::{pattern, wire};

/// A table in the making: a row for each field, each compared with the bytes at its place.
struct Table<'a> {
    name: &'static str,
    bytes: &'a [u8],
    at: usize,
    /// Place from which the offsets of the rows count.
    base: usize,
    /// Whether offsets are the same for all values: not behind a list.
    fixed: bool,
    rows: String,
}

impl<'a> Table<'a> {
    fn new(name: &'static str, bytes: &'a [u8]) -> Self {
        Self::from(name, bytes, 0)
    }

    fn from(name: &'static str, bytes: &'a [u8], base: usize) -> Self {
        let rows = "| offset | size | field |\n|---|---|---|\n".to_owned();
        Self { name, bytes, at: base, base, fixed: true, rows }
    }

    fn row(&mut self, size: &str, text: &str) {
        let offset = if self.fixed { (self.at - self.base).to_string() } else { "…".to_owned() };
        writeln!(self.rows, "| {offset} | {size} | {text} |").expect("writing to a string");
    }

    fn is(&mut self, text: &str, value: &[u8]) {
        let found = &self.bytes[self.at..self.at + value.len()];
        assert!(found == value, "{}, {text}, at {}: {found:x?} and not {value:x?}", self.name, self.at);
        self.row(&value.len().to_string(), text);
        self.at += value.len();
    }

    fn magic(&mut self, magic: u32) {
        let bytes = magic.to_le_bytes();
        let letters = std::str::from_utf8(&bytes).expect("magic numbers are letters").to_owned();
        self.is(&format!("magic `{letters}`"), &bytes);
    }

    fn u8(&mut self, text: &str, value: u8) {
        self.is(text, &[value]);
    }

    fn u16(&mut self, text: &str, value: u16) {
        self.is(text, &value.to_le_bytes());
    }

    fn u32(&mut self, text: &str, value: u32) {
        self.is(text, &value.to_le_bytes());
    }

    fn u64(&mut self, text: &str, value: u64) {
        self.is(text, &value.to_le_bytes());
    }

    fn position(&mut self, text: &str, value: Position) {
        self.is(
            &format!("{text}: epoch, index"),
            &[value.epoch.0.to_le_bytes(), value.index.0.to_le_bytes()].concat(),
        );
    }

    fn zeroes(&mut self, len: usize) {
        self.is("zero", &vec![0; len]);
    }

    /// Up to an offset that is the same for all values.
    fn zeroes_to(&mut self, offset: usize) {
        let len = self.base + offset - self.at;
        if self.fixed {
            return self.zeroes(len);
        }
        assert!(self.bytes[self.at..][..len].iter().all(|&byte| byte == 0), "{}: not zero", self.name);
        self.row("…", "zero");
        (self.at, self.fixed) = (self.at + len, true);
    }

    /// Adds a row for a list whose length an earlier field, called `count`, gives.
    fn list(&mut self, count: &str, text: &str, items: &[Vec<u8>]) {
        self.list_of(count, text, items[0].len(), items);
    }

    /// Adds the row of a list like [`list`](Self::list), of items of `size` bytes; perhaps none.
    fn list_of(&mut self, count: &str, text: &str, size: usize, items: &[Vec<u8>]) {
        self.row(&format!("{size} {count}"), text);
        for item in items {
            assert_eq!(&self.bytes[self.at..self.at + size], item, "{}, {text}", self.name);
            self.at += size;
        }
        self.fixed = false;
    }

    /// Over what is before it in the table.
    fn checksum(&mut self) {
        let crc = crc32c(&self.bytes[self.base..self.at]);
        let text = match self.at - self.base {
            0 => "zero, the CRC-32C of nothing".to_owned(),
            end if self.fixed => format!("CRC-32C over bytes 0..{end}"),
            _ => "CRC-32C over all before it".to_owned(),
        };
        self.u32(&text, crc);
    }

    /// Over everything up to `end`, as if these four bytes were zero.
    fn checksum_within(&mut self, what: &str, end: usize) {
        let mut bytes = self.bytes[self.base..end].to_vec();
        bytes[self.at - self.base..][..4].fill(0);
        self.u32(&format!("CRC-32C over the {what}, this field taken as zero"), crc32c(&bytes));
    }

    fn end(self, at: usize) -> (&'static str, String) {
        assert_eq!(self.at - self.base, at, "{}: bytes that no field is for", self.name);
        (self.name, self.rows)
    }
}

fn batch_table(batch: &Batch, block: &[u8]) -> (&'static str, String) {
    let used = BATCH_FIXED_BYTES + batch.entries.len() * DESC_BYTES;
    let mut t = Table::new("batch", block);
    t.magic(BATCH_MAGIC);
    t.u16(&format!("format version, {BATCH_VERSION}"), BATCH_VERSION);
    t.u16(&format!("number of entries n, 1 to {BATCH_ENTRIES_MAX}"), batch.entries.len() as u16);
    t.u64("resource", batch.resource.0);
    t.u64("epoch", batch.epoch.0);
    t.u64("index of the first entry", batch.first.0);
    t.u64("chain before this batch", batch.prev_chain.0);
    t.u64("chain after this batch", batch.chain.0);
    t.u64("commit index that the primary knew of when it sealed the batch", batch.commit.0);
    t.u64(&format!("bytes of payload, at most {BATCH_BYTES_MAX}"), batch.payload_len);
    t.zeroes_to(BATCH_FIXED_BYTES - 8);
    t.checksum_within("used front", used);
    t.zeroes_to(BATCH_FIXED_BYTES);
    let entries: Vec<_> = block[BATCH_FIXED_BYTES..used].chunks(DESC_BYTES).map(<[u8]>::to_vec).collect();
    t.list("n", "entries, see below", &entries);
    t.zeroes_to(LOCAL_OFFSET);
    t.is("local area, in a journal only, see below", &LOCAL.encode(batch.chain));
    t.end(HEADER_BLOCK_BYTES)
}

/// The number that stands for a kind, out of a sealed batch.
fn kind_of(kind: EntryKind) -> u8 {
    let range = match kind {
        EntryKind::EpochStart => Range { volume: VolumeId(0), offset: 0, len: 0 },
        EntryKind::Resize => Range { volume: VolumeId(0), offset: 4096, len: 0 },
        EntryKind::Snapshot | EntryKind::DropSnapshot => snapshot_range(SnapshotId(1)),
        EntryKind::Rollback => rollback_range(SnapshotId(1), SnapshotId(2)),
        _ => Range { volume: VolumeId(0), offset: 0, len: 4096 },
    };
    let payload = if kind == EntryKind::Write { pattern(1, 4096) } else { bytes::Bytes::new() };
    let entry = NewEntry { kind, range, payload, session: 0, request: 0 };
    Batch::seal(ResourceId(1), Epoch(1), Index(1), Chain(0), Index(0), [entry]).header[BATCH_FIXED_BYTES]
}

fn entry_table(batch: &Batch, block: &[u8]) -> (&'static str, String) {
    let kinds = [
        EntryKind::Write,
        EntryKind::Discard,
        EntryKind::WriteZeroes,
        EntryKind::EpochStart,
        EntryKind::Resize,
        EntryKind::Snapshot,
        EntryKind::DropSnapshot,
        EntryKind::Scrub,
        EntryKind::Rollback,
    ];
    let kinds = kinds.map(|kind| format!("{} {kind:?}", kind_of(kind))).join(", ");
    let entry = batch.entries.iter().position(|entry| entry.kind == EntryKind::Write).expect("there is one");
    let desc = &batch.entries[entry];
    let mut t = Table::from("entry", block, BATCH_FIXED_BYTES + entry * DESC_BYTES);
    t.u8(&format!("kind: {kinds}"), kind_of(EntryKind::Write));
    t.zeroes(1);
    t.u16("volume", desc.range.volume.0);
    t.u32("length in bytes", desc.range.len as u32);
    t.u64(
        "offset in bytes; of a Resize the new size of the volume, of a Snapshot or DropSnapshot its number; of a Rollback the number it goes back to, u32, and the one it takes, u32",
        desc.range.offset,
    );
    t.u32("CRC-32C of the payload; 0 for what has none", crc32c(&desc.payload));
    t.zeroes(4);
    t.u64("session of the client that asked, 0 for a device of the primary", desc.session);
    t.u64(
        "number of its request; of a device of the primary 0, of what repairs blocks after a scrub 1",
        desc.request,
    );
    t.end(DESC_BYTES)
}

fn local_table(batch: &Batch, block: &[u8]) -> (&'static str, String) {
    let mut t = Table::from("local", block, LOCAL_OFFSET);
    t.magic(u32::from_le_bytes(*b"MSJL"));
    t.zeroes(4);
    t.u64("generation: rises with every recovery, cut and restart of the log", LOCAL.generation);
    t.u64("index up to which all was durable here when this was written", LOCAL.durable_before.0);
    t.u64("chain after the batch: to which one this belongs", batch.chain.0);
    t.u8(
        "place of the payload: 0 behind the header block, 1 in the volumes, 2 behind the header block and something of it in the volumes",
        LOCAL.payload as u8,
    );
    t.zeroes_to(LOCAL_BYTES - 4);
    t.checksum();
    t.end(LOCAL_BYTES)
}

fn superblock_table() -> (&'static str, String) {
    let sample = superblock();
    let bytes = sample.encode();
    let copy = sample.unfinished.expect("a sample that shows both fields");
    let mut t = Table::new("superblock", &bytes);
    t.magic(SUPERBLOCK_MAGIC);
    t.u16(
        &format!(
            "format version: {SUPERBLOCK_VERSION}, or {SUPERBLOCK_FILLED_VERSION} if records after the checkpoint may have their payloads in the volumes"
        ),
        SUPERBLOCK_VERSION,
    );
    t.u16("flags: 1 each volume has a file of sums", u16::from(sample.sums));
    t.u64("sequence: rises with every update", sample.sequence);
    t.u64("resource", sample.resource.0);
    t.u64("incarnation", sample.incarnation.0);
    t.u64("bytes of the journal's ring", sample.journal_bytes);
    t.u64("promised epoch (R1)", sample.promised.0);
    t.u64("generation", sample.generation);
    t.position("checkpoint", sample.checkpoint.at);
    t.u64("chain at the checkpoint", sample.checkpoint.chain.0);
    t.u64("where in the ring the log goes on after it", sample.checkpoint.offset);
    t.u64("highest index that was known to be committed", sample.commit.0);
    t.u64("data: 0 consistent, 1 inconsistent, the target of a copy (R16), 2 the same, and what it held at the index of the next field is kept", 2);
    t.u64("if inconsistent: index that every extent is at least as new as, otherwise 0", copy.base.0);
    t.u64("slot of the version table that counts, 0 or 1", sample.versions_slot.into());
    t.u64(
        "root of that slot: CRC-64 over the CRC-32C of each of its pages, of all volumes one after the other",
        sample.versions_root,
    );
    t.u64(&format!("number of snapshots s, up to {SNAPSHOTS_MAX}"), sample.snapshots.len() as u64);
    t.u64(&format!("number of volumes n, 1 to {VOLUMES_MAX}"), sample.volumes.len() as u64);
    t.u64(&format!("number of voids v, up to {VOIDS_MAX}"), sample.voids.len() as u64);
    t.u64(&format!("number of epochs e, up to {EPOCHS_MAX}"), sample.epochs.len() as u64);
    let pair = |a: u64, b: u64| [a.to_le_bytes(), b.to_le_bytes()].concat();
    let volume = |(bytes, table): (&u64, &TablePlace)| {
        pair(*bytes, u64::from(table.first_page) | u64::from(table.extents) << 32)
    };
    let volumes: Vec<_> = sample.volumes.iter().zip(&sample.tables).map(volume).collect();
    t.list(
        "n",
        "of each volume: its size in bytes, u64; the first page of slot 0 of its version table, u32, counted after the superblocks; \
         extents that the table tells of, u32. Slot 1 follows slot 0 after the next power of two of its pages",
        &volumes,
    );
    let voids: Vec<_> = sample.voids.iter().map(|void| pair(void.generation, void.end.0)).collect();
    t.list(
        "v",
        "voids: records of an older generation than the first beyond the second, an index, do not count",
        &voids,
    );
    let epochs: Vec<_> = sample.epochs.iter().map(|(epoch, last)| pair(epoch.0, last.0)).collect();
    t.list("e", "epochs up to the checkpoint, each with its last index", &epochs);
    let snapshot = |one: &SnapshotRecord| pair(u64::from(one.id.0) | u64::from(one.held) << 32, one.at.0);
    t.list(
        "s",
        "snapshots at the checkpoint: the number, u32; 1 if it is held here, otherwise 0, u32; the index that it is as of",
        &sample.snapshots.iter().map(snapshot).collect::<Vec<_>>(),
    );
    t.zeroes_to(CLIENT_OFFSET);
    t.u64(
        "session of the last change that a client asked for, as of what is applied, otherwise 0",
        sample.client.session.0,
    );
    t.u64("its number", sample.client.number);
    t.checksum();
    t.end(SUPERBLOCK_BYTES)
}

fn versions_table() -> (&'static str, String) {
    let mut page = Vec::new();
    encode_page(&mut page, VERSIONS_PAGE, &VERSIONS);
    let mut t = Table::new("versions", &page);
    t.magic(u32::from_le_bytes(*b"MSVT"));
    t.u32("number of the page", VERSIONS_PAGE);
    t.checksum_within("page", VERSIONS_PAGE_BYTES);
    t.zeroes(4);
    let mut versions = VERSIONS.to_vec();
    versions.resize(VERSIONS_PER_PAGE, Index(0));
    let all: Vec<u8> = versions.iter().flat_map(|version| version.0.to_le_bytes()).collect();
    t.is(&format!("{VERSIONS_PER_PAGE} versions of 8 bytes, zero behind the last extent"), &all);
    t.end(VERSIONS_PAGE_BYTES)
}

fn label_table() -> (&'static str, String) {
    let sample = journal_label();
    let bytes = sample.encode();
    let mut t = Table::new("journal label", &bytes);
    t.magic(JOURNAL_LABEL_MAGIC);
    t.u16(&format!("format version, {JOURNAL_LABEL_VERSION}"), JOURNAL_LABEL_VERSION);
    t.u16("flags: 1 volatile, a power cut may cost the journal", u16::from(sample.volatile));
    t.u64("resource", sample.resource.0);
    t.u64("incarnation", sample.incarnation.0);
    t.u64("bytes of the ring, without this block", sample.journal_bytes);
    t.zeroes_to(JOURNAL_LABEL_BYTES - 4);
    t.checksum();
    t.end(JOURNAL_LABEL_BYTES)
}

fn old_map_table() -> (&'static str, String) {
    let sample = old_map_header();
    let bytes = sample.encode();
    let mut t = Table::new("map of a snapshot", &bytes);
    t.magic(OLD_MAP_MAGIC);
    t.u16(&format!("format version, {OLD_MAP_VERSION}"), OLD_MAP_VERSION);
    t.u16("volume", sample.volume.0);
    t.u32("snapshot that it was made for", sample.snapshot.0);
    t.u32(&format!("bytes of a chunk, {OLD_CHUNK_BYTES}"), OLD_CHUNK_BYTES as u32);
    t.u64("bytes of the volume then", sample.bytes);
    t.zeroes_to(bytes.len() - 4);
    t.checksum();
    t.end(bytes.len())
}

fn old_sector_table() -> (&'static str, String) {
    let mut bytes = Vec::new();
    encode_old_sector(&mut bytes, OLD_MAP_SECTOR, &OLD_MAP_SECTOR_WORDS);
    let mut t = Table::new("sector of such a map", &bytes);
    let mut words = OLD_MAP_SECTOR_WORDS.to_vec();
    words.resize(OLD_MAP_WORDS, 0);
    let all: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let text = format!(
        "{OLD_MAP_WORDS} words of 64 bits, the lowest first: whether a chunk was put aside; zero behind the last chunk"
    );
    t.is(&text, &all);
    t.u32("number of the sector, from 0", OLD_MAP_SECTOR);
    t.checksum();
    t.end(OLD_MAP_SECTOR_BYTES)
}

fn frame_table() -> (&'static str, String) {
    let sample = envelope(Message::Append(sample_batch().into()));
    let bytes = wire(&sample);
    let batch = sample_batch();
    let mut t = Table::new("frame", &bytes);
    t.magic(FRAME_MAGIC);
    t.u16(&format!("version of the protocol, {PROTOCOL_VERSION}"), PROTOCOL_VERSION);
    t.u16("kind of the message, see below", kind_of_message(&bytes));
    t.u64("resource", sample.resource.0);
    t.u64("epoch of the sender", sample.epoch.0);
    t.u64("version of the record that the sender holds", sample.version.0);
    t.u64(
        "incarnation: to a replica the one that is expected there, from a replica its own (R9)",
        sample.incarnation.0,
    );
    t.u32(&format!("bytes of meta m, at most {META_BYTES_MAX}"), batch.header.len() as u32);
    t.u32(&format!("bytes of payload p, at most {PAYLOAD_BYTES_MAX}"), batch.payload_len as u32);
    t.zeroes(12);
    t.checksum();
    t.list("m", "meta", &batch.header.iter().map(|&byte| vec![byte]).collect::<Vec<_>>());
    let payload = batch.payload.concat();
    t.list("p", "payload", &payload.iter().map(|&byte| vec![byte]).collect::<Vec<_>>());
    t.end(FRAME_HEADER_BYTES + batch.header.len() + payload.len())
}

fn kind_of_message(frame: &[u8]) -> u16 {
    u16::from_le_bytes([frame[6], frame[7]])
}

fn code_of(reject: Reject) -> u64 {
    let frame = wire(&envelope(Message::Rejected(reject)));
    let meta = &frame[FRAME_HEADER_BYTES..];
    u64::from_le_bytes(meta[..8].try_into().expect("eight bytes"))
}

fn sums_of(t: &mut Table<'_>, held: &BlockSums, what: &str) {
    t.u32("number of sums s; 0: cannot say", held.sums.len() as u32);
    t.u32("number of damaged blocks d", held.damaged.len() as u32);
    let sums: Vec<_> = held.sums.iter().map(|sum| sum.to_le_bytes().to_vec()).collect();
    t.list("s", &format!("CRC-64/NVME of each block of {what}"), &sums);
    let damaged: Vec<_> = held.damaged.iter().map(|block| block.to_le_bytes().to_vec()).collect();
    t.list("d", "a block of the range that does not fit its own checksum, ascending", &damaged);
}

fn range_of(t: &mut Table<'_>, range: Range) {
    t.u16("volume", range.volume.0);
    t.zeroes(2);
    t.u32("length in bytes, at most an extent", range.len as u32);
    t.u64("offset in bytes", range.offset);
}

/// The fields of a message's meta, each compared with the bytes; `None` for the batch, which has a
/// table of its own.
fn meta_table(message: &Message, frame: &[u8]) -> Option<(u16, String)> {
    let mut t = Table::from("meta", frame, FRAME_HEADER_BYTES);
    let mut payload = 0;
    match message {
        Message::Append(_) => return None,
        Message::Hello { cluster, node, to } => {
            t.u64("cluster", *cluster);
            t.u32("node that speaks", node.0);
            t.u32("node that it wants to speak to", to.0);
        }
        Message::Ping | Message::Pong | Message::Attach | Message::CopyEndReply => {}
        Message::AttachReply(state) => {
            t.u64("data: 0 consistent, 1 inconsistent", 1);
            t.position("last durable entry", state.end);
            t.u64("chain after it", state.chain.0);
            t.u64("commit index", state.commit.0);
            t.u64("base", state.base.0);
            t.u64(&format!("number of epochs e, up to {EPOCHS_MAX}"), state.epochs.len() as u64);
            let pair =
                |(epoch, last): &(Epoch, Index)| [epoch.0.to_le_bytes(), last.0.to_le_bytes()].concat();
            t.list(
                "e",
                "epochs, each with its last index",
                &state.epochs.iter().map(pair).collect::<Vec<_>>(),
            );
        }
        Message::Cut { to, chain } => {
            t.position("last entry that stays", *to);
            t.u64("1 if the chain follows, otherwise 0", chain.is_some().into());
            t.u64("chain after it, or 0", chain.unwrap_or_default().0);
        }
        Message::CutReply { end } => t.position("end of the log", *end),
        Message::Ack { durable } => t.u64("index up to which all is durable", durable.0),
        Message::Received { instance, index } => {
            t.u64("instance of the replica", instance.0);
            t.u64("index up to which all is in its memory", index.0);
        }
        Message::Commit { commit } => t.u64("commit index", commit.0),
        Message::CopyBegin { at, chain, volumes, snapshots, client } => {
            t.position("where the log starts anew", *at);
            t.u64("chain there", chain.0);
            t.u64(
                "session of the last change before it that a client asked for, otherwise 0",
                client.session.0,
            );
            t.u64("its number", client.number);
            t.u64(&format!("number of volumes n, 1 to {VOLUMES_MAX}"), volumes.len() as u64);
            t.u64(&format!("number of snapshots s, up to {SNAPSHOTS_MAX}"), snapshots.len() as u64);
            let sizes: Vec<_> = volumes.iter().map(|bytes| bytes.to_le_bytes().to_vec()).collect();
            t.list("n", "size of each volume there, in bytes", &sizes);
            let numbers: Vec<_> =
                snapshots.iter().map(|snapshot| u64::from(snapshot.0).to_le_bytes().to_vec()).collect();
            t.list("s", "numbers of the snapshots there, ascending", &numbers);
        }
        Message::CopyBeginReply { at, sums } => {
            t.position("where the log starts anew", *at);
            t.u64("1: the replica has checksums of its blocks, else 0", u64::from(*sums));
        }
        Message::CopyAsk { at, volume, extent } => {
            t.position("where the copy began", *at);
            t.u16("volume", volume.0);
            t.zeroes(2);
            t.u32("extent", extent.0);
        }
        Message::CopyHeld { at, volume, extent, held } => {
            t.position("where the copy began", *at);
            t.u16("volume", volume.0);
            t.zeroes(2);
            t.u32("extent", extent.0);
            sums_of(&mut t, held, "the extent");
        }
        Message::CopyExtent { volume, extent, version, at, data, damaged, kept } => {
            t.u16("volume", volume.0);
            t.zeroes(2);
            t.u32("extent", extent.0);
            t.u64("its version", version.0);
            t.u64("commit index as of which this is its content", at.0);
            t.u32("bytes of payload; none means zeroes", data.len() as u32);
            t.u32("CRC-32C of the payload", crc32c(data));
            t.u32("number of damaged blocks d", damaged.len() as u32);
            t.u32("number of kept blocks k", kept.len() as u32);
            let blocks: Vec<_> = damaged.iter().map(|block| block.to_le_bytes().to_vec()).collect();
            t.list("d", "block of the extent that no replica has whole, ascending", &blocks);
            let blocks: Vec<_> = kept.iter().map(|block| block.to_le_bytes().to_vec()).collect();
            t.list(
                "k",
                "block of the extent that is not in the payload, because the replica has it, ascending",
                &blocks,
            );
            payload = data.len();
        }
        Message::CopyExtentAck { volume, extent } => {
            t.u16("volume", volume.0);
            t.zeroes(2);
            t.u32("extent", extent.0);
        }
        Message::ScrubSums { at, held } => {
            t.u64("index of the scrub entry", at.0);
            sums_of(&mut t, held, "the entry's range");
        }
        Message::ReadBlocks { range, at } => {
            range_of(&mut t, *range);
            t.u64("index that it must have applied", at.0);
        }
        Message::BlocksRead { range, data } => {
            range_of(&mut t, *range);
            t.u32("bytes of payload; none: cannot say", data.len() as u32);
            t.u32("CRC-32C of the payload", crc32c(data));
            payload = data.len();
        }
        Message::ClientAsk(ClientAsk { session, stream, number, ask }) => {
            t.u64("session", session.0);
            t.u64("stream", *stream);
            t.u64("number of the request; of Attach the highest of a change that was answered", *number);
            let what = match ask {
                Ask::Attach => 0,
                Ask::Write { .. } => 1,
                Ask::Discard { .. } => 2,
                Ask::WriteZeroes { .. } => 3,
                Ask::Read { .. } => 4,
                Ask::Flush => 5,
            };
            t.u16("what: 0 Attach, 1 Write, 2 Discard, 3 WriteZeroes, 4 Read, 5 Flush", what);
            let range = ask.range().unwrap_or(Range { volume: VolumeId(0), offset: 0, len: 0 });
            let data =
                if let Ask::Write { payload, .. } = ask { payload.clone() } else { Default::default() };
            t.u16("volume", range.volume.0);
            t.u32("CRC-32C of the payload, which a Write has", crc32c(&data));
            t.u64("offset in bytes", range.offset);
            t.u64("length in bytes", range.len);
            payload = data.len();
        }
        Message::ClientAnswer(ClientAnswer { session, stream, number, answer }) => {
            t.u64("session", session.0);
            t.u64("stream", *stream);
            t.u64("number of the request", *number);
            let (what, why) = match answer {
                Answered::Attached { .. } => (0, 0),
                Answered::Done => (1, 0),
                Answered::Data(_) => (2, 0),
                Answered::Refused(Refusal::NotServing) => (3, 1),
                Answered::Refused(Refusal::Over) => (3, 2),
                Answered::Refused(Refusal::Lost) => (3, 3),
                Answered::Unreadable => (4, 0),
            };
            t.u16("what: 0 Attached, 1 Done, 2 Data, 3 Refused, 4 Unreadable", what);
            t.u16("why if refused: 1 NotServing, 2 Over, 3 Lost; otherwise 0", why);
            let data = if let Answered::Data(pieces) = answer { pieces.concat() } else { Vec::new() };
            t.u32("CRC-32C of the payload, which Data has", crc32c(&data));
            let sizes =
                if let Answered::Attached { volumes } = answer { volumes.clone() } else { Vec::new() };
            t.u64(
                &format!("if attached, number of volumes n, 1 to {VOLUMES_MAX}; otherwise 0"),
                sizes.len() as u64,
            );
            let sizes: Vec<_> = sizes.iter().map(|bytes| bytes.to_le_bytes().to_vec()).collect();
            t.list_of("n", "size of each volume, in bytes", 8, &sizes);
            payload = data.len();
        }
        Message::CopyEnd { need } => t.u64("commit index from which on the target is consistent", need.0),
        Message::Rejected(reject) => {
            let codes = [
                Reject::Epoch(Epoch(1)),
                Reject::Unknown,
                Reject::Gap(Position::default()),
                Reject::Chain,
                Reject::Failed,
                Reject::Snapshot,
            ];
            let codes = codes.map(|reject| {
                let name = format!("{reject:?}");
                format!("{} {}", code_of(reject), name.split('(').next().unwrap_or_default())
            });
            t.u64(&format!("why: {}", codes.join(", ")), code_of(*reject));
            let at = match *reject {
                Reject::Epoch(epoch) => Position { epoch, index: Index(0) },
                Reject::Gap(end) => end,
                Reject::Unknown | Reject::Chain | Reject::Failed | Reject::Snapshot => Position::default(),
            };
            t.position("for Epoch the promised one, for Gap the end of the log, otherwise zero", at);
        }
    }
    t.checksum();
    let len = t.at - t.base;
    let (_, rows) = t.end(len);
    assert_eq!(frame.len(), FRAME_HEADER_BYTES + len + payload, "{message:?}: bytes that no field is for");
    Some((kind_of_message(frame), rows))
}

/// A line for each kind of message, with its fields.
fn messages_table() -> (&'static str, String) {
    let mut kinds = std::collections::BTreeMap::new();
    for (_, message) in messages() {
        let frame = wire(&envelope(message.clone()));
        let name = format!("{message:?}");
        let name = name.split([' ', '(', '{']).next().unwrap_or_default().to_owned();
        let fields = match meta_table(&message, &frame) {
            None => {
                "the used front of a batch's header block, without local area; the payload is the batch's"
                    .to_owned()
            }
            Some((_, rows)) => {
                let cells = rows.lines().skip(2).map(|row| {
                    let cells: Vec<_> = row.split('|').map(str::trim).collect();
                    format!("{} ({})", cells[3], cells[2])
                });
                cells.collect::<Vec<_>>().join("; ")
            }
        };
        let line = format!("| {} | {name} | {fields} |\n", kind_of_message(&frame));
        if let Some(other) = kinds.insert(kind_of_message(&frame), line.clone()) {
            assert_eq!(other, line, "two samples of one kind");
        }
    }
    let numbers: Vec<u16> = kinds.keys().copied().collect();
    let all: Vec<u16> = (1..=numbers.len() as u16).collect();
    assert_eq!(numbers, all, "a kind without a sample");
    let mut rows = "| kind | message | meta: field (bytes) |\n|---|---|---|\n".to_owned();
    rows.extend(kinds.into_values());
    ("messages", rows)
}

#[test]
fn the_page_on_formats_agrees_with_the_encoder() {
    let batch = sample_batch();
    let block = batch.header_block(LOCAL);
    let tables = [
        batch_table(&batch, &block),
        entry_table(&batch, &block),
        local_table(&batch, &block),
        superblock_table(),
        versions_table(),
        label_table(),
        old_map_table(),
        old_sector_table(),
        frame_table(),
        messages_table(),
    ];
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/internals/formats.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let mut new = page.clone();
    for (name, rows) in &tables {
        let (open, close) = (format!("<!-- table: {name} -->\n"), "<!-- end -->");
        let (before, rest) = new.split_once(&open).unwrap_or_else(|| panic!("the page has no table {name}"));
        let (_, after) = rest.split_once(close).unwrap_or_else(|| panic!("the table {name} does not end"));
        new = format!("{before}{open}\n{rows}\n{close}{after}");
    }
    assert_eq!(page.matches("<!-- table: ").count(), tables.len(), "a table that no encoder writes");
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(&path, &new).expect("the page can be written");
    } else {
        assert_eq!(
            page, new,
            "docs/internals/formats.md is not what the code does; see the head of this file"
        );
    }
}

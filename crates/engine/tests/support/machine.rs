//! A virtual machine of a few lines: the monitor's end of vhost-user, and a driver that puts
//! requests into rings.

use mainstay_codec::vhost_user::{
    BODY_BYTES_MAX, FEATURE_PROTOCOL, HEADER_BYTES, InflightArea, MemoryRegion, Message, RingAddresses,
    protocol,
};
use mainstay_codec::virtio_blk::{HEADER_BYTES as ASK_BYTES, Header, Kind, RANGE_BYTES, Range, feature};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap};

pub const MEMORY_BYTES: u64 = 16 << 20;
/// Where the monitor sees the memory.
const USER: u64 = 0x7f12_0000_0000;
/// Requests of a queue that can be in flight, with three descriptors each.
pub const SLOTS: u16 = 20;
const RING_SIZE: u16 = 64;
const QUEUE_BYTES: u64 = 0x10000;
const DATA: u64 = 1 << 20;
/// Longest data of a request.
pub const SLOT_BYTES: u64 = 128 << 10;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The driver's state of a queue.
struct Queue {
    kick: OwnedFd,
    call: OwnedFd,
    available: u16,
    used: u16,
    /// Data of what is in flight, by slot: whether the device writes it, and its length.
    slots: [Option<(bool, u32)>; SLOTS as usize],
}

/// How a request ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Done {
    pub slot: u16,
    pub status: u8,
    /// Bytes that the device says to have written.
    pub written: u32,
    /// Bytes that the request read.
    pub data: Vec<u8>,
}

pub struct Machine {
    pub stream: UnixStream,
    pub memory: GuestMemoryMmap<()>,
    pub file: OwnedFd,
    queues: Vec<Queue>,
    pub area: Option<(InflightArea, OwnedFd)>,
    /// Put requests into tables of their own.
    pub indirect: bool,
}

fn ring(queue: u16, part: u64) -> u64 {
    QUEUE_BYTES * u64::from(queue) + part
}

const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLES: u64 = 0x4000;
const HEADERS: u64 = 0x8000;

impl Machine {
    /// A machine that is switched on.
    pub fn start(path: &Path, queues: u16) -> Self {
        let file = memfd_create("machine", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, MEMORY_BYTES).expect("memory");
        let offset = FileOffset::new(file.try_clone().expect("a copy").into(), 0);
        let region = GuestRegionMmap::from_range(GuestAddress(0), MEMORY_BYTES as usize, Some(offset));
        let memory = GuestMemoryMmap::from_regions(vec![region.expect("mapped")]).expect("mapped");
        let event = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("an eventfd");
        let queue =
            |_| Queue { kick: event(), call: event(), available: 0, used: 0, slots: [None; SLOTS as usize] };
        let stream = crate::support::wait("the socket", || UnixStream::connect(path).ok());
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let queues = (0..queues).map(queue).collect();
        let mut machine = Self { stream, memory, file, queues, area: None, indirect: false };
        machine.shake_hands();
        machine.run();
        machine
    }

    /// Connects again, as a monitor does that was cut off.
    pub fn reconnect(&mut self, path: &Path) {
        self.stream = crate::support::wait("the socket", || UnixStream::connect(path).ok());
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        self.shake_hands();
        self.run();
    }

    fn shake_hands(&mut self) {
        let features = u64_of(&self.ask(&Message::GetFeatures));
        let wanted = FEATURE_PROTOCOL | feature::VERSION_1 | feature::EVENT_IDX | feature::INDIRECT;
        assert_eq!(features & wanted, wanted);
        assert_eq!(u64_of(&self.ask(&Message::GetProtocolFeatures)), protocol::SPOKEN);
        self.tell(&Message::SetProtocolFeatures(protocol::SPOKEN), &[]);
        assert!(u64_of(&self.ask(&Message::GetQueueCount)) >= self.queues.len() as u64);
        self.tell(&Message::SetOwner, &[]);
        self.tell(&Message::SetFeatures(wanted | feature::FLUSH), &[]);
    }

    /// Starts the device as a monitor does when the driver is ready.
    fn run(&mut self) {
        if self.area.is_none() {
            let queues = self.queues.len() as u16;
            let wish = InflightArea { bytes: 0, offset: 0, queues, queue_size: RING_SIZE };
            self.send(&Message::GetInflight(wish), false, &[]);
            let (bytes, file) = self.receive();
            let body = &bytes[HEADER_BYTES..];
            self.area = Some((InflightArea { bytes: u64_of(body), ..wish }, file.expect("a file")));
        }
        let (area, file) = self.area.take().expect("there");
        self.tell(&Message::SetInflight(area), &[file.as_fd()]);
        self.area = Some((area, file));
        let region = MemoryRegion { guest: 0, bytes: MEMORY_BYTES, user: USER, offset: 0 };
        let file = self.file.try_clone().expect("a copy");
        self.tell(&Message::SetMemTable(vec![region]), &[file.as_fd()]);
        for number in 0..self.queues.len() as u16 {
            let ring_number = u32::from(number);
            self.tell(&Message::SetRingSize { ring: ring_number, size: RING_SIZE.into() }, &[]);
            let used = self.load(ring(number, USED) + 2);
            self.tell(&Message::SetRingBase { ring: ring_number, base: used.into() }, &[]);
            let at = |part| USER + ring(number, part);
            let addresses = RingAddresses { descriptors: at(0), used: at(USED), available: at(AVAILABLE) };
            self.tell(&Message::SetRingAddresses { ring: ring_number, addresses }, &[]);
            let (kick, call) = {
                let queue = &self.queues[usize::from(number)];
                (queue.kick.try_clone().expect("a copy"), queue.call.try_clone().expect("a copy"))
            };
            self.tell(&Message::SetRingKick { ring: ring_number, file: true }, &[kick.as_fd()]);
            self.tell(&Message::SetRingCall { ring: ring_number, file: true }, &[call.as_fd()]);
            self.tell(&Message::EnableRing { ring: ring_number, enable: true }, &[]);
        }
    }

    /// Stops a queue; where the device says to have got to.
    pub fn stop(&mut self, queue: u32) -> u32 {
        let body = self.ask(&Message::GetRingBase { ring: queue });
        u32::from_le_bytes(body[4..8].try_into().expect("four bytes"))
    }

    /// Sends a message and waits until it is done.
    pub fn tell(&mut self, message: &Message, files: &[BorrowedFd<'_>]) {
        self.send(message, true, files);
        let (bytes, _) = self.receive();
        assert_eq!(u64_of(&bytes[HEADER_BYTES..]), 0, "{message:?} was refused");
    }

    pub fn ask(&mut self, message: &Message) -> Vec<u8> {
        self.send(message, false, &[]);
        self.receive().0.split_off(HEADER_BYTES)
    }

    pub fn send(&self, message: &Message, need_reply: bool, files: &[BorrowedFd<'_>]) {
        let bytes = message.encode(need_reply).expect("a request");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        assert_eq!(sent.expect("sent"), bytes.len());
    }

    fn receive(&self) -> (Vec<u8>, Option<OwnedFd>) {
        let mut bytes = vec![0; HEADER_BYTES + BODY_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received =
            recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty());
        bytes.truncate(received.expect("an answer").bytes);
        assert!(bytes.len() >= HEADER_BYTES, "the engine has cut this machine off");
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        (bytes, file)
    }

    /// Whether the engine ends the connection.
    pub fn is_cut_off(&self) -> bool {
        let mut bytes = [0; 64];
        let mut control = RecvAncillaryBuffer::default();
        loop {
            match recvmsg(&self.stream, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::empty())
            {
                Ok(received) if received.bytes > 0 => {}
                Ok(_) | Err(rustix::io::Errno::CONNRESET) => return true,
                Err(_) => return false,
            }
        }
    }

    pub fn load(&self, at: u64) -> u16 {
        self.memory.load(GuestAddress(at), Ordering::Acquire).expect("in memory")
    }

    pub fn store(&self, at: u64, value: u16) {
        self.memory.store(value, GuestAddress(at), Ordering::Release).expect("in memory");
    }

    fn describe(&self, at: u64, address: u64, bytes: u32, flags: u16, next: u16) {
        let mut descriptor = [0; 16];
        descriptor[..8].copy_from_slice(&address.to_le_bytes());
        descriptor[8..12].copy_from_slice(&bytes.to_le_bytes());
        descriptor[12..14].copy_from_slice(&flags.to_le_bytes());
        descriptor[14..].copy_from_slice(&next.to_le_bytes());
        self.memory.write_slice(&descriptor, GuestAddress(at)).expect("in memory");
    }

    pub fn has_slot(&self, queue: u16) -> bool {
        self.queues[usize::from(queue)].slots.contains(&None)
    }

    /// Puts a request into the ring, without telling the device; its slot.
    fn offer(&mut self, queue: u16, kind: Kind, sector: u64, data: &[u8], room: u32) -> u16 {
        let slot =
            self.queues[usize::from(queue)].slots.iter().position(Option::is_none).expect("a slot") as u16;
        let header = ring(queue, HEADERS) + u64::from(slot) * 64;
        let status = header + 32;
        let place = DATA + (u64::from(queue * SLOTS) + u64::from(slot)) * SLOT_BYTES;
        self.memory.write_slice(&Header { kind, sector }.encode(), GuestAddress(header)).expect("in memory");
        self.memory.write_slice(&[0xff], GuestAddress(status)).expect("in memory");
        self.memory.write_slice(data, GuestAddress(place)).expect("in memory");
        let (bytes, writes) = if room > 0 { (room, 2) } else { (data.len() as u32, 0) };
        let head = 3 * slot;
        let (table, first) = if self.indirect {
            let table = ring(queue, TABLES) + u64::from(slot) * 64;
            self.describe(ring(queue, 16 * u64::from(head)), table, 48, 4, 0);
            (table, 0)
        } else {
            (ring(queue, 0), head)
        };
        let at = |number: u16| table + 16 * u64::from(first + number);
        self.describe(at(0), header, ASK_BYTES as u32, 1, first + if bytes > 0 { 1 } else { 2 });
        self.describe(at(1), place, bytes, 1 | writes, first + 2);
        self.describe(at(2), status, 1, 2, 0);
        let own = &mut self.queues[usize::from(queue)];
        own.slots[usize::from(slot)] = Some((room > 0, bytes));
        let entry = ring(queue, AVAILABLE) + 4 + 2 * u64::from(own.available % RING_SIZE);
        own.available = own.available.wrapping_add(1);
        let available = own.available;
        self.store(entry, head);
        self.store(ring(queue, AVAILABLE) + 2, available);
        slot
    }

    /// Wakes the device, if it wants to be woken for what was offered since `before`.
    pub fn kick(&self, queue: u16, always: bool) {
        std::sync::atomic::fence(Ordering::SeqCst);
        let own = &self.queues[usize::from(queue)];
        let event = || self.load(ring(queue, USED) + 4 + 8 * u64::from(RING_SIZE));
        if always || own.available.wrapping_sub(event()) == 1 {
            rustix::io::write(&own.kick, &1u64.to_ne_bytes()).expect("kicked");
        }
    }

    pub fn request(&mut self, queue: u16, kind: Kind, sector: u64, data: &[u8], room: u32) -> u16 {
        let slot = self.offer(queue, kind, sector, data, room);
        self.kick(queue, false);
        slot
    }

    pub fn range(&mut self, queue: u16, kind: Kind, range: Range) -> u16 {
        let bytes: [u8; RANGE_BYTES] = range.encode();
        self.request(queue, kind, 0, &bytes, 0)
    }

    /// The next answer, if there is one.
    pub fn poll(&mut self, queue: u16) -> Option<Done> {
        let own = &self.queues[usize::from(queue)];
        let index = self.load(ring(queue, USED) + 2);
        if index == own.used {
            return None;
        }
        let entry = ring(queue, USED) + 4 + 8 * u64::from(own.used % RING_SIZE);
        let mut bytes = [0; 8];
        self.memory.read_slice(&mut bytes, GuestAddress(entry)).expect("in memory");
        let head = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let written = u32::from_le_bytes(bytes[4..].try_into().expect("four bytes"));
        let slot = (head / 3) as u16;
        let own = &mut self.queues[usize::from(queue)];
        own.used = own.used.wrapping_add(1);
        let used = own.used;
        let (reads, len) = own.slots[usize::from(slot)].take().expect("a request is answered once");
        // Call me for the next one.
        self.store(ring(queue, AVAILABLE) + 4 + 2 * u64::from(RING_SIZE), used);
        let header = ring(queue, HEADERS) + u64::from(slot) * 64;
        let mut status = [0];
        self.memory.read_slice(&mut status, GuestAddress(header + 32)).expect("in memory");
        let mut data = vec![0; if reads { len as usize } else { 0 }];
        let place = DATA + (u64::from(queue * SLOTS) + u64::from(slot)) * SLOT_BYTES;
        self.memory.read_slice(&mut data, GuestAddress(place)).expect("in memory");
        Some(Done { slot, status: status[0], written, data })
    }

    /// The next answer; waits to be called for it.
    pub fn wait(&mut self, queue: u16) -> Done {
        self.wait_for(queue, PATIENCE).expect("an answer in time")
    }

    pub fn wait_for(&mut self, queue: u16, patience: Duration) -> Option<Done> {
        loop {
            if let Some(done) = self.poll(queue) {
                return Some(done);
            }
            let call = &self.queues[usize::from(queue)].call;
            let mut files = [PollFd::new(call, PollFlags::IN)];
            let timeout =
                Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: patience.subsec_nanos().into() };
            if poll(&mut files, Some(&timeout)).expect("polled") == 0 {
                return self.poll(queue);
            }
            let _ = rustix::io::read(call, &mut [0u8; 8]);
        }
    }

    /// A request by itself; its status and what it read.
    pub fn do_it(&mut self, queue: u16, kind: Kind, sector: u64, data: &[u8], room: u32) -> (u8, Vec<u8>) {
        let slot = self.request(queue, kind, sector, data, room);
        let done = self.wait(queue);
        assert_eq!(done.slot, slot);
        (done.status, done.data)
    }

    /// Addresses of the parts of a ring, for tests that break the rules.
    pub fn descriptors(queue: u16) -> u64 {
        ring(queue, 0)
    }

    pub fn available(queue: u16) -> u64 {
        ring(queue, AVAILABLE)
    }
}

pub fn u64_of(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes"))
}

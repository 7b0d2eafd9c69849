//! A lane: one connection to a peer, for messages in one direction.
//!
//! Guarantees
//! - Sending never waits. A message goes out on the sender's own thread if the connection takes it
//!   at once. Otherwise it waits in a bounded queue for the lane's thread. So a quiet lane wakes up
//!   no thread.
//! - Messages of one sender leave in their order, each whole.
//! - The lane's thread alone opens connections.

use super::{Frame, RETRY_PAUSE, Wire};
use crate::threads::{lock, spawn};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Messages that wait for one lane; more are dropped.
const QUEUE_MAX: usize = 512;

/// See the top of this file. The lane ends when this is dropped.
pub(super) struct Lane {
    queue: SyncSender<Frame>,
    shared: Arc<LaneShared>,
}

struct LaneShared {
    open: Mutex<Option<Open>>,
    /// Messages in the queue, and the one that the thread is writing.
    waiting: AtomicUsize,
    connected: Arc<AtomicBool>,
}

struct Open {
    wire: Box<dyn Wire>,
    /// Rest of a message that the connection has not taken yet.
    rest: Frame,
}

impl Lane {
    /// Starts the thread of a lane. `open` makes a connection, and may wait. `connected` says from
    /// now on whether there is one.
    pub(super) fn start(
        connected: Arc<AtomicBool>,
        open: impl Fn() -> Option<Box<dyn Wire>> + Send + 'static,
    ) -> Self {
        let (queue, frames) = sync_channel(QUEUE_MAX);
        let waiting = AtomicUsize::new(0);
        let shared = Arc::new(LaneShared { open: Mutex::default(), waiting, connected });
        let thread = shared.clone();
        spawn("agent-lane", move || {
            thread.run(&frames, &open);
            thread.close(&mut lock(&thread.open));
        });
        Self { queue, shared }
    }

    /// Sends a message. `false`: it was dropped.
    pub(super) fn send(&self, frame: Frame) -> bool {
        match self.shared.send_now(&frame) {
            Sent::Whole => true,
            // The empty message wakes up the thread, which writes the rest.
            Sent::Part => self.enqueue(Frame::new()),
            Sent::Nothing => self.enqueue(frame),
        }
    }

    fn enqueue(&self, frame: Frame) -> bool {
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        let taken = self.queue.try_send(frame).is_ok();
        if !taken {
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
        }
        taken
    }
}

/// How much of a message has left.
enum Sent {
    Whole,
    Part,
    Nothing,
}

impl LaneShared {
    /// Sends as much as goes without a wait, unless an earlier message waits.
    fn send_now(&self, frame: &[u8]) -> Sent {
        // The thread holds the lock while it writes.
        let Ok(mut guard) = self.open.try_lock() else { return Sent::Nothing };
        let Some(open) = guard.as_mut() else { return Sent::Nothing };
        if self.waiting.load(Ordering::SeqCst) > 0 || !open.rest.is_empty() || open.wire.is_held() {
            return Sent::Nothing;
        }
        match open.wire.write_now(frame) {
            Ok(0) => Sent::Nothing,
            Ok(length) if length == frame.len() && !open.wire.is_held() => Sent::Whole,
            Ok(length) => {
                open.rest = frame[length..].to_vec();
                Sent::Part
            }
            // The peer has lost what was under way, and drops the cut message with the connection.
            Err(_) => {
                self.close(&mut guard);
                Sent::Nothing
            }
        }
    }

    fn close(&self, open: &mut Option<Open>) {
        *open = None;
        self.connected.store(false, Ordering::Relaxed);
    }

    fn run(&self, frames: &Receiver<Frame>, connect: &dyn Fn() -> Option<Box<dyn Wire>>) {
        while let Ok(frame) = frames.recv() {
            let is_closed = lock(&self.open).is_none();
            if is_closed && let Some(wire) = connect() {
                *lock(&self.open) = Some(Open { wire, rest: Frame::new() });
                self.connected.store(true, Ordering::Relaxed);
            }
            let is_open = self.write(&frame);
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            if !is_open {
                std::thread::sleep(RETRY_PAUSE);
                // The messages that have waited here are outdated. Their senders repeat those that
                // still matter.
                while frames.try_recv().is_ok() {
                    self.waiting.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }
    }

    /// Writes a message, after the rest of an earlier one. `false` if there was no connection.
    fn write(&self, frame: &[u8]) -> bool {
        let mut guard = lock(&self.open);
        let Some(open) = guard.as_mut() else { return false };
        let rest = std::mem::take(&mut open.rest);
        let written = open.wire.write_all(&rest).and_then(|()| open.wire.write_all(frame));
        if written.and_then(|()| open.wire.flush()).is_err() {
            self.close(&mut guard);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    fn lane(listener: &TcpListener) -> (Lane, Arc<AtomicBool>) {
        let (address, connected) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let open = move || {
            let stream = TcpStream::connect(address).ok()?;
            Some(Box::new(stream) as Box<dyn Wire>)
        };
        (Lane::start(connected.clone(), open), connected)
    }

    /// Sends one message, which opens the connection.
    fn opened(lane: &Lane, listener: &TcpListener) -> TcpStream {
        assert!(lane.send(vec![0; 4]));
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        peer.read_exact(&mut [0; 4]).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        while lane.shared.waiting.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < end, "the thread has written the message");
            std::thread::yield_now();
        }
        peer
    }

    #[test]
    fn a_message_on_an_open_lane_wakes_up_no_thread() {
        let listener = TcpListener::bind("127.0.0.7:0").unwrap();
        let (lane, connected) = lane(&listener);
        let mut peer = opened(&lane, &listener);
        assert!(connected.load(Ordering::Relaxed));
        for _ in 0..100 {
            assert!(matches!(lane.shared.send_now(&[7; 100]), Sent::Whole));
            peer.read_exact(&mut [0; 100]).unwrap();
        }
    }

    #[test]
    fn messages_to_a_peer_that_does_not_read_arrive_whole_and_in_order_later() {
        let listener = TcpListener::bind("127.0.0.7:0").unwrap();
        let (lane, _) = lane(&listener);
        let mut peer = opened(&lane, &listener);
        let length = 1 << 20;
        let began = Instant::now();
        let count = (1..=60_u8).take_while(|byte| lane.send(vec![*byte; length])).count();
        assert!(count == 60 && began.elapsed() < Duration::from_secs(10), "sending does not wait");
        assert!(lane.shared.waiting.load(Ordering::SeqCst) > 0, "the connection cannot take so much");
        for byte in 1..=60_u8 {
            let mut message = vec![0; length];
            peer.read_exact(&mut message).unwrap();
            assert!(message.iter().all(|found| *found == byte), "message {byte}");
        }
    }

    #[test]
    fn a_lane_opens_a_new_connection_after_the_old_one_broke() {
        let listener = TcpListener::bind("127.0.0.7:0").unwrap();
        let (lane, _) = lane(&listener);
        drop(opened(&lane, &listener));
        listener.set_nonblocking(true).unwrap();
        let end = Instant::now() + Duration::from_secs(20);
        // The first message after the break may be lost, as it says in the transport.
        while listener.accept().is_err() {
            assert!(Instant::now() < end, "it dials again");
            lane.send(vec![1; 4]);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

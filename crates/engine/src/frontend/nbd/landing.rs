//! Where the bytes of a stream land, so that payloads need no copy.
//!
//! A receive scatters what comes over *places*: headers into a small staging buffer, payloads into
//! buffers of their own, aligned as the engine wants them. The border between the two is known only
//! after the header, so it is guessed from the writes that came before. A database sends its writes
//! of one size one after the other, so the guess is mostly right. One system call then brings
//! several whole writes. A wrong guess costs a copy of the bytes that landed in the wrong place,
//! and has no other effect.
//!
//! Guarantee: the bytes come out in the order in which they came in, whatever was guessed,
//! and however the stream was cut. Pure: the receive itself is the caller's.

use crate::buffer::{BufMut, BufferPool};
use crate::ring::Place;
use mainstay_codec::nbd::REQUEST_BYTES;
use mainstay_types::BLOCK_BYTES;

/// Longest payload that is guessed, and limit of all guessed together, in bytes. An idle connection
/// keeps this much memory.
const GUESSED_BYTES_MAX: usize = 64 << 10;
const GUESSES_MAX: usize = 16;
/// Room for requests where no payload is expected between them.
const STAGING_BYTES: usize = 4096;
const _: () = assert!(STAGING_BYTES >= REQUEST_BYTES * GUESSES_MAX);

/// A payload that has come in part or whole, at `at` in a buffer of its own.
#[derive(Debug)]
pub struct Payload {
    pub buffer: BufMut,
    pub at: usize,
    pub len: usize,
    /// How much of it has come.
    pub have: usize,
}

/// See the top of this file.
pub struct Landing {
    pool: BufferPool,
    /// `None` while a receive is under way.
    staging: Option<BufMut>,
    places: Vec<Place>,
    /// The place that holds the next byte, and how many of its bytes have been taken.
    next: usize,
    taken: usize,
    /// Bytes that have landed and were not taken.
    left: usize,
    /// Length of the last payload, where it can be expected again.
    guess: Option<usize>,
    /// Payloads since the last receive.
    payloads: usize,
}

impl Landing {
    pub fn new(pool: BufferPool) -> Self {
        let staging = Some(pool.get(STAGING_BYTES));
        Self { pool, staging, places: Vec::new(), next: 0, taken: 0, left: 0, guess: None, payloads: 0 }
    }

    /// The next receive: the rest of a payload, if one is wanted, then requests and what is guessed
    /// to follow them. `header` is how many bytes of the next request are still to come. Nothing
    /// may be left.
    pub fn plan(&mut self, rest: Option<Payload>, header: usize) -> (BufMut, Vec<Place>) {
        assert!(self.left == 0, "what has landed is taken before more is received");
        self.places.clear();
        if let Some(Payload { buffer, at, len, have }) = rest {
            let long = len - have > GUESSED_BYTES_MAX;
            self.places.push(Place { buffer: Some(buffer), at: at + have, len: len - have });
            if long {
                return self.planned();
            }
        }
        let Some(len) = self.guess else {
            self.places.push(Place { buffer: None, at: 0, len: STAGING_BYTES });
            return self.planned();
        };
        let count = (2 * self.payloads).clamp(1, GUESSES_MAX.min(GUESSED_BYTES_MAX / len));
        let mut at = 0;
        for guess in 0..count {
            let header = if guess == 0 { header } else { REQUEST_BYTES };
            self.places.push(Place { buffer: None, at, len: header });
            self.places.push(Place { buffer: Some(self.pool.get(len)), at: 0, len });
            at += header;
        }
        self.planned()
    }

    fn planned(&mut self) -> (BufMut, Vec<Place>) {
        self.payloads = 0;
        let staging = self.staging.take().expect("one receive at a time");
        (staging, std::mem::take(&mut self.places))
    }

    /// Takes back a receive that was planned and brought `bytes` bytes. `rest`: where a payload
    /// whose rest was planned begins in its buffer, and its length. Returns that payload.
    pub fn landed(
        &mut self,
        staging: BufMut,
        mut places: Vec<Place>,
        bytes: usize,
        rest: Option<(usize, usize)>,
    ) -> Option<Payload> {
        let payload = rest.map(|(at, len)| {
            let Place { buffer, at: from, len: room } = &mut places[0];
            let buffer = buffer.take().expect("the rest of a payload has a buffer of its own");
            Payload { buffer, at, len, have: *from - at + bytes.min(*room) }
        });
        self.staging = Some(staging);
        (self.next, self.taken) = (usize::from(payload.is_some()), 0);
        self.left = bytes - if payload.is_some() { bytes.min(places[0].len) } else { 0 };
        self.places = places;
        payload
    }

    /// Bytes that came before the first receive.
    pub fn preload(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        let mut buffer = self.pool.get(len);
        buffer.as_mut_slice()[..len].copy_from_slice(bytes);
        self.places = vec![Place { buffer: Some(buffer), at: 0, len }];
        (self.next, self.taken, self.left) = (0, 0, len);
    }

    /// Copies the next bytes out, as many as there are and fit; returns how many.
    pub fn copy(&mut self, out: &mut [u8]) -> usize {
        let mut done = 0;
        while done < out.len() && self.left > 0 {
            let place = &self.places[self.next];
            let Some(buffer) = place.buffer.as_ref().or(self.staging.as_ref()) else {
                unreachable!("both are here while nothing is under way")
            };
            let here = (place.len - self.taken).min(self.left).min(out.len() - done);
            let from = place.at + self.taken;
            out[done..done + here].copy_from_slice(&buffer.as_slice()[from..from + here]);
            done += here;
            self.skip_here(here);
        }
        done
    }

    /// Forgets the next bytes, `len` at most; returns how many there were.
    pub fn skip(&mut self, len: usize) -> usize {
        let mut done = 0;
        while done < len && self.left > 0 {
            let here = (self.places[self.next].len - self.taken).min(self.left).min(len - done);
            done += here;
            self.skip_here(here);
        }
        done
    }

    fn skip_here(&mut self, bytes: usize) {
        self.taken += bytes;
        self.left -= bytes;
        if self.taken == self.places[self.next].len {
            self.next += 1;
            self.taken = 0;
        }
    }

    /// The next `len` bytes as a payload that lies at `at` in its buffer, with what has come of it.
    /// The buffer holds whole blocks, the last one included.
    pub fn payload(&mut self, at: usize, len: usize) -> Payload {
        self.payloads += 1;
        let whole_blocks = at == 0 && len.is_multiple_of(BLOCK_BYTES as usize);
        self.guess = (whole_blocks && len <= GUESSED_BYTES_MAX).then_some(len);
        if self.taken == 0
            && let Some(place) = self.places.get_mut(self.next)
            && (place.at, place.len) == (at, len)
            && whole_blocks
            && let Some(buffer) = place.buffer.take()
        {
            let have = self.left.min(len);
            self.left -= have;
            self.next += 1;
            return Payload { buffer, at, len, have };
        }
        let mut buffer = self.pool.get((at + len).next_multiple_of(BLOCK_BYTES as usize));
        let have = self.copy(&mut buffer.as_mut_slice()[at..at + len]);
        Payload { buffer, at, len, have }
    }

    /// Requests without payload have come: no payload is guessed behind the next one.
    pub fn no_payload(&mut self) {
        if self.payloads == 0 {
            self.guess = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A socket: what was sent, cut anywhere.
    struct Wire<'a> {
        rest: &'a [u8],
        cuts: Vec<usize>,
    }

    impl Wire<'_> {
        /// Fills the places as a receive does.
        fn receive(&mut self, staging: &mut BufMut, places: &mut [Place]) -> usize {
            let cut = self.cuts.pop().unwrap_or(usize::MAX);
            let mut room = cut.min(self.rest.len());
            let all = room;
            for Place { buffer, at, len } in places {
                let here = room.min(*len);
                let target = buffer.as_mut().unwrap_or(staging);
                target.as_mut_slice()[*at..*at + here].copy_from_slice(&self.rest[..here]);
                self.rest = &self.rest[here..];
                room -= here;
            }
            all - room
        }
    }

    /// Reads headers, whose first bytes say how long the payload behind them is, as a connection
    /// does.
    fn read_all(sent: &[(usize, Vec<u8>)], cuts: Vec<usize>) -> (usize, usize) {
        let mut stream = Vec::new();
        for (at, payload) in sent {
            let mut header = [7; REQUEST_BYTES];
            header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
            header[4..8].copy_from_slice(&(*at as u32).to_le_bytes());
            stream.extend(header);
            stream.extend(payload);
        }
        let mut wire = Wire { rest: &stream, cuts };
        let mut landing = Landing::new(BufferPool::new(8 << 20));
        let (mut receives, mut copied, mut found) = (0, 0, 0);
        let (mut header, mut have) = ([0; REQUEST_BYTES], 0);
        let mut open: Option<Payload> = None;
        while found < sent.len() {
            match open.take() {
                None => {
                    have += landing.copy(&mut header[have..]);
                    if have == REQUEST_BYTES {
                        have = 0;
                        let number = |at: usize| {
                            u32::from_le_bytes(header[at..at + 4].try_into().expect("four")) as usize
                        };
                        if number(0) == 0 {
                            landing.no_payload();
                            assert!(sent[found].1.is_empty());
                            found += 1;
                        } else {
                            let before = landing.places.get(landing.next).is_some_and(|p| p.buffer.is_some());
                            open = Some(landing.payload(number(4), number(0)));
                            copied += usize::from(!before);
                        }
                        continue;
                    }
                }
                Some(payload) if payload.have == payload.len => {
                    let Payload { buffer, at, len, .. } = payload;
                    assert_eq!((at, &buffer.as_slice()[at..at + len]), (sent[found].0, &sent[found].1[..]));
                    assert!(buffer.capacity() >= (at + len).next_multiple_of(4096));
                    found += 1;
                    continue;
                }
                payload => open = payload,
            }
            let rest = open.as_ref().map(|payload| (payload.at, payload.len));
            let (mut staging, mut places) = landing.plan(open.take(), REQUEST_BYTES - have);
            let bytes = wire.receive(&mut staging, &mut places);
            assert!(bytes > 0, "asked for more than was sent");
            receives += 1;
            open = landing.landed(staging, places, bytes, rest);
        }
        (receives, copied)
    }

    #[test]
    fn equal_writes_land_in_place_several_at_once() {
        let sent = vec![(0, vec![5; 4096]); 200];
        let (receives, copied) = read_all(&sent, Vec::new());
        assert!(receives < 20 && copied <= 2, "{receives} receives, {copied} payloads copied");
        // One at a time: one receive for each, with the request.
        let one_by_one = vec![REQUEST_BYTES + 4096; 200];
        let (receives, copied) = read_all(&sent, one_by_one);
        assert!(receives <= 201 && copied <= 1, "{receives} receives, {copied} payloads copied");
    }

    proptest! {
        /// The bytes come out as they came in, whatever was guessed and however the stream was cut.
        #[test]
        fn bytes_come_out_as_they_came_in(
            sizes in proptest::collection::vec(
                prop_oneof![
                    3 => Just((0usize, 4096usize)), 2 => Just((0, 0)), 1 => Just((0, 65536)), 1 => Just((0, 200_000)),
                    1 => (0usize..4096, 1usize..9000),
                ], 1..60),
            cuts in proptest::collection::vec(prop_oneof![1usize..60, 1usize..9000], 0..200),
        ) {
            let sent: Vec<_> = sizes.iter().enumerate().map(|(number, (at, len))| {
                (*at, (0..*len).map(|byte| (byte * 31 + number * 7) as u8).collect())
            }).collect();
            read_all(&sent, cuts);
        }
    }
}

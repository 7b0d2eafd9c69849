//! Queue of the replies to one client: headers and content, in order, gathered into few sends.

use crate::buffer::PIECE_BYTES_MAX;
use crate::ring::advance;
use bytes::{Bytes, BytesMut};
use mainstay_codec::Pieces;
use mainstay_codec::nbd::transmission;
use std::collections::VecDeque;

use crate::frontend::exchange::Reply;

/// How much of headers and short content goes into one piece, in bytes, more or less.
const HEADERS_BYTES: usize = 64 << 10;

/// See the top of this file.
pub struct Outbox {
    /// Behind everything in the queue: headers, and content that is short.
    headers: BytesMut,
    queue: VecDeque<Bytes>,
    /// List of the last send, kept to be filled again.
    spare: VecDeque<Bytes>,
    bytes: usize,
    sending: bool,
}

impl Outbox {
    pub fn new() -> Self {
        Self {
            headers: BytesMut::new(),
            queue: VecDeque::new(),
            spare: VecDeque::new(),
            bytes: 0,
            sending: false,
        }
    }

    /// Bytes that have not been sent yet.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_sending(&self) -> bool {
        self.sending
    }

    /// Adds a reply in the form that was agreed on.
    pub fn reply(&mut self, structured: bool, context: u32, cookie: u64, reply: Reply) {
        let before = self.headers.len();
        match reply {
            Reply::Done if structured => self.headers.extend_from_slice(&transmission::none_chunk(cookie)),
            Reply::Done => self.headers.extend_from_slice(&transmission::simple_reply(cookie, None)),
            Reply::Failed(error, words) if structured => {
                transmission::error_chunk(&mut self.headers, cookie, error, words);
            }
            Reply::Failed(error, _) => {
                self.headers.extend_from_slice(&transmission::simple_reply(cookie, Some(error)));
            }
            Reply::Status(extents) => {
                transmission::status_chunk(&mut self.headers, cookie, context, &extents);
            }
            Reply::Data { offset, pieces, last } => {
                if structured {
                    let len: usize = pieces.iter().map(Bytes::len).sum();
                    // At most the longest read.
                    let header = transmission::data_chunk(cookie, offset, len as u32, last);
                    self.headers.extend_from_slice(&header);
                } else {
                    self.headers.extend_from_slice(&transmission::simple_reply(cookie, None));
                }
                self.bytes += self.headers.len() - before;
                return self.content(pieces);
            }
        }
        self.bytes += self.headers.len() - before;
    }

    fn content(&mut self, pieces: Pieces) {
        self.bytes += pieces.iter().map(Bytes::len).sum::<usize>();
        for piece in pieces {
            // A client may let us wait for as long as it likes, and a piece of a stretch would keep
            // all of it.
            if piece.len() <= PIECE_BYTES_MAX {
                self.headers.extend_from_slice(&piece);
                if self.headers.len() >= HEADERS_BYTES {
                    self.close_headers();
                }
            } else {
                self.close_headers();
                self.queue.push_back(piece);
            }
        }
    }

    fn close_headers(&mut self) {
        if !self.headers.is_empty() {
            self.queue.push_back(self.headers.split().freeze());
        }
    }

    /// Takes the pieces of the next send. `None` while a send is under way, or if there is nothing
    /// to send.
    pub fn take(&mut self) -> Option<VecDeque<Bytes>> {
        if self.sending || self.bytes == 0 {
            return None;
        }
        self.close_headers();
        self.sending = true;
        Some(std::mem::replace(&mut self.queue, std::mem::take(&mut self.spare)))
    }

    /// `sent` bytes of what was taken have left.
    pub fn sent(&mut self, mut pieces: VecDeque<Bytes>, sent: usize) {
        self.sending = false;
        self.bytes -= sent;
        advance(&mut pieces, sent);
        if pieces.is_empty() {
            self.spare = pieces;
        } else {
            // A short send: the rest goes first.
            pieces.append(&mut self.queue);
            self.spare = std::mem::replace(&mut self.queue, pieces);
        }
    }

    /// Drops the queue, as its client reads no more. Pieces under way still belong to their send.
    pub fn abandon(&mut self) {
        self.queue.clear();
        self.headers.clear();
        self.bytes = 0;
    }

    /// A send has ended, of which nothing matters any more.
    pub fn ended(&mut self) {
        self.sending = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::BufferPool;

    /// Length of a chunk's head with its offset, in bytes.
    const DATA_HEADER_BYTES: usize = 28;

    #[test]
    fn short_content_is_copied_and_long_content_is_not() {
        let pool = BufferPool::new(1 << 20);
        let piece = |len: usize, byte: u8| {
            let mut buffer = pool.get_passing(len);
            buffer.as_mut_slice()[..len].fill(byte);
            buffer.freeze(len)
        };
        let (short, long) = (piece(4096, 1), piece(PIECE_BYTES_MAX + 4096, 2));
        let at = long.as_ptr();
        let expected = [&short[..], &long[..], &short[..]].concat();
        let mut outbox = Outbox::new();
        let pieces = Pieces::from_iter([short.clone(), long, short]);
        outbox.reply(true, 0, 7, Reply::Data { offset: 0, pieces, last: true });
        pool.end_passing();
        assert_eq!(
            pool.in_use_bytes(),
            (PIECE_BYTES_MAX + 4096).next_power_of_two(),
            "short ones are not held"
        );
        let sent = outbox.take().expect("something to send");
        let bytes = sent.iter().map(|piece| &piece[..]).collect::<Vec<_>>().concat();
        assert!(bytes[DATA_HEADER_BYTES..] == expected, "all of it, in order");
        assert!(sent.iter().any(|piece| piece.as_ptr() == at), "not copied");
        assert_eq!(outbox.bytes(), sent.iter().map(Bytes::len).sum::<usize>());
    }
}

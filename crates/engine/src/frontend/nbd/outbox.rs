//! What waits to be sent to one client: headers and content, in order, gathered into few sends.

use crate::ring::advance;
use bytes::{Bytes, BytesMut};
use mainstay_codec::nbd::transmission;
use std::collections::VecDeque;

use crate::frontend::exchange::Reply;

/// Memory for headers, in bytes; used again once they have been sent.
const HEADERS_BYTES: usize = 4096;

/// See the top of this file.
pub struct Outbox {
    /// Behind everything in the queue.
    headers: BytesMut,
    queue: VecDeque<Bytes>,
    /// Of the last send, to be filled again.
    spare: VecDeque<Bytes>,
    bytes: usize,
    sending: bool,
}

impl Outbox {
    pub fn new() -> Self {
        Self {
            headers: BytesMut::with_capacity(HEADERS_BYTES),
            queue: VecDeque::new(),
            spare: VecDeque::new(),
            bytes: 0,
            sending: false,
        }
    }

    /// What has not been sent yet.
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

    fn content(&mut self, pieces: Vec<Bytes>) {
        self.queue.push_back(self.headers.split().freeze());
        self.bytes += pieces.iter().map(Bytes::len).sum::<usize>();
        self.queue.extend(pieces);
    }

    /// What is to be sent now, if there is something and nothing is under way.
    pub fn take(&mut self) -> Option<VecDeque<Bytes>> {
        if self.sending || self.bytes == 0 {
            return None;
        }
        if !self.headers.is_empty() {
            self.queue.push_back(self.headers.split().freeze());
        }
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

    /// Nobody reads any more. What is under way is still owned by its send.
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

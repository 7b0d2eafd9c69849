//! The socket between a monitor and the engine: messages with files beside them.
//!
//! Messages are few (a machine starts, stops, reboots), so they are read and written directly,
//! never waiting, when the shard's ring says that there is one.
//!
//! Guarantee: a message is handed over whole, with the files that came with it and no
//! others; what is held for one that is not whole is bounded (R18); files that are not wanted are
//! closed.

use crate::ring::Fd;
use mainstay_codec::DecodeError;
use mainstay_codec::vhost_user::{BODY_BYTES_MAX, HEADER_BYTES, Header, Message, REGIONS_MAX};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use thiserror::Error;

/// Why a connection cannot go on.
#[derive(Debug, Error)]
pub enum ChannelError {
    #[error("the other end has gone")]
    Gone,
    #[error("it sent something that is no message")]
    Message(#[from] DecodeError),
    #[error("it sent more files than any message has")]
    Files,
    #[error("it does not read its answers")]
    Deaf,
    #[error("its connection broke")]
    Broken(#[source] io::Error),
}

/// A message with what came beside it.
pub struct Received {
    pub header: Header,
    pub message: Message,
    pub files: Vec<OwnedFd>,
}

/// See the top of this file.
pub struct Channel {
    pub socket: Fd,
    bytes: [u8; HEADER_BYTES + BODY_BYTES_MAX],
    have: usize,
    files: Vec<OwnedFd>,
}

impl Channel {
    pub fn new(socket: Fd) -> Self {
        Self { socket, bytes: [0; HEADER_BYTES + BODY_BYTES_MAX], have: 0, files: Vec::new() }
    }

    /// The next message, if all of it has come.
    ///
    /// # Errors
    /// When there will be none.
    pub fn receive(&mut self) -> Result<Option<Received>, ChannelError> {
        loop {
            let header = match self.bytes.first_chunk() {
                Some(bytes) if self.have >= HEADER_BYTES => Some(Header::decode(bytes)?),
                _ => None,
            };
            let want = HEADER_BYTES + header.map_or(0, |header| header.len);
            if let Some(header) = header
                && self.have == want
            {
                self.have = 0;
                let message = Message::decode(&header, &self.bytes[HEADER_BYTES..want])?;
                return Ok(Some(Received { header, message, files: std::mem::take(&mut self.files) }));
            }
            if !self.fill(want)? {
                return Ok(None);
            }
        }
    }

    /// Reads on up to `want` bytes of the message; false when nothing has come.
    fn fill(&mut self, want: usize) -> Result<bool, ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REGIONS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let place = &mut self.bytes[self.have..want];
        let received = recvmsg(&*self.socket, &mut [IoSliceMut::new(place)], &mut control, flags);
        let received = match received {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(false),
            Err(error) => return Err(ChannelError::Broken(error.into())),
        };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(files) = message {
                self.files.extend(files);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) || self.files.len() > REGIONS_MAX {
            return Err(ChannelError::Files);
        }
        if received.bytes == 0 {
            return Err(ChannelError::Gone);
        }
        self.have += received.bytes;
        Ok(true)
    }

    /// Sends an answer, with a file if there is one.
    ///
    /// # Errors
    /// When it does not fit: an answer is short, and the other end waits for it.
    pub fn send(&self, bytes: &[u8], file: Option<&OwnedFd>) -> Result<(), ChannelError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let files = file.map(|file| [file.as_fd()]);
        if let Some(files) = &files {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match sendmsg(&*self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) | Err(Errno::AGAIN) => Err(ChannelError::Deaf),
            Err(error) => Err(ChannelError::Broken(error.into())),
        }
    }
}

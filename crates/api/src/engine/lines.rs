//! Messages as lines of JSON.

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, ErrorKind, Read, Write};
use thiserror::Error;

/// Longest line in either direction, its end included, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Why a line could not be sent or received.
#[derive(Debug, Error)]
pub enum LineError {
    #[error("the connection failed")]
    Io(#[from] std::io::Error),
    #[error("a line is longer than {LINE_BYTES_MAX} bytes")]
    TooLong,
    #[error("the connection ended within a line")]
    Torn,
    #[error("a line is not the JSON that was expected")]
    Json(#[from] serde_json::Error),
}

/// One message as a line with its end.
pub fn encode_line<T: Serialize>(message: &T) -> Result<Vec<u8>, LineError> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX { Err(LineError::TooLong) } else { Ok(line) }
}

/// Writes one message and flushes.
pub fn write_line<T: Serialize>(writer: &mut impl Write, message: &T) -> Result<(), LineError> {
    writer.write_all(&encode_line(message)?)?;
    writer.flush()?;
    Ok(())
}

/// Reads one message; `None` at the end of the connection. Blocks as the reader does.
pub fn read_line<T: DeserializeOwned>(reader: &mut impl BufRead) -> Result<Option<T>, LineError> {
    let mut line = Vec::new();
    let limit = LINE_BYTES_MAX as u64;
    loop {
        // An interrupted read keeps in `line` what had arrived before.
        match reader.by_ref().take(limit - line.len() as u64).read_until(b'\n', &mut line) {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(serde_json::from_slice(&line)?)),
        Some(_) if line.len() >= LINE_BYTES_MAX => Err(LineError::TooLong),
        Some(_) => Err(LineError::Torn),
    }
}

/// Cuts a stream of bytes into messages, for callers that do their own reading (blocking or not).
#[derive(Debug, Default)]
pub struct LineDecoder {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are known to hold no line end.
    searched: usize,
}

impl LineDecoder {
    /// Adds bytes in the order in which they were received.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next message, `None` if more bytes are needed. After [`LineError::Json`] the line is
    /// gone and decoding may go on; after [`LineError::TooLong`] the connection is to be closed.
    ///
    /// The buffer stays bounded as long as this is called until `None` after every `push`.
    pub fn next_message<T: DeserializeOwned>(&mut self) -> Result<Option<T>, LineError> {
        let found = self.buffer[self.searched..].iter().position(|&byte| byte == b'\n');
        let Some(end) = found.map(|at| at + self.searched) else {
            self.searched = self.buffer.len();
            return if self.buffer.len() >= LINE_BYTES_MAX { Err(LineError::TooLong) } else { Ok(None) };
        };
        self.searched = 0;
        if end >= LINE_BYTES_MAX {
            return Err(LineError::TooLong);
        }
        let rest = self.buffer.split_off(end + 1);
        let line = std::mem::replace(&mut self.buffer, rest);
        Ok(Some(serde_json::from_slice(&line)?))
    }
}

//! Synchronous access to files that are open for direct I/O, for threads that may block.

use mainstay_types::BLOCK_BYTES;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;

const ALIGN: usize = BLOCK_BYTES as usize;

/// Bytes at an address that every direct I/O takes.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN).min(ALIGN);
        Self { memory, start, len }
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut all = Self::new(bytes.len());
        all.copy_from_slice(bytes);
        all
    }
}

impl Deref for Aligned {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Reads exactly `len` bytes; offset and length are whole blocks.
pub fn read_at(file: impl AsFd, offset: u64, len: usize) -> io::Result<Aligned> {
    let mut bytes = Aligned::new(len);
    let mut done = 0;
    while done < len {
        match rustix::io::pread(&file, &mut bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

/// All of these bytes; offset and length are whole blocks.
pub fn write_at(file: impl AsFd, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let bytes = Aligned::of(bytes);
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::pwrite(&file, &bytes[done..], offset + done as u64) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Gives back the space of whole blocks; they read as zeroes.
pub fn punch(file: impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, flags, offset, len).map_err(io::Error::from)
}

/// Where, from an offset on and before another, a file has something else than a hole.
pub fn next_data(file: impl AsFd, from: u64, end: u64) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, SeekFrom::Data(from)) {
        Ok(at) => Ok((at < end).then(|| at.max(from))),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Copies what is not a hole of the first `end` bytes of one file to the same place in an empty
/// one. Neither is open for direct I/O.
pub fn copy_sparse(from: impl AsFd, to: impl AsFd, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while let Some(data) = next_data(&from, at, end)? {
        at = data;
        let hole = match rustix::fs::seek(&from, SeekFrom::Hole(at)) {
            Ok(hole) => hole.min(end),
            Err(error) => return Err(error.into()),
        };
        while at < hole {
            let part = ((hole - at) as usize).min(buffer.len());
            match rustix::io::pread(&from, &mut buffer[..part], at) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    let mut done = 0;
                    while done < read {
                        done += rustix::io::pwrite(&to, &buffer[done..read], at + done as u64)?;
                    }
                    at += read as u64;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

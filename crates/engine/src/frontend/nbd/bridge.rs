//! TLS for a client: a thread that stands between its connection and the shard.
//!
//! ```text
//! client ══TLS══▶ [ outer socket │ bridge │ inner socket ] ──socket pair──▶ shard
//! ```
//! The shard serves the inner end like any other client's socket, so nothing of its path knows of
//! TLS, and clients without it pay nothing. Why a thread: see
//! `docs/adr/0008-tls-beside-the-shard.md`.
//!
//! ```text
//! Handshake ──the client has proved itself──▶ Open ──either side ends──▶ Draining ──all sent, or LINGER──▶ ended
//!   └──refused, or the shard has lost patience──▶ ended
//! ```
//! Guarantees:
//! - No byte passes in either direction before the client has proved who it is.
//! - Decrypted bytes that the shard has not taken, and encrypted bytes that the client has not
//!   taken, are bounded. The bridge reads no more meanwhile (R18).
//! - A bridge ends soon after the shard has closed its end. This also bounds a handshake: the shard
//!   has the clocks.
//! - At most [`BRIDGES_MAX`] bridges stand at a time.

use super::tls::{TlsFiles, refusal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustls::ServerConnection;
use std::io::{self, BufRead, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Most clients with TLS, those that have not proved themselves yet included: some 200 KiB of
/// memory and a thread each (R18).
pub const BRIDGES_MAX: usize = 256;
/// How long a client may take to receive the last bytes.
const LINGER: Duration = Duration::from_secs(5);
/// Bytes that are read at once, and limit of what is encrypted ahead of the client.
const CHUNK_BYTES: usize = 64 << 10;
/// Reads in one direction before the other one has its turn.
const TURN_READS: usize = 8;

/// Makes bridges.
pub struct Bridges {
    files: TlsFiles,
    /// One more for each that stands.
    standing: Arc<()>,
}

impl Bridges {
    #[must_use]
    pub fn new(files: TlsFiles) -> Self {
        Self { files, standing: Arc::new(()) }
    }

    /// Begins TLS with a client. Returns the other end of the bridge, which is silent until the
    /// client has proved who it is.
    ///
    /// # Errors
    /// When there are too many, or the system refuses.
    pub fn start(&self, outer: OwnedFd, peer: String) -> io::Result<OwnedFd> {
        if Arc::strong_count(&self.standing) > BRIDGES_MAX {
            return Err(io::Error::other(format!("{BRIDGES_MAX} clients have TLS already")));
        }
        let (inner, shard) = UnixStream::pair()?;
        let outer = TcpStream::from(outer);
        outer.set_nonblocking(true)?;
        inner.set_nonblocking(true)?;
        let (files, standing) = (self.files.clone(), Arc::clone(&self.standing));
        thread::Builder::new().name("nbd-tls".into()).spawn(move || {
            if let Err(reason) = serve(&files, outer, inner, &peer) {
                tracing::warn!(peer, reason, "an NBD client was refused");
            }
            drop(standing);
        })?;
        Ok(shard.into())
    }
}

/// Until one of both ends. The reason, if the client did not get in.
fn serve(files: &TlsFiles, outer: TcpStream, inner: UnixStream, peer: &str) -> Result<(), String> {
    let config =
        files.load().map_err(|error| format!("this server has no TLS to offer: {}", chain(&error)))?;
    let tls = ServerConnection::new(config).map_err(|error| error.to_string())?;
    let mut bridge = Bridge::new(tls, outer, inner);
    let ended = bridge.run(peer);
    let proved = !bridge.tls.is_handshaking();
    match ended {
        End::Done if proved => Ok(()),
        End::Done => Err("it went, or took too long, before TLS was up".into()),
        End::Broken(error) => {
            tracing::debug!(peer, %error, "an NBD client's connection broke");
            if proved { Ok(()) } else { Err(format!("its connection broke before TLS was up: {error}")) }
        }
        End::Refused(error) => {
            bridge.farewell();
            Err(refusal(&error))
        }
    }
}

/// An error and what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

enum End {
    Done,
    Broken(io::Error),
    /// By TLS, which has words for the client about it.
    Refused(rustls::Error),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

struct Bridge {
    tls: ServerConnection,
    outer: TcpStream,
    inner: UnixStream,
    /// Came from the client: `incoming[taken..filled]` was not given to TLS yet.
    incoming: Box<[u8]>,
    taken: usize,
    filled: usize,
    /// On its way from the shard to TLS.
    outgoing: Box<[u8]>,
    /// The shard does not take what is decrypted.
    held: bool,
    /// The client says nothing more.
    client_done: bool,
    /// The shard says nothing more.
    shard_done: bool,
    /// Since when the shard has closed its end. Bytes that it sent before may still be there.
    closing: Option<Instant>,
}

impl Bridge {
    fn new(mut tls: ServerConnection, outer: TcpStream, inner: UnixStream) -> Self {
        // It is bounded here: nothing is encrypted before all of the last chunk has been sent.
        tls.set_buffer_limit(None);
        Self {
            tls,
            outer,
            inner,
            incoming: vec![0; CHUNK_BYTES].into(),
            taken: 0,
            filled: 0,
            outgoing: vec![0; CHUNK_BYTES].into(),
            held: false,
            client_done: false,
            shard_done: false,
            closing: None,
        }
    }

    fn run(&mut self, peer: &str) -> End {
        let mut proved = false;
        loop {
            let turn = self.wait().and_then(|()| self.turn());
            if !proved && !self.tls.is_handshaking() {
                proved = true;
                tracing::info!(peer, suite = ?self.tls.negotiated_cipher_suite(), "an NBD client has proved its identity");
            }
            match turn {
                Ok(false) => {}
                Ok(true) => return End::Done,
                Err(end) => return end,
            }
        }
    }

    /// Moves what can be moved; whether all is over.
    fn turn(&mut self) -> Result<bool, End> {
        self.take_from_client()?;
        self.take_from_shard()?;
        self.send_to_client()?;
        if self.client_done && !self.held && self.closing.is_none() {
            // The shard answers what it has, and closes. It may have closed already.
            let _ = self.inner.shutdown(Shutdown::Write);
        }
        let expired = self.closing.is_some_and(|since| since.elapsed() >= LINGER);
        let early = self.tls.is_handshaking() && (self.closing.is_some() || self.client_done);
        Ok(expired || early || (self.shard_done && !self.tls.wants_write()))
    }

    /// Waits until something can be done.
    fn wait(&mut self) -> Result<(), End> {
        let want = |flag: PollFlags, wanted: bool| if wanted { flag } else { PollFlags::empty() };
        let reads = !self.client_done && !self.held;
        let outer = want(PollFlags::IN, reads) | want(PollFlags::OUT, self.tls.wants_write());
        let takes = !self.tls.is_handshaking() && !self.tls.wants_write() && !self.shard_done;
        let inner = want(PollFlags::IN, takes) | want(PollFlags::OUT, self.held);
        let mut files = [PollFd::new(&self.outer, outer), PollFd::new(&self.inner, inner)];
        // One that has been closed would be reported again and again.
        let (count, timeout) = match self.closing {
            None => (2, None),
            Some(since) => {
                let left = LINGER.saturating_sub(since.elapsed());
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                (1, Some(left))
            }
        };
        match poll(&mut files[..count], timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(End::Broken(errno.into())),
        }
        let gone = PollFlags::HUP | PollFlags::ERR;
        let (client_gone, shard_gone) = (files[0].revents(), files[1].revents());
        if client_gone.intersects(gone) && !client_gone.contains(PollFlags::IN) {
            return Err(End::Broken(io::ErrorKind::ConnectionReset.into()));
        }
        if self.closing.is_none() && shard_gone.intersects(gone) {
            self.closing = Some(Instant::now());
            // The shard takes nothing any more.
            self.held = false;
            self.client_done = true;
        }
        Ok(())
    }

    fn take_from_client(&mut self) -> Result<(), End> {
        for _ in 0..TURN_READS {
            if !self.deliver()? || self.client_done {
                return Ok(());
            }
            if self.taken == self.filled {
                match again((&self.outer).read(&mut self.incoming))? {
                    None => return Ok(()),
                    Some(0) => {
                        self.client_done = true;
                        return Ok(());
                    }
                    Some(bytes) => (self.taken, self.filled) = (0, bytes),
                }
            }
            self.decrypt()?;
        }
        Ok(())
    }

    /// Gives TLS what has come, as far as it takes it and the shard takes the outcome.
    fn decrypt(&mut self) -> Result<(), End> {
        while self.taken < self.filled && !self.held {
            let mut rest = &self.incoming[self.taken..self.filled];
            let taken = self.tls.read_tls(&mut rest)?;
            self.taken += taken;
            self.tls.process_new_packets().map_err(End::Refused)?;
            self.deliver()?;
            if taken == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Hands to the shard what has been decrypted; whether it took all of it.
    fn deliver(&mut self) -> Result<bool, End> {
        loop {
            let mut reader = self.tls.reader();
            let plain = match reader.fill_buf() {
                Ok([]) => {
                    self.client_done = true;
                    break;
                }
                Ok(plain) => plain,
                Err(_) => break,
            };
            let bytes = plain.len();
            let written = if self.closing.is_some() { Ok(bytes) } else { (&self.inner).write(plain) };
            match again(written) {
                Ok(Some(written)) => reader.consume(written),
                Ok(None) => {
                    self.held = true;
                    return Ok(false);
                }
                // The shard has closed, which the next look shows.
                Err(_) => reader.consume(bytes),
            }
        }
        self.held = false;
        Ok(true)
    }

    fn take_from_shard(&mut self) -> Result<(), End> {
        for _ in 0..TURN_READS {
            if self.tls.is_handshaking() || self.tls.wants_write() || self.shard_done {
                return Ok(());
            }
            match again((&self.inner).read(&mut self.outgoing)) {
                Ok(None) => return Ok(()),
                Ok(Some(bytes)) if bytes > 0 => self.tls.writer().write_all(&self.outgoing[..bytes])?,
                Ok(_) | Err(_) => {
                    self.shard_done = true;
                    self.closing.get_or_insert_with(Instant::now);
                    self.tls.send_close_notify();
                }
            }
            self.send_to_client()?;
        }
        Ok(())
    }

    fn send_to_client(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            if again(self.tls.write_tls(&mut &self.outer))?.is_none() {
                break;
            }
        }
        Ok(())
    }

    /// Tells the client why the connection ends. To close a connection from which not everything
    /// was read would take that back.
    fn farewell(&mut self) {
        let end = Instant::now() + LINGER;
        let _ = self.send_to_client();
        let _ = self.outer.shutdown(Shutdown::Write);
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let found = poll(&mut [PollFd::new(&self.outer, PollFlags::IN)], Some(&timeout));
            match again((&self.outer).read(&mut self.incoming)) {
                Ok(Some(1..)) => {}
                Ok(None) if found.is_ok() => {}
                _ => return,
            }
        }
    }
}

/// `None`: not now.
fn again<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

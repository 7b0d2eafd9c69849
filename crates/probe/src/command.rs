//! A program of the operator's own.
//!
//! Guarantees
//! - When the time is over, the program is killed together with what it started in its process
//!   group.
//! - Its output is read to its end or to the end of the probe, and only the last line is kept.

use crate::stage::Stage;
use crate::words::quoted;
use crate::{Outcome, Probed};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::io::{PipeReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// Pause between two looks at whether the program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long the output may last after the end of the program: a child of it may hold it open.
const OUTPUT_WITHIN: Duration = Duration::from_millis(50);
/// End of the output that is kept, in bytes.
const OUTPUT_BYTES_MAX: usize = 1024;

/// A program, which is killed unless it has ended.
struct Running(Option<Child>);

impl Running {
    /// The status of a program that has ended.
    fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        let Some(child) = &mut self.0 else { return Ok(None) };
        let status = child.try_wait()?;
        if status.is_some() {
            self.0 = None;
        }
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        if let Ok(group) = i32::try_from(child.id()) {
            let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
        }
        // A program that hangs in the kernel ends later than the probe.
        std::thread::spawn(move || child.wait());
    }
}

pub async fn probe(words: &[String], stage: &Stage) -> Probed<String> {
    let Some((program, arguments)) = words.split_first() else {
        return Err(Outcome::Unhealthy("no program is named".into()));
    };
    let failed = |error: std::io::Error| Outcome::Unhealthy(format!("{program} cannot be run: {error}"));
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).process_group(0);
    command.stdout(writer.try_clone().map_err(failed)?).stderr(writer);
    let spawned = command.spawn();
    // The command holds the writing ends of the pipe.
    drop(command);
    let mut running = Running(Some(spawned.map_err(failed)?));
    let said = last_line(reader);
    stage.reach(format!("{program} did not end, and was killed"));
    let status = loop {
        match running.ended().map_err(failed)? {
            Some(status) => break status,
            None => tokio::time::sleep(LOOK_EVERY).await,
        }
    };
    let said = said.recv_timeout(OUTPUT_WITHIN).unwrap_or_default();
    let said = if said.is_empty() { String::new() } else { format!(": {}", quoted(&said)) };
    match status.code() {
        Some(0) => Ok(format!("{program} ended with 0{said}")),
        _ => Err(Outcome::Unhealthy(format!("{program} {}{said}", end_of(status)))),
    }
}

fn end_of(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended in an unknown way".into(),
    }
}

/// Reads the output to its end, in a thread of its own, and gives its last line.
fn last_line(mut reader: PipeReader) -> Receiver<Vec<u8>> {
    let (give, take) = channel();
    std::thread::spawn(move || {
        let (mut kept, mut part) = (Vec::new(), [0; OUTPUT_BYTES_MAX]);
        while let Ok(n @ 1..) = reader.read(&mut part) {
            kept.extend_from_slice(&part[..n]);
            kept.drain(..kept.len().saturating_sub(OUTPUT_BYTES_MAX));
        }
        let text = kept.trim_ascii_end();
        let line = text.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let _ = give.send(line.to_vec());
    });
    take
}

//! The proofs: nothing acknowledged is missing, every table is whole, all replicas are equal.

use crate::lab::{CLIENT, Lab, built};
use crate::ledger::{Note, Verdict, parse_notes};
use crate::mariadb;
use anyhow::{Context, Result, ensure};
use mainstay_api::rest::ScrubReport;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

/// A ledger client at work.
pub struct Ledger {
    notes: PathBuf,
    stop: PathBuf,
    child: Child,
}

impl Ledger {
    /// Starts inserting into the database at `address`; goes on with the numbers after those in
    /// `notes`.
    ///
    /// # Errors
    /// When the client cannot be started.
    pub fn start(lab: &Lab, address: &str, notes: &Path, connections: usize, pause_ms: u64) -> Result<Self> {
        let stop = notes.with_extension("stop");
        if stop.exists() {
            std::fs::remove_file(&stop).with_context(|| stop.display().to_string())?;
        }
        let program = built("ledger")?;
        let words = [
            program.to_string_lossy().into_owned(),
            "run".into(),
            address.into(),
            notes.to_string_lossy().into_owned(),
            stop.to_string_lossy().into_owned(),
            connections.to_string(),
            pause_ms.to_string(),
        ];
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let child = lab.spawn(CLIENT, &words, "ledger.log")?;
        Ok(Self { notes: notes.into(), stop, child })
    }

    /// # Errors
    /// When the notes cannot be read.
    pub fn notes(&self) -> Result<Vec<Note>> {
        read_notes(&self.notes)
    }

    /// The end of the last whole line now, for [`Ledger::notes_from`].
    ///
    /// # Errors
    /// When the notes cannot be read.
    pub fn position(&self) -> Result<u64> {
        let text = std::fs::read(&self.notes).with_context(|| self.notes.display().to_string())?;
        Ok(text.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end as u64 + 1))
    }

    /// The notes written since `position`. A call is cheap enough for many of them in a second.
    ///
    /// # Errors
    /// When the notes cannot be read.
    pub fn notes_from(&self, position: u64) -> Result<Vec<Note>> {
        let mut text = String::new();
        let mut file = File::open(&self.notes).with_context(|| self.notes.display().to_string())?;
        file.seek(SeekFrom::Start(position)).and_then(|_| file.read_to_string(&mut text))?;
        parse_notes(&text)
    }

    /// Waits for an acknowledgement of a row sent after `after_us`, and returns when it came.
    ///
    /// # Errors
    /// When none comes within `limit`.
    pub fn wait_commit(&self, after_us: u64, limit: Duration) -> Result<u64> {
        crate::wait_for("a commit", limit, || {
            crate::ledger::first_commit_after(&self.notes()?, after_us).context("no row was acknowledged")
        })
    }

    /// Stops inserting.
    ///
    /// # Errors
    /// When the client failed or does not end.
    pub fn stop(mut self) -> Result<()> {
        std::fs::write(&self.stop, "").with_context(|| self.stop.display().to_string())?;
        let status = crate::command::wait(&mut self.child, Duration::from_secs(20))?;
        let status = status.context("the ledger client does not end")?;
        ensure!(
            status.success(),
            "the ledger client failed: {status}; see ledger.log in the lab's directory"
        );
        Ok(())
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // After `stop` both do nothing; otherwise the test has failed already and says why.
        let _ = std::fs::write(&self.stop, "");
        let _ = crate::command::wait(&mut self.child, Duration::from_secs(5));
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// # Errors
/// When the notes cannot be read.
pub fn read_notes(path: &Path) -> Result<Vec<Note>> {
    parse_notes(&std::fs::read_to_string(path).with_context(|| path.display().to_string())?)
}

/// Compares the notes with the rows that the database at `address` has.
///
/// # Errors
/// When the database cannot be asked.
pub fn ledger(lab: &Lab, address: &str, notes: &Path) -> Result<Verdict> {
    let said = mariadb::client(lab, &["verify", address, &notes.to_string_lossy()])?;
    serde_json::from_str(&said).context("the ledger's verdict")
}

/// Runs CHECK TABLE … EXTENDED on all tables. Returns the number of tables, and every fault in the
/// words of the database.
///
/// # Errors
/// When the database cannot be asked.
pub fn tables(lab: &Lab, address: &str) -> Result<(usize, Vec<String>)> {
    let said = mariadb::client(lab, &["check", address])?;
    let rows: Vec<(String, String, String)> = serde_json::from_str(&said).context("what CHECK TABLE said")?;
    let wrong = rows.iter().filter(|(_, kind, text)| !(kind == "status" && text == "OK"));
    Ok((rows.len(), wrong.map(|(table, kind, text)| format!("{table}: {kind}: {text}")).collect()))
}

/// One line about a scrub that found something, or could not compare all.
#[must_use]
pub fn difference(report: &ScrubReport) -> String {
    let replicas =
        report.replicas.iter().map(|replica| format!("{}: {} extents", replica.node, replica.extents));
    format!(
        "{} from {} to {}, {:?}, {} of {} extents ({}): {} blocks differ, the first {:?}",
        report.resource,
        report.from,
        report.index,
        report.state,
        report.done,
        report.extents,
        replicas.collect::<Vec<_>>().join(", "),
        report.unrepaired,
        report.findings.first()
    )
}

//! Output of units of systemd, which is in the journal of their node.
//!
//! Guarantees
//! - A question starts one `journalctl`, which has ended when the answer comes: after [`PATIENCE`]
//!   it is killed. It never waits for new output.
//! - One question about a unit is under way at a time, and none is waited for longer than
//!   [`ANSWER_WAIT`].
//! - An answer has as many bytes as the caller wants at most, the newest, and no more than
//!   [`RAW_BYTES_MAX`] are read for it.

use super::bounded::Bounded;
use super::command::SEARCH_PATH;
use super::logs::LINES_MAX;
use crate::threads::spawn;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

const PROGRAM: &str = "journalctl";
/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(4);
/// How long a question is waited for, also behind another one.
const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// Most bytes that `journalctl` may say for one answer. An entry as JSON has some 300 bytes beside
/// its message.
const RAW_BYTES_MAX: u64 = 16 << 20;
/// Most that is read of an error of `journalctl`, in bytes.
const ERROR_BYTES_MAX: u64 = 400;

/// Where journald has its files.
const JOURNALS: [&str; 2] = ["/run/log/journal", "/var/log/journal"];

/// One question about a unit is under way at a time.
static QUESTIONS: Bounded = Bounded::new();

/// An entry of a journal: all up to it were read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Place {
    /// When journald got it, in microseconds since 1970; 0 before there is one.
    pub time_us: u64,
    /// The hash that journald made of it.
    pub hash: u64,
}

impl Place {
    /// Whether nothing was read yet.
    #[must_use]
    pub fn is_start(&self) -> bool {
        *self == Self::default()
    }
}

/// Part of the output that an operator wants to see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// The newest entries.
    Entries(usize),
    After(Place),
}

/// Output of a unit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Written {
    pub text: String,
    /// The newest entry.
    pub next: Place,
    /// Output before it was left out.
    pub cut: bool,
}

/// Reads what `unit` has written, and what systemd has noted about it.
///
/// # Errors
/// When that cannot be read, in words for the operator.
pub(super) fn read(unit: &str, wanted: Wanted, most: usize) -> Result<Written, String> {
    let named = unit.to_owned();
    let deadline = Instant::now() + ANSWER_WAIT;
    let answer = QUESTIONS.ask(Path::new(unit), deadline, move || {
        let written = ask(command(&named, wanted), wanted, most)?;
        // Without files `journalctl` says nothing, as if the unit had said nothing.
        if written.text.is_empty() && !keeps_journal(&JOURNALS.map(Path::new)) {
            return Err(format!("this node keeps no journal: {} have no files", JOURNALS.join(" and ")));
        }
        Ok(written)
    });
    answer.unwrap_or_else(|| Err(late(ANSWER_WAIT)))
}

/// Whether a directory of one of `roots`, which are named after machines, has a journal.
fn keeps_journal(roots: &[&Path]) -> bool {
    let entries = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let of_machines = roots.iter().flat_map(|root| entries(root));
    let mut files = of_machines.flat_map(|machine| entries(&machine.path()));
    files.any(|file| file.path().extension().is_some_and(|ending| ending == "journal"))
}

fn late(patience: Duration) -> String {
    format!("the journal of this node cannot be read: it did not answer within {} s", patience.as_secs())
}

fn command(unit: &str, wanted: Wanted) -> Command {
    let entries = match wanted {
        Wanted::Entries(entries) => entries.min(LINES_MAX),
        Wanted::After(_) => LINES_MAX,
    };
    let mut command = Command::new(PROGRAM);
    command
        .arg(format!("--unit={unit}"))
        .arg(format!("--lines={entries}"))
        .args(["--reverse", "--no-pager", "--all", "--output=json"])
        .arg("--output-fields=MESSAGE,SYSLOG_IDENTIFIER,_PID")
        .env_clear()
        .env("PATH", SEARCH_PATH)
        .current_dir("/");
    command
}

/// Runs `command`, which says the newest entry first.
fn ask(mut command: Command, wanted: Wanted, most: usize) -> Result<Written, String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!("the journal of this node cannot be read: there is no program {PROGRAM} in {SEARCH_PATH}")
        }
        _ => format!("the journal of this node cannot be read: {PROGRAM}: {error}"),
    })?;
    let (Some(output), Some(errors)) = (child.stdout.take(), child.stderr.take()) else {
        unreachable!("both are pipes");
    };
    let (tell, told) = sync_channel(1);
    spawn("agent-journal", move || {
        let _ = tell.send(newest(BufReader::new(output.take(RAW_BYTES_MAX)), wanted, most));
    });
    let answer = told.recv_timeout(PATIENCE);
    // `journalctl` has nothing more to say that is wanted.
    drop(child.kill());
    drop(child.wait());
    let written = answer.map_err(|_| late(PATIENCE))?;
    if written.next.is_start() {
        let mut said = Vec::new();
        drop(errors.take(ERROR_BYTES_MAX).read_to_end(&mut said));
        let said = String::from_utf8_lossy(&said);
        if let Some(line) = said.lines().map(str::trim).find(|line| !line.is_empty()) {
            return Err(format!("the journal of this node cannot be read: {PROGRAM} says: {line}"));
        }
    }
    // Without new entries the place stays.
    let next = match wanted {
        Wanted::After(place) if written.next.is_start() => place,
        _ => written.next,
    };
    Ok(Written { next, ..written })
}

/// Reads entries, the newest first, back to the place that is known already.
fn newest(mut output: impl BufRead, wanted: Wanted, most: usize) -> Written {
    let known = match wanted {
        Wanted::After(place) => place,
        Wanted::Entries(_) => Place::default(),
    };
    let mut written = Written::default();
    let (mut messages, mut entries, mut bytes) = (Vec::new(), 0, 0);
    let mut line = Vec::new();
    while let Ok(1..) = output.read_until(b'\n', &mut line) {
        // The last one may have been cut off.
        let is_whole = line.ends_with(b"\n");
        let Some(entry) = Entry::parse(&line).filter(|_| is_whole) else {
            written.cut |= !is_whole;
            line.clear();
            continue;
        };
        line.clear();
        entries += 1;
        if written.next.is_start() {
            written.next = entry.place;
        }
        if entry.place == known {
            return Written { text: text_of(messages), ..written };
        }
        bytes += entry.message.len() + 1;
        if bytes > most {
            return Written { text: text_of(messages), cut: true, ..written };
        }
        messages.push(entry.message);
    }
    // Everything that there is was new, or the known entry is further back, or gone.
    written.cut |= match wanted {
        Wanted::After(place) => entries >= LINES_MAX || (entries > 0 && !place.is_start()),
        Wanted::Entries(_) => false,
    };
    Written { text: text_of(messages), ..written }
}

fn text_of(messages: Vec<String>) -> String {
    messages.into_iter().rev().fold(String::new(), |text, message| text + &message + "\n")
}

struct Entry {
    place: Place,
    message: String,
}

impl Entry {
    /// Reads an entry as `journalctl` says it. What else it says is none.
    fn parse(line: &[u8]) -> Option<Self> {
        let entry: Value = serde_json::from_slice(line).ok()?;
        let field = |name: &str| entry.get(name).and_then(Value::as_str);
        let hash = field("__CURSOR")?.split(';').find_map(|part| part.strip_prefix("x="))?;
        let place = Place {
            time_us: field("__REALTIME_TIMESTAMP")?.parse().ok()?,
            hash: u64::from_str_radix(hash, 16).ok()?,
        };
        let message = entry.get("MESSAGE").map(message_of).unwrap_or_default();
        let by_systemd = field("_PID") == Some("1") && field("SYSLOG_IDENTIFIER") == Some("systemd");
        let message = if by_systemd { format!("systemd: {message}") } else { message };
        Some(Self { place, message })
    }
}

/// The text of a message, which is a string, its bytes, or several of these.
fn message_of(message: &Value) -> String {
    match message {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let byte = |part: &Value| part.as_u64().and_then(|byte| u8::try_from(byte).ok());
            match parts.iter().map(byte).collect::<Option<Vec<u8>>>() {
                Some(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                None => parts.iter().map(message_of).collect::<Vec<_>>().join("\n"),
            }
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(time: u64, more: &str) -> String {
        format!(
            "{{\"__CURSOR\":\"s=1f;i=2;b=3c;m=4;t=5;x={time:x}\",\"__REALTIME_TIMESTAMP\":\"{time}\",{more}}}\n"
        )
    }

    fn place(time: u64) -> Place {
        Place { time_us: time, hash: time }
    }

    fn said(times: &[u64]) -> String {
        times.iter().map(|time| entry(*time, &format!("\"MESSAGE\":\"line {time}\""))).collect()
    }

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_reader_that_goes_on_from_an_entry_gets_what_came_after_it() {
        let after = |times: &[u64], known| newest(said(times).as_bytes(), Wanted::After(known), 1000);
        let written = after(&[9, 8, 7, 6], place(7));
        assert_eq!((written.text.as_str(), written.next, written.cut), ("line 8\nline 9\n", place(9), false));
        assert_eq!(after(&[9, 8], place(9)).text, "");
        let all = after(&[9, 8], Place::default());
        assert_eq!((all.text.as_str(), all.cut), ("line 8\nline 9\n", false), "nothing was read before");
        let lost = after(&[9, 8], place(3));
        assert_eq!((lost.text.as_str(), lost.cut), ("line 8\nline 9\n", true), "the known entry is gone");
    }

    #[test]
    fn an_answer_has_the_newest_entries_that_fit() {
        let within = |most| newest(said(&[9, 8, 7]).as_bytes(), Wanted::Entries(3), most);
        assert_eq!((within(1000).text.as_str(), within(1000).cut), ("line 7\nline 8\nline 9\n", false));
        let short = within(15);
        assert_eq!((short.text.as_str(), short.next, short.cut), ("line 8\nline 9\n", place(9), true));
        let torn = said(&[9]) + &said(&[8])[..40];
        let torn = newest(torn.as_bytes(), Wanted::Entries(3), 1000);
        assert_eq!((torn.text.as_str(), torn.cut), ("line 9\n", true));
    }

    #[test]
    fn every_form_of_a_message_is_text_and_what_systemd_notes_is_marked() {
        for (fields, text) in [
            (r#""MESSAGE":"a\tb""#, "a\tb\n"),
            (r#""MESSAGE":[97,255,98]"#, "a\u{fffd}b\n"),
            (r#""MESSAGE":["a",[98]]"#, "a\nb\n"),
            (r#""MESSAGE":null"#, "\n"),
            (r#""MESSAGE":"up","_PID":"1","SYSLOG_IDENTIFIER":"systemd""#, "systemd: up\n"),
            (r#""MESSAGE":"up","_PID":"7","SYSLOG_IDENTIFIER":"systemd""#, "up\n"),
        ] {
            let written = newest(entry(1, fields).as_bytes(), Wanted::Entries(1), 1000);
            assert_eq!(written.text, text, "{fields}");
        }
        let noise = "-- No entries --\n{\"MESSAGE\":\"x\"}\n[1]\n";
        assert_eq!(newest(noise.as_bytes(), Wanted::Entries(1), 1000), Written::default());
    }

    #[test]
    fn a_journal_that_is_not_there_is_told_in_words() {
        let all = Wanted::Entries(9);
        let missing = ask(Command::new("/nowhere/journalctl"), all, 1000).unwrap_err();
        assert!(missing.contains("there is no program journalctl"), "{missing}");
        let none = ask(shell("echo No journal files were found. >&2"), all, 1000).unwrap_err();
        assert!(none.ends_with("journalctl says: No journal files were found."), "{none}");
        assert_eq!(ask(shell("echo '-- No entries --'"), all, 1000), Ok(Written::default()));
        let known = Wanted::After(place(7));
        let nothing_new = ask(shell("true"), known, 1000).unwrap();
        assert_eq!(nothing_new.next, place(7), "the place stays");
        let dir = tempfile::tempdir().unwrap();
        let machine = dir.path().join("0f");
        std::fs::create_dir(&machine).unwrap();
        assert!(!keeps_journal(&[dir.path(), Path::new("/nowhere")]));
        std::fs::write(machine.join("system.journal"), "").unwrap();
        assert!(keeps_journal(&[Path::new("/nowhere"), dir.path()]));
    }

    /// A unit that writes all the time, and a journal that hangs, leave no child.
    #[test]
    fn no_child_outlives_the_answer() {
        let endless = format!("while echo '{}'; do :; done", said(&[1]).trim_end());
        let began = Instant::now();
        let written = ask(shell(&endless), Wanted::Entries(10_000), 100).unwrap();
        assert!(written.cut && written.text.starts_with("line 1\n"), "{written:?}");
        assert!(began.elapsed() < PATIENCE, "it is ended when there is enough");
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        let hangs =
            ask(shell(&format!("echo $$ >{}; exec sleep 1000", pid.display())), Wanted::Entries(1), 1);
        assert!(hangs.is_err_and(|why| why.contains("did not answer")));
        let pid = std::fs::read_to_string(pid).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists(), "it is killed and waited for");
    }

    #[test]
    fn the_name_of_a_unit_is_one_argument() {
        let command = command("-x.service", Wanted::Entries(1_000_000));
        let arguments: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments[..2], ["--unit=-x.service", "--lines=10000"]);
    }
}

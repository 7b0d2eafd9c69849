//! Where the parts of a support bundle come from: the agent, and the machine on which the command
//! runs.
//!
//! Guarantees
//! - A source that is missing, refuses or hangs is named in the manifest, and the bundle goes on.
//! - Each part has at most [`PART_BYTES_MAX`] bytes. Of a longer one the end is left out.
//! - Nothing below the directory of the node's state is read: keys, tokens and the record are
//!   there.

use super::secrets::{strike_text, strike_value};
use crate::failure::Outcome;
use serde::Serialize;
use serde_json::Value;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

/// Longest part, in bytes.
pub const PART_BYTES_MAX: usize = 8 << 20;
/// Resources and services of which each has a part of its own.
const OBJECTS_MAX: usize = 200;
/// How long a program of the system may take.
const PROGRAM_WITHIN: Duration = Duration::from_secs(20);
/// How long a program may take to end after its output.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
/// Lines of the system's journal, and of the kernel's log.
const JOURNAL_LINES: usize = 20_000;
const KERNEL_LINES: usize = 5_000;

/// Questions to the agent that each make one part.
const QUESTIONS: [(&str, &str); 11] = [
    ("status.json", "/v1/status"),
    ("nodes.json", "/v1/nodes"),
    ("programs.json", "/v1/programs"),
    ("events.json", "/v1/events?after=0"),
    ("history.json", "/v1/history?lines=1000"),
    ("audit.json", "/v1/audit?lines=1000"),
    ("cluster-settings.json", "/v1/cluster/settings"),
    ("certificates.json", "/v1/cluster/certificates"),
    ("join-tokens.json", "/v1/cluster/tokens"),
    ("api-tokens.json", "/v1/tokens"),
    ("metrics.txt", "/metrics"),
];

/// A part that is there.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: String,
    pub content: String,
    /// The end is left out, because the part was too long.
    pub is_cut: bool,
}

/// A part that is not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Missing {
    pub name: String,
    pub why: String,
}

/// Everything that was gathered.
#[derive(Default)]
pub struct Gathered {
    pub parts: Vec<Part>,
    pub missing: Vec<Missing>,
}

impl Gathered {
    fn add(&mut self, name: &str, found: Result<String, String>) {
        match found {
            Ok(content) => {
                let mut content = content;
                let is_cut = content.len() > PART_BYTES_MAX;
                if is_cut {
                    let end = (0..=PART_BYTES_MAX).rev().find(|at| content.is_char_boundary(*at));
                    content.truncate(end.unwrap_or(0));
                }
                self.parts.push(Part { name: name.to_owned(), content, is_cut });
            }
            Err(why) => self.missing.push(Missing { name: name.to_owned(), why: strike_text(&why) }),
        }
    }

    /// A text, without secrets.
    fn text(&mut self, name: &str, found: Result<String, String>) {
        self.add(name, found.map(|text| strike_text(&text)));
    }

    /// JSON, without secrets. Other text is left out: nothing would tell where its secrets are.
    fn json(&mut self, name: &str, found: Result<String, String>) -> Option<Value> {
        let parsed = found.and_then(|text| {
            serde_json::from_str::<Value>(&text).map_err(|error| format!("the answer is no JSON: {error}"))
        });
        match parsed {
            Ok(mut value) => {
                let whole = value.clone();
                strike_value(&mut value);
                self.add(name, serde_json::to_string_pretty(&value).map_err(|error| error.to_string()));
                Some(whole)
            }
            Err(why) => {
                self.add(name, Err(why));
                None
            }
        }
    }

    /// TOML, without secrets and without its comments.
    fn toml(&mut self, name: &str, found: Result<String, String>) {
        let struck = found.and_then(|text| {
            let table: toml::Table = toml::from_str(&text).map_err(|error| {
                // The error shows the line, which may hold a secret.
                format!("it is no TOML: {}", error.message())
            })?;
            let mut value = serde_json::to_value(table).map_err(|error| error.to_string())?;
            strike_value(&mut value);
            toml::to_string_pretty(&value).map_err(|error| error.to_string())
        });
        self.add(name, struck);
    }
}

/// Asks the agent. `ask` returns the body of the answer to a path.
pub fn of_agent(ask: &dyn Fn(&str) -> Outcome<String>, found: &mut Gathered) {
    // An agent that does not answer once is not asked again: each question would take its time.
    let silent = std::cell::RefCell::new(None::<String>);
    let ask = |path: &str| -> Result<String, String> {
        if let Some(why) = &*silent.borrow() {
            return Err(why.clone());
        }
        ask(path).map_err(|failure| {
            let why = failure.problem.to_string();
            if failure.exit == crate::failure::exit::UNREACHABLE {
                *silent.borrow_mut() = Some(why.clone());
            }
            why
        })
    };
    let mut names = (Vec::new(), Vec::new());
    for (name, path) in QUESTIONS {
        if name.ends_with(".txt") {
            found.text(name, ask(path));
            continue;
        }
        let answer = found.json(name, ask(path));
        if let Some(status) = answer.filter(|_| name == "status.json") {
            names = (named(&status["resources"]), named(&status["services"]));
        }
    }
    let (resources, services) = names;
    for name in resources.iter().take(OBJECTS_MAX) {
        found
            .json(&format!("resources/{name}-settings.json"), ask(&format!("/v1/resources/{name}/settings")));
        found
            .json(&format!("resources/{name}-failover.json"), ask(&format!("/v1/resources/{name}/failover")));
    }
    for name in services.iter().take(OBJECTS_MAX) {
        let file = ask(&format!("/v1/services/{name}/file"));
        let toml = file.and_then(|text| {
            let answer: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
            answer["toml"].as_str().map(str::to_owned).ok_or_else(|| "the answer has no file".to_owned())
        });
        found.toml(&format!("services/{name}.toml"), toml);
        found.json(&format!("services/{name}-explain.json"), ask(&format!("/v1/services/{name}/explain")));
    }
    for (kind, list) in [("resources", &resources), ("services", &services)] {
        if list.len() > OBJECTS_MAX {
            let why = format!("only the first {OBJECTS_MAX} of {} are asked for", list.len());
            found.add(&format!("more {kind}"), Err(why));
        }
    }
}

/// Names of objects in a list, as far as they can be part of a path.
fn named(list: &Value) -> Vec<String> {
    let names = list.as_array().into_iter().flatten().filter_map(|one| one["name"].as_str());
    names.filter(|name| mainstay_ha::valid_name(name)).map(str::to_owned).collect()
}

/// A program of the system: its words, and its output or why there is none.
pub type Run<'a> = &'a dyn Fn(&[&str]) -> Result<String, String>;

/// Looks at this machine. `since_s`: age of the oldest lines of logs.
pub fn of_machine(config: &Path, since_s: u64, run: Run<'_>, found: &mut Gathered) {
    found.toml("mainstay.toml", read(config));
    let since = format!("--since=-{since_s}s");
    let (lines, kernel) = (format!("--lines={JOURNAL_LINES}"), format!("--lines={KERNEL_LINES}"));
    let plain = ["--no-pager", "--output=short-iso-precise", "--quiet"];
    let mut words =
        vec!["journalctl", "--unit=mainstay-agent", "--unit=mainstay-engine", since.as_str(), lines.as_str()];
    words.extend(plain);
    found.text("journal.txt", run(&words));
    let mut words = vec!["journalctl", "--dmesg", since.as_str(), kernel.as_str()];
    words.extend(plain);
    let of_kernel = run(&words).ok().filter(|text| !text.trim().is_empty());
    found.text("kernel.txt", of_kernel.map_or_else(|| run(&["dmesg"]).map(|text| newest(&text)), Ok));
    let machine = [
        &["uname", "-a"][..],
        &["cat", "/etc/os-release"],
        &["df", "-h"],
        &["lsblk"],
        &["ip", "-br", "address"],
    ];
    let texts: Vec<String> = machine
        .iter()
        .map(|words| {
            format!("$ {}\n{}", words.join(" "), run(words).unwrap_or_else(|why| format!("({why})\n")))
        })
        .collect();
    found.text("machine.txt", Ok(texts.join("\n")));
    let rows = crate::doctor::of_this_machine().map_err(|failure| failure.problem.to_string());
    found.json(
        "doctor.json",
        rows.and_then(|rows| serde_json::to_string(&rows).map_err(|error| error.to_string())),
    );
}

/// The newest lines of the kernel's log.
fn newest(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(KERNEL_LINES)..].join("\n")
}

/// Names the parts of a machine that is not this one.
pub fn of_another_machine(found: &mut Gathered) {
    let why =
        "the agent that was asked is on another machine or in a lab: run the command there for this part";
    for name in ["mainstay.toml", "journal.txt", "kernel.txt", "machine.txt", "doctor.json"] {
        found.add(name, Err(why.to_owned()));
    }
}

fn read(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    file.take(1 << 20).read_to_string(&mut text).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text)
}

/// Runs a program and returns the beginning of its output. The program is ended when its time is
/// over or its output is too long.
pub fn run(words: &[&str]) -> Result<String, String> {
    let [program, words @ ..] = words else { return Err("no program is named".to_owned()) };
    let child = Command::new(program)
        .args(words)
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("{program}: {error}"))?;
    let Some(stdout) = child.stdout.take() else { return Err(format!("{program} has no output")) };
    let (sender, output) = channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // One byte more than a part may have tells that there is more.
        let read = stdout.take(PART_BYTES_MAX as u64 + 1).read_to_end(&mut bytes);
        drop(sender.send(read.map(|_| bytes)));
    });
    let found = output.recv_timeout(PROGRAM_WITHIN);
    // A program whose output is read to its end, or is too long, has a moment to end by itself.
    let deadline = Instant::now() + if found.is_ok() { ENDS_WITHIN } else { Duration::ZERO };
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() >= deadline => {
                drop(child.kill());
                drop(child.wait());
                break None;
            }
            Ok(None) => std::thread::sleep(POLL),
            Err(error) => return Err(format!("{program}: {error}")),
        }
    };
    let bytes = match found {
        Ok(read) => read.map_err(|error| format!("{program}: {error}"))?,
        Err(_) => return Err(format!("{program} gave no answer within {} s", PROGRAM_WITHIN.as_secs())),
    };
    match status {
        Some(status) if !status.success() && bytes.is_empty() => {
            Err(format!("{program} ended with {status}"))
        }
        _ => Ok(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

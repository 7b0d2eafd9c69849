//! `mainstay support-bundle`: what people who help an operator need to know, in one file.
//!
//! Guarantees
//! - No secret that can be told from other text is in the file; see [`secrets`].
//! - The file is new, and only its owner can read it. It has at most [`BYTES_MAX`] bytes before it
//!   is compressed.
//! - Whatever cannot be had is named in `manifest.json` with the reason.

mod archive;
mod secrets;
mod sources;

use crate::cli::BundleArgs;
use crate::connect::{self, Target};
use crate::failure::{Code, Failure, Outcome};
use crate::output::{Output, Progress};
use mainstay_types::clock::clock;
use serde::Serialize;
use serde_json::Value;
use sources::{Gathered, Missing, Part};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Most bytes of all parts together.
const BYTES_MAX: usize = 64 << 20;
/// Contents that are never part of a bundle.
const LEFT_OUT: [&str; 4] = [
    "the content of volumes, journals and snapshots",
    "keys, tokens, seals and the cluster's record in the directory of the node's state",
    "values of environment variables, and whatever else may be a secret: secrets are replaced by [struck out]",
    "the output of services: `mainstay service logs NAME` shows it",
];

#[derive(Serialize)]
struct Manifest<'a> {
    made: String,
    program: &'a str,
    node: &'a str,
    parts: Vec<Listed<'a>>,
    missing: &'a [Missing],
    left_out: [&'a str; 4],
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    bytes: usize,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_cut: bool,
}

/// Report of the command on its file.
#[derive(Serialize)]
struct Bundle {
    file: PathBuf,
    bytes: u64,
    parts: usize,
    missing: Vec<Missing>,
}

pub fn run(args: &BundleArgs, target: &Target, output: Output) -> Outcome<u8> {
    if let Some(file) = args.output.as_deref().filter(|file| file.symlink_metadata().is_ok()) {
        return Err(exists(file));
    }
    let client = connect::client(target)?;
    let mut progress = Progress::new();
    let mut found = Gathered::default();
    progress.show("asking the agent");
    sources::of_agent(&|path| Ok(client.get_text(path)?), &mut found);
    if target.lab.is_none() && target.server.is_none() {
        progress.show("reading the logs of this machine");
        let config =
            std::env::var_os("MAINSTAY_CONFIG").map_or_else(|| crate::config::PATH.into(), PathBuf::from);
        sources::of_machine(&config, args.since / 1000, &sources::run, &mut found);
    } else {
        sources::of_another_machine(&mut found);
    }
    progress.show("writing the file");
    let bundle = finish(args.output.as_deref(), found, wall_ms())?;
    drop(progress);
    output.result(&bundle, words)?;
    Ok(0)
}

/// Writes the file with its manifest.
fn finish(file: Option<&Path>, mut found: Gathered, now_ms: u64) -> Outcome<Bundle> {
    bound(&mut found);
    let node = node(&found);
    let time: String = clock(now_ms).chars().take(19).filter(|c| c.is_ascii_digit() || *c == ' ').collect();
    let directory = format!("mainstay-support-{node}-{}", time.replace(' ', "-"));
    let file = file.map_or_else(|| PathBuf::from(format!("{directory}.tar.gz")), Path::to_path_buf);
    let listed =
        |part: &'_ Part| -> (String, usize, bool) { (part.name.clone(), part.content.len(), part.is_cut) };
    let names: Vec<_> = found.parts.iter().map(listed).collect();
    let manifest = Manifest {
        made: clock(now_ms),
        program: env!("CARGO_PKG_VERSION"),
        node: &node,
        parts: names
            .iter()
            .map(|(name, bytes, is_cut)| Listed { name, bytes: *bytes, is_cut: *is_cut })
            .collect(),
        missing: &found.missing,
        left_out: LEFT_OUT,
    };
    let text = serde_json::to_string_pretty(&manifest)
        .map_err(|error| Failure::new(Code::Io, error.to_string(), "Try again."))?;
    found.parts.insert(0, Part { name: "manifest.json".to_owned(), content: text, is_cut: false });
    let written = archive::write(&file, &directory, &found.parts, now_ms / 1000);
    let bytes = written.map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => exists(&file),
        _ => Failure::new(
            Code::Io,
            format!("cannot write {}: {error}", file.display()),
            "Name a file in a directory where you may write, with room for it: `mainstay support-bundle --output FILE`.",
        ),
    })?;
    Ok(Bundle { file, bytes, parts: found.parts.len(), missing: found.missing })
}

/// Leaves out parts for which there is no room, the largest ones first.
fn bound(found: &mut Gathered) {
    let size = |parts: &[Part]| parts.iter().map(|part| part.content.len()).sum::<usize>();
    while size(&found.parts) > BYTES_MAX {
        let Some((at, _)) = found.parts.iter().enumerate().max_by_key(|(_, part)| part.content.len()) else {
            return;
        };
        let part = found.parts.remove(at);
        let why = format!("there is no room for its {} bytes", part.content.len());
        found.missing.push(Missing { name: part.name, why });
    }
}

/// Name of the node that was asked, or of this machine if none answered.
fn node(found: &Gathered) -> String {
    let status = found.parts.iter().find(|part| part.name == "status.json");
    let status: Option<Value> = status.and_then(|part| serde_json::from_str(&part.content).ok());
    let named = status.and_then(|status| status["cluster"]["this_node"].as_str().map(str::to_owned));
    let host = || std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    let name = named.unwrap_or_else(host);
    let name: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(64).collect();
    if name.is_empty() { "node".to_owned() } else { name }
}

fn exists(file: &Path) -> Failure {
    Failure::new(
        Code::Io,
        format!("{} exists already, and is left as it is", file.display()),
        "Name another file: `mainstay support-bundle --output FILE`.",
    )
}

fn words(bundle: &Bundle) -> String {
    let size = mainstay_types::size::size_words(bundle.bytes);
    let mut text = format!("{} has {} parts, {size}", bundle.file.display(), bundle.parts);
    for one in &bundle.missing {
        text += &format!("\nnot in it: {}: {}", one.name, one.why);
    }
    text + "\nSecrets are struck out. Names, addresses and paths are in it: look at it before you send it."
}

fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;

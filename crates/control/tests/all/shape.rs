//! Everything that commands and the replicated state consist of, each part with the feature level
//! that brought it, in `shape.txt`.
//!
//! A part that is not in the list has no level. Two builds would disagree about it, and the nodes
//! of one cluster would get different states. `MAINSTAY_BLESS=1` adds new parts with the level of
//! this build. Think first: did a release of this level exist already? Then raise
//! [`mainstay_control::level::LEVEL`], and let nothing use the part before the cluster has it.

#![allow(clippy::disallowed_methods, reason = "the test reads the sources; the core does no I/O")]

use mainstay_control::level::LEVEL;
use mainstay_types::settings::SETTINGS;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// Directories with the types that commands and the state consist of.
const SOURCES: [&str; 3] = ["src", "../ha/src", "../types/src"];
/// Types of an entry of the log and of the state in a snapshot.
const ROOTS: [&str; 2] = ["Entry", "State"];

/// A type of the sources: each part, with the names of types that it mentions.
type Parts = Vec<(String, BTreeSet<String>)>;

/// Identifiers in a piece of source text.
fn words(text: &str) -> BTreeSet<String> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split(|c| !is_word(c)).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The name in `rename = "name"`.
fn renamed(attribute: &str) -> Option<String> {
    let (_, rest) = attribute.split_once(" rename = \"").or_else(|| attribute.split_once("(rename = \""))?;
    rest.split_once('"').map(|(name, _)| name.to_owned())
}

/// Reads the types that are written to the log. The sources are formatted, so each field and each
/// variant begins on a line of its own, four columns further in than what it belongs to.
fn read(text: &str, types: &mut BTreeMap<String, Parts>) {
    let (mut derives, mut from, mut lines) = (false, None, text.lines());
    while let Some(line) = lines.next() {
        if line.starts_with("#[derive") || line.starts_with("        #[derive") {
            derives = line.contains("Deserialize");
        }
        // A type that is written as another type.
        if line.starts_with("#[serde(from") {
            from = Some(words(line));
        }
        let declared =
            ["pub struct ", "pub enum ", "pub(crate) struct ", "pub(crate) enum ", "struct ", "enum "];
        let Some(rest) = declared.iter().find_map(|word| line.strip_prefix(word)) else { continue };
        let name: String = rest.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        if !std::mem::take(&mut derives) {
            continue;
        }
        let mut parts = Parts::new();
        if let Some((_, inner)) = rest.split_once('(') {
            parts.push(("0".into(), words(inner)));
        } else if rest.ends_with('{') {
            read_parts(&mut lines, &mut parts);
        }
        if let (Some(mentioned), Some((_, first))) = (from.take(), parts.first_mut()) {
            first.extend(mentioned);
        }
        // Two crates may have types of one name.
        types.entry(name).or_default().extend(parts);
    }
}

fn read_parts(lines: &mut std::str::Lines<'_>, parts: &mut Parts) {
    let (mut attribute, mut outer) = (None, String::new());
    for line in lines.by_ref().take_while(|line| *line != "}") {
        let (text, depth) = (line.trim(), line.len() - line.trim_start().len());
        if text.starts_with("#[serde") {
            attribute = renamed(text);
            continue;
        }
        let skip =
            text.starts_with("//") || text.starts_with('#') || text.starts_with('}') || text.is_empty();
        if skip || depth > 8 {
            continue;
        }
        let text = text.strip_prefix("pub ").or_else(|| text.strip_prefix("pub(crate) ")).unwrap_or(text);
        let name: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        let shown = attribute.take().unwrap_or(name.clone());
        if depth == 4 {
            outer.clone_from(&shown);
            parts.push((shown, words(&text[name.len()..])));
        } else if text[name.len()..].starts_with(':') {
            parts.push((format!("{outer}.{shown}"), words(&text[name.len()..])));
        }
    }
}

fn sources(directory: &Path, types: &mut BTreeMap<String, Parts>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, types);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            read(&std::fs::read_to_string(path).unwrap(), types);
        }
    }
}

/// Everything that is reachable from the roots, as `Type.part`.
fn shape() -> BTreeSet<String> {
    let mut types = BTreeMap::new();
    for source in SOURCES {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(source), &mut types);
    }
    let mut left: Vec<String> = ROOTS.iter().map(|root| (*root).to_owned()).collect();
    let (mut seen, mut shape) = (BTreeSet::new(), BTreeSet::new());
    while let Some(name) = left.pop() {
        let Some(parts) = types.get(&name).filter(|_| seen.insert(name.clone())) else { continue };
        for (part, mentioned) in parts {
            shape.insert(format!("{name}.{part}"));
            left.extend(mentioned.iter().cloned());
        }
    }
    // A macro makes the keys of settings.
    shape.extend(SETTINGS.iter().map(|setting| format!("Key.{}", setting.name)));
    shape
}

fn listed(text: &str) -> BTreeMap<String, u32> {
    let row = |line: &str| {
        let (part, level) = line.split_once(' ').unwrap();
        (part.to_owned(), level.parse().unwrap())
    };
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

#[test]
fn everything_that_is_written_to_the_log_has_a_feature_level() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shape.txt");
    let known = listed(&std::fs::read_to_string(&path).unwrap_or_default());
    let found = shape();
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        let mut text =
            "# Every part of the log's entries and of the state, and the feature level that brought it.\n"
                .to_owned();
        for part in &found {
            writeln!(text, "{part} {}", known.get(part).copied().unwrap_or(LEVEL)).unwrap();
        }
        std::fs::write(&path, text).unwrap();
        return;
    }
    let unlisted: Vec<_> = found.iter().filter(|part| !known.contains_key(*part)).collect();
    assert!(unlisted.is_empty(), "without a feature level, see control/src/level.rs: {unlisted:#?}");
    let gone: Vec<_> = known.keys().filter(|part| !found.contains(*part)).collect();
    assert!(gone.is_empty(), "a build of an earlier level writes these, and this one drops them: {gone:#?}");
    // A part of a level above 1 is guarded where the levels are.
    let guards = include_str!("../../src/level.rs");
    for (part, level) in known.iter().filter(|(_, level)| **level > 1) {
        assert!(*level <= LEVEL, "{part} has level {level}, and this build has {LEVEL}");
        let last = part.rsplit('.').next().unwrap();
        assert!(
            guards.contains(last),
            "{part} has level {level}: name in control/src/level.rs what guards it"
        );
    }
}

/// The list is worth nothing if the reader of the sources misses things.
#[test]
fn the_shape_has_commands_their_fields_and_nested_types() {
    let shape = shape();
    for part in [
        "Command.AddNode",
        "Command.AddNode.witness",
        "Command.ReplicaReopened.opening",
        "Command.RaiseLevel.level",
        "State.nodes",
        "Node.candidate",
        "ServiceSpec.process",
        "Policy.restart_limit",
        "Policy.min_copies",
        "Process.stop_signal",
        "Probe.Postgresql",
        "PostgresqlProbe.socket",
        "IssChange.Shrink.remove",
        "ResourceRecord.near",
        "Fields.mode",
        "BackgroundLimits.max_rate",
        "Links.macs",
        "Key.c-max-rate",
        "EventRecord.fact",
    ] {
        assert!(shape.contains(part), "{part} is missing");
    }
}

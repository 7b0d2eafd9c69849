//! Mainstay's command line takes every command that Mainstay advises, or that the documents show as
//! a line to type.

use crate::cli::{Cli, Command};
use crate::commands::probe;
use crate::front::Front;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::fs;
use std::path::{Path, PathBuf};

/// Sources of texts, and what operators read beside them, from this crate on.
const SOURCES: [&str; 4] = ["../../crates", "../../README.md", "../../CONTRIBUTING.md", "../../docs"];

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if let Ok(entries) = fs::read_dir(path) {
        let mut entries: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| files(entry, found));
    } else if path.extension().is_some_and(|end| end == "rs" || end == "md")
        && !path.ends_with("advised.rs")
        && !path.components().any(|part| part.as_os_str() == "adr" || part.as_os_str() == "internals")
    {
        found.push(path.to_path_buf());
    }
}

/// Commands between backquotes. In a source file, those in strings and in the help texts of the
/// command line. In a document, those that are lines of their own.
fn commands(path: &Path, text: &str) -> Vec<String> {
    let is_source = path.extension().is_some_and(|end| end == "rs");
    if !is_source {
        let joined = text.replace("\\\n", " ");
        let lines = joined.split("```").skip(1).step_by(2).flat_map(str::lines);
        let typed = lines.filter(|line| line.starts_with("mainstay ") && !line.contains('…'));
        return typed.map(|line| line.split(" #").next().unwrap_or(line).to_owned()).collect();
    }
    let is_help = path.ends_with("src/cli.rs") || path.parent().is_some_and(|of| of.ends_with("src/cli"));
    let mut joined = String::new();
    for line in text.lines() {
        if !is_help && line.trim_start().starts_with("//") {
            continue;
        }
        match line.strip_suffix('\\') {
            // A string that goes on in the next line, whose indentation does not count.
            Some(part) => joined += part,
            None if joined.ends_with('\n') || joined.is_empty() => joined += &format!("{line}\n"),
            None => joined += &format!("{}\n", line.trim_start()),
        }
    }
    let quoted = joined.lines().flat_map(|line| line.split('`').skip(1).step_by(2).map(str::to_owned));
    quoted.filter(|quoted| quoted.starts_with("mainstay ")).collect()
}

/// With something in the place of what is filled in: `{name}`, or a word in capitals.
fn filled(command: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut depth = 0;
    let mut inside = String::new();
    for c in command.chars() {
        match c {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                if depth == 0 {
                    plain.push_str(match inside.as_str() {
                        "size" => "4GiB",
                        "page" => "16384",
                        _ => "1",
                    });
                    inside.clear();
                }
            }
            c if depth == 0 => plain.push(c),
            c => inside.push(c),
        }
    }
    let word = |word: &str| {
        let word = word.trim_matches(['[', ']', '"', '\'', '\\']);
        // The dashes before the words of another command are no name.
        let named = word.len() > 1
            && word != "--"
            && word.chars().all(|c| c.is_ascii_uppercase() || c == '-' || c == '_');
        match word {
            "SIZE" => "4GiB".to_owned(),
            "…" | "..." => String::new(),
            "KEY=VALUE" | "1=1" => "mode=b".to_owned(),
            "ADDRESS" => "10.0.0.1".to_owned(),
            _ if named => "n1".to_owned(),
            _ => word.replace("NAME@SNAPSHOT", "n1@n2"),
        }
    };
    plain.split_whitespace().map(word).filter(|word| !word.is_empty()).collect()
}

/// Parses a command, and what a front hands over as the other program does.
fn parse(words: &[String]) -> Result<(), clap::Error> {
    let matches = Cli::command().try_get_matches_from(words)?;
    let cli = Cli::from_arg_matches(&matches)?;
    if let Command::Probe(args) = &cli.command {
        return probe::parse(&args.words).map(drop);
    }
    match Front::of(&cli, &matches) {
        Some(front) => {
            let words = ["mainstay-lab".into()].into_iter().chain(front.words);
            mainstay_lab::cli::Cli::try_parse_from(words).map(drop)
        }
        None => Ok(()),
    }
}

#[test]
fn every_command_in_advice_is_taken() {
    let mut paths = Vec::new();
    SOURCES.iter().for_each(|source| files(Path::new(source), &mut paths));
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in paths {
        let text = fs::read_to_string(&path).expect("a source file");
        for command in commands(&path, &text) {
            seen += 1;
            let words = filled(&command);
            // A noun alone is the name of a group of commands.
            let refused = match parse(&words) {
                Err(error) if words.len() > 2 && error.use_stderr() => error.to_string(),
                Err(error) if error.kind() == clap::error::ErrorKind::InvalidSubcommand => error.to_string(),
                _ => continue,
            };
            let cause = refused.lines().next().unwrap_or_default().to_owned();
            wrong.push(format!("{}: `{command}`: {cause}", path.display()));
        }
    }
    assert!(seen > 50, "only {seen} commands were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for wrong in [
        "mainstay resource set db mode=d",
        "mainstay lab kill",
        "mainstay probe mariadb --sockett /s",
        "mainstay lab --json kil n1",
        "mainstay bench fio --size 1Gi7 /dev/x",
    ] {
        assert!(parse(&filled(wrong)).is_err(), "{wrong}");
    }
}

/// The arguments of a call, from after its opening parenthesis on, and whether the last one is an
/// empty string.
fn ends_empty(text: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (1, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text[..at].trim_end().trim_end_matches(',').ends_with(", \"\"");
        }
    }
    false
}

#[test]
fn every_refusal_names_a_remedy() {
    const CALLS: [&str; 4] = ["Failure::new(", "Problem::new(", "refused(", "refuse("];
    let mut paths = Vec::new();
    files(Path::new("../../crates"), &mut paths);
    let (mut seen, mut wrong) = (0, Vec::new());
    for path in paths.iter().filter(|path| path.extension().is_some_and(|end| end == "rs")) {
        let text = fs::read_to_string(path).expect("a source file");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let product = flat.split("#[cfg(test)] mod tests").next().unwrap_or_default();
        for call in CALLS {
            for (at, _) in product
                .match_indices(call)
                .filter(|(at, _)| product[at + call.len()..].trim_start().starts_with("Code::"))
            {
                seen += 1;
                let rest = &product[at + call.len()..];
                if ends_empty(rest) {
                    wrong.push(format!("{}: {}", path.display(), rest.chars().take(80).collect::<String>()));
                }
            }
        }
    }
    assert!(seen > 150, "only {seen} refusals were found");
    assert!(wrong.is_empty(), "no remedy:\n{}", wrong.join("\n"));
    assert!(ends_empty("Code::A, format!(\"(\"), \"\")") && !ends_empty("Code::A, \"b\", \"c\")"));
}

#[test]
fn commands_with_filled_in_names_are_found() {
    assert_eq!(filled("mainstay service move {name} NODE"), ["mainstay", "service", "move", "1", "n1"]);
    assert_eq!(
        filled("mainstay resource create NAME --from {a}@{b} --size SIZE"),
        ["mainstay", "resource", "create", "n1", "--from", "1@1", "--size", "4GiB"]
    );
    let source = "let x = \"see `mainstay a \\\n        b`\";\n// `mainstay c`\n";
    assert_eq!(commands(Path::new("x.rs"), source), ["mainstay a b"]);
}

//! Form of the comments in all Rust files: their width, and how doc comments open.
//! `CONTRIBUTING.md` has the rules.

use std::path::{Path, PathBuf};

/// Longest line of a comment, in characters.
const COLUMNS: usize = 100;
/// Words with which no doc comment opens: it would not stand alone in rustdoc.
const OPENINGS: &[&str] = &[
    "As", "He", "It", "Nobody", "Not", "Nothing", "Of", "One that", "So many", "So much", "Somebody", "That",
    "Them", "They", "Those", "What", "Whatever", "Who", "Whoever", "Whom", "Whose",
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("a readable directory").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            if name != "target" && name != ".git" {
                sources(&path, out);
            }
        } else if path.extension().is_some_and(|end| end == "rs") {
            out.push(path);
        }
    }
}

/// Marker and text of a line that holds nothing but a comment.
fn comment(line: &str) -> Option<(&str, &str)> {
    let line = line.trim_start();
    let markers = ["///", "//!", "//"].into_iter();
    markers.filter_map(|marker| Some((marker, line.strip_prefix(marker)?))).next()
}

/// Faults in one file, each with the number of its line.
fn faults(text: &str) -> Vec<(usize, &'static str)> {
    let (mut found, mut fenced, mut before) = (Vec::new(), false, None);
    for (number, line) in (1..).zip(text.lines()) {
        let Some((marker, rest)) = comment(line) else {
            (fenced, before) = (false, None);
            continue;
        };
        let words = rest.trim_start();
        fenced ^= words.starts_with("```");
        // Tables and pictures have the width that they need, and so has one long word.
        let is_free = fenced || words.starts_with(['|', '`']) || rest.starts_with("    ");
        if line.chars().count() > COLUMNS && !is_free && words.contains(' ') {
            found.push((number, "is longer than 100 columns"));
        }
        let opens = marker != "//" && before != Some(marker);
        let is_word = |opening: &&str| {
            let rest = words.strip_prefix(*opening);
            rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
        };
        if opens && OPENINGS.iter().any(is_word) {
            found.push((number, "opens with a word that does not stand alone"));
        }
        before = Some(marker);
    }
    found
}

#[test]
fn comments_are_wrapped_and_doc_comments_stand_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 300, "only {} files were found", files.len());
    let mut said = Vec::new();
    for path in files {
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let name = path.strip_prefix(&root).unwrap_or(&path).display().to_string();
        said.extend(faults(&text).into_iter().map(|(line, fault)| format!("{name}:{line} {fault}")));
    }
    assert!(said.is_empty(), "{}", said.join("\n"));
}

#[test]
fn each_fault_of_a_comment_is_seen_and_nothing_else() {
    let long = "word ".repeat(20);
    let wrong = [
        format!("    // {long}"),
        format!("/// {long}"),
        "/// What it is.".to_owned(),
        "struct A;\n    /// Of each.".to_owned(),
        "//! So many.".to_owned(),
    ];
    for text in wrong {
        assert_eq!(faults(&text).len(), 1, "{text}");
    }
    let right = [
        format!("let text = \"{long}\"; // said"),
        format!("/// | {long} |"),
        format!("/// ```\n/// {long}\n/// ```"),
        format!("// {}", "x".repeat(120)),
        "/// Bytes.\n/// What is left.".to_owned(),
        "// What is left.".to_owned(),
        "/// Office of a node.".to_owned(),
    ];
    for text in right {
        assert_eq!(faults(&text), [], "{text}");
    }
}

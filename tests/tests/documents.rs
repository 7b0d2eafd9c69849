//! Everything that the documents name exists: the tests behind the promises, and the files that the
//! reading order leads to. A renamed test would otherwise leave a promise without a test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[path = "documents/api.rs"]
mod api;
#[path = "documents/book.rs"]
mod book;
#[path = "documents/openapi.rs"]
mod openapi;
#[path = "documents/published.rs"]
mod published;

/// Pages outside docs.
const DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "SPECIFICATION.md", "CONTRIBUTING.md", "bench/README.md"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file of the repository as a path from its root, without built and cloned files.
fn files() -> BTreeSet<String> {
    fn walk(dir: &Path, root: &Path, out: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).expect("a readable directory").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            if name == "target" || name == ".git" || name == "corpus" || name == "node_modules" {
                continue;
            }
            let inside = path.strip_prefix(root).expect("below the root").to_string_lossy().into_owned();
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                out.insert(format!("{inside}/"));
                walk(&path, root, out);
            } else {
                out.insert(inside);
            }
        }
    }
    let mut out = BTreeSet::new();
    walk(&root(), &root(), &mut out);
    out
}

/// Names of all test functions, and of those in lists of names: the scenarios of the end-to-end
/// tests, and the stories of planted bugs. One test tells each story with its bug and without it.
fn tests(files: &BTreeSet<String>) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in files.iter().filter(|file| file.ends_with(".rs")) {
        let text = read(file);
        for (at, _) in text.match_indices("#[test]") {
            let rest = &text[at..];
            let Some((_, after)) = rest.split_once("fn ") else { continue };
            names.extend(after.split('(').next().map(str::to_owned));
        }
        if file.starts_with("tests/tests/e2e/") || file == "sim/tests/planted.rs" {
            names.extend(text.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
    names
}

/// Returns the texts between backticks outside fenced blocks.
fn quoted(text: &str) -> Vec<&str> {
    let mut fenced = false;
    let prose = text.lines().filter(|line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    });
    prose.flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 2
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

/// All promises: the specification is an index, and each subject is a page of its own.
fn specification() -> String {
    let is_of_it = |file: &String| file == "SPECIFICATION.md" || file.starts_with("docs/spec/");
    files().into_iter().filter(|file| is_of_it(file) && file.ends_with(".md")).map(read).collect()
}

#[test]
fn every_test_that_the_specification_names_exists() {
    let text = specification();
    let known = tests(&files());
    let promises = text.lines().filter(|line| line.starts_with("| S"));
    let mut found = 0;
    let mut missing = Vec::new();
    for line in promises {
        let last = line.trim_end_matches([' ', '|']).rsplit('|').next().unwrap_or("");
        // A promise names a test, a file of tests, or says that it is not kept yet.
        assert!(!last.trim().is_empty(), "a promise without a test: {line}");
        for name in quoted(last).into_iter().filter(|word| is_test_name(word)) {
            found += 1;
            if !known.contains(name) {
                missing.push(format!("`{name}` in: {line}"));
            }
        }
    }
    assert!(found > 20, "only {found} names of tests were recognised");
    assert!(missing.is_empty(), "no such test:\n{}", missing.join("\n"));
}

#[test]
fn every_test_that_the_page_of_recovery_names_exists() {
    let text = read("docs/internals/recovery.md");
    let known = tests(&files());
    let names: Vec<&str> = quoted(&text).into_iter().filter(|word| is_test_name(word)).collect();
    assert!(names.len() > 20, "only {} names of tests were recognised", names.len());
    let missing: Vec<&str> = names.into_iter().filter(|name| !known.contains(*name)).collect();
    assert!(missing.is_empty(), "no such test: {missing:?}");
}

#[test]
fn every_promise_has_a_number_of_its_own() {
    let text = specification();
    let mut seen = BTreeSet::new();
    for line in text.lines().filter(|line| line.starts_with("| S") || line.starts_with("| F")) {
        let number = line.split('|').nth(1).unwrap_or("").trim();
        assert!(seen.insert(number.to_owned()), "{number} is given twice");
    }
}

#[test]
fn every_file_that_the_documents_name_exists() {
    let files = files();
    let mut missing = Vec::new();
    let mut found = 0;
    let of_manual = files.iter().filter(|file| file.starts_with("docs/") && file.ends_with(".md"));
    let of_manual = of_manual.filter(|file| !file.starts_with("docs/adr/")).map(String::as_str);
    for document in DOCUMENTS.iter().copied().chain(of_manual) {
        let text = read(document);
        for word in quoted(&text).into_iter().filter(|word| is_file(word)) {
            found += 1;
            // A document may name a file by the end of its path, after it has named the directory.
            let word = word.trim_end_matches('/');
            let ends = |file: &String| {
                let file = file.trim_end_matches('/');
                file == word || file.ends_with(&format!("/{word}"))
            };
            if !files.iter().any(ends) {
                missing.push(format!("{document}: `{word}`"));
            }
        }
    }
    assert!(found > 50, "only {found} names of files were recognised");
    assert!(missing.is_empty(), "no such file:\n{}", missing.join("\n"));
}

/// Whether the word is a path in this repository. Built files do not count.
fn is_file(word: &str) -> bool {
    let known = [".rs", ".md", ".toml", ".sh", ".hex"].iter().any(|end| word.ends_with(end));
    let folder = word.ends_with('/') || word.starts_with("crates/") || word.starts_with("tests/");
    (known || folder)
        && !word.starts_with(['/', '-', '.'])
        && !word.starts_with("target/")
        && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_-.".contains(&b))
}

/// The documents tell operators every story about two replicas and a witness, with one copy enough
/// and with two wanted, and no other.
#[test]
fn the_table_of_failures_has_a_row_for_each_story() {
    let story = |line: &str| line.strip_prefix("fn ")?.split('(').next().map(str::to_owned);
    let files = ["table.rs", "min_copies.rs"].map(|file| read(format!("sim/tests/scenarios/{file}")));
    let stories: BTreeSet<String> = files.iter().flat_map(|file| file.lines()).filter_map(story).collect();
    let page = read("docs/copies-and-quorum.md");
    let last = |line: &str| {
        let cell = line.strip_prefix('|')?.strip_suffix('|')?.rsplit('|').next()?;
        let named = cell.trim().strip_prefix('`').and_then(|cell| cell.strip_suffix('`'))?;
        Some(named.split("`, `").map(str::to_owned).collect::<Vec<_>>())
    };
    assert_eq!(page.lines().filter_map(last).flatten().collect::<BTreeSet<_>>(), stories);
}

/// Returns the text after a heading of a page, and the page up to there. `MAINSTAY_BLESS=1` writes
/// the text that the code gives in its place.
fn check_written(page: &str, head: &str, written: &str) {
    let text = read(page);
    let (before, found) = text.split_once(head).unwrap_or_else(|| panic!("{page} has no {head:?}"));
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(root().join(page), format!("{before}{head}{written}")).unwrap();
        return;
    }
    assert!(found == written, "{page} is not as the code has it: write it anew with MAINSTAY_BLESS=1");
}

/// The reference of errors is written from the tables of explanations.
#[test]
fn the_manual_explains_every_error_as_the_code_does() {
    use mainstay_types::explained;
    check_written("docs/errors.md", "## All codes\n\n", &explained::table());
    for chapter in explained::CHAPTERS {
        let path = root().join(chapter.path());
        if std::env::var_os("MAINSTAY_BLESS").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, chapter.markdown()).unwrap();
        }
        let page = read(chapter.path());
        assert!(page == chapter.markdown(), "{}: write it anew with MAINSTAY_BLESS=1", chapter.path());
    }
}

#[test]
fn the_manual_has_every_route_and_field_of_the_api_as_the_code_does() {
    check_written("docs/http-api.md", "## Routes\n\n", &api::reference());
}

/// The manual's table of settings is written from the table in the code: `MAINSTAY_BLESS=1` writes
/// it anew.
#[test]
fn the_manual_lists_every_setting_as_the_code_does() {
    check_written("docs/settings.md", "## All settings\n\n", &mainstay_types::settings::markdown());
}

//! Explanations of all codes: one entry for each code, with the message, the cause and the remedy,
//! by subject. The manual's reference of errors is written from these tables, and the `more:` line
//! of an error leads to the entry of its code.
//!
//! An entry says what is true at every place that raises its code. Its message is an example: it
//! names db, n1 and s1 where another message names other objects.

use crate::Code;
use std::fmt::Write as _;

mod cluster;
mod files;
mod lab;
mod programs;
mod resources;
mod services;

/// Entries of one subject, which are one page of the manual.
pub struct Chapter {
    /// Name of the page's file, without its ending.
    name: &'static str,
    title: &'static str,
    /// Opening sentence, which names the readers.
    readers: &'static str,
    entries: &'static [Explained],
}

/// Explanation of one code.
pub struct Explained {
    pub code: Code,
    /// Message, or what several messages have in common.
    pub message: &'static str,
    pub cause: &'static str,
    pub remedy: &'static str,
}

macro_rules! chapter {
    ($name:literal $title:literal $readers:literal
     $($code:ident $message:literal $cause:literal $remedy:literal;)*) => {
        Chapter {
            name: $name,
            title: $title,
            readers: $readers,
            entries: &[$($crate::explained::Explained {
                code: $crate::Code::$code,
                message: $message,
                cause: $cause,
                remedy: $remedy,
            }),*],
        }
    };
}
use chapter;

/// All pages, in the order of the manual.
pub const CHAPTERS: &[Chapter] = &[
    cluster::CHAPTER,
    resources::CHAPTER,
    services::CHAPTER,
    files::CHAPTER,
    programs::CHAPTER,
    lab::CHAPTER,
];

const MADE: &str = "This page is made from the program.";

impl Chapter {
    /// Path of the page, from the root of the source tree on.
    #[must_use]
    pub fn path(&self) -> String {
        format!("docs/errors/{}.md", self.name)
    }

    /// The page, in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let Self { title, readers, .. } = self;
        let mut page =
            format!("# {title}\n\n{readers}\n{MADE}\n[errors.md](../errors.md) lists all codes.\n");
        for Explained { code, message, cause, remedy } in self.entries {
            let _ = write!(
                page,
                "\n## {code}\n\n- *You see:* {message}\n- *Why:* {cause}\n- *What to do:* {remedy}\n"
            );
            if let Some(more) = code.page() {
                let _ = writeln!(page, "- *More:* {}", link(more));
            }
        }
        page
    }
}

/// A link from a page of errors to another page, given with its path from the root on.
fn link(page: &str) -> String {
    let inside = page.strip_prefix("docs/").unwrap_or(page);
    let file = inside.split('#').next().unwrap_or(inside);
    format!("[{file}](../{inside})")
}

fn chapter_of(code: &Code) -> Option<&'static Chapter> {
    CHAPTERS.iter().find(|chapter| chapter.entries.iter().any(|entry| entry.code == *code))
}

impl Code {
    /// Explanation of the code. `None` for a code that this version does not know.
    #[must_use]
    pub fn explained(&self) -> Option<&'static Explained> {
        CHAPTERS.iter().flat_map(|chapter| chapter.entries).find(|entry| entry.code == *self)
    }

    /// Place of the code's entry in the manual: path from the root of the source tree on, and
    /// anchor. `None` for a code that this version does not know.
    #[must_use]
    pub fn entry(&self) -> Option<String> {
        chapter_of(self).map(|chapter| format!("{}#{self}", chapter.path()))
    }
}

/// Table of all codes in Markdown, for the first page of the reference.
#[must_use]
pub fn table() -> String {
    let mut text = "| code | subject | exit code | HTTP status |\n|---|---|---|---|\n".to_owned();
    for code in Code::ALL {
        let chapter = chapter_of(code).map_or("", |chapter| chapter.name);
        let (exit, status) = (code.exit(), code.status());
        let _ = writeln!(text, "| [{code}](errors/{chapter}.md#{code}) | {chapter} | {exit} | {status} |");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries() -> impl Iterator<Item = &'static Explained> {
        CHAPTERS.iter().flat_map(|chapter| chapter.entries)
    }

    #[test]
    fn every_code_has_one_entry() {
        let count = |code: &Code| entries().filter(|entry| entry.code == *code).count();
        let wrong: Vec<_> = Code::ALL.iter().filter(|code| count(code) != 1).collect();
        assert!(wrong.is_empty(), "not explained once: {wrong:?}");
        let newer = Code::Unknown("of-a-newer-node".into());
        assert!(newer.entry().is_none() && newer.explained().is_none());
        assert!(Code::ALL.iter().all(|code| code.explained().is_some_and(|found| found.code == *code)));
    }

    #[test]
    fn entries_are_in_order_and_in_whole_sentences() {
        for chapter in CHAPTERS {
            let codes: Vec<&str> = chapter.entries.iter().map(|entry| entry.code.as_str()).collect();
            assert!(codes.is_sorted(), "{}: {codes:?}", chapter.name);
        }
        for Explained { code, message, cause, remedy } in entries() {
            assert!(!message.is_empty() && !message.ends_with('.'), "{code}: {message}");
            for sentence in [cause, remedy] {
                let is_capital = |c: char| c.is_ascii_uppercase() || c == '`' || c.is_ascii_digit();
                assert!(sentence.starts_with(is_capital) && sentence.ends_with('.'), "{code}: {sentence}");
            }
        }
    }
}

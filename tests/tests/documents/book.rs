//! The manual as one book: each page is in its table of contents, and each link leads to a file and
//! a heading that exist.

use super::{files, read, root};
use std::collections::BTreeSet;

/// Text of a page without its fenced blocks.
fn prose(text: &str) -> String {
    let mut fenced = false;
    let mut out = String::new();
    for line in text.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence {
            out += line;
            out.push('\n');
        }
    }
    out
}

/// Anchor of a heading, as GitHub and mdBook make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        ' ' => Some('-'),
        '-' | '_' => Some(c),
        c if c.is_alphanumeric() => Some(c.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in prose(text).lines() {
        let Some(heading) = line.strip_prefix('#').map(|rest| rest.trim_start_matches('#')) else { continue };
        let plain = anchor(heading);
        let mut name = plain.clone();
        let mut number = 0;
        while !found.insert(name.clone()) {
            number += 1;
            name = format!("{plain}-{number}");
        }
    }
    found
}

/// Targets of the links of a page that lead to files of this repository.
fn links(text: &str) -> Vec<String> {
    let text = prose(text);
    // A link in code is an example.
    let plain: String =
        text.lines().map(|line| line.split('`').step_by(2).collect::<String>() + "\n").collect();
    let target = |(at, _): (usize, &str)| plain[at + 2..].split(')').next().unwrap_or("").trim().to_owned();
    let targets = plain.match_indices("](").map(target);
    targets.filter(|target| !target.is_empty() && !target.contains("://")).collect()
}

/// Path from the root of the repository of what a page in `folder` calls `path`.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "" | "." => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn folder(page: &str) -> &str {
    page.rsplit_once('/').map_or("", |(folder, _)| folder)
}

#[test]
fn every_link_of_every_page_leads_to_a_file_and_a_heading() {
    let pages: Vec<String> = files().into_iter().filter(|file| file.ends_with(".md")).collect();
    let (mut found, mut wrong) = (0, Vec::new());
    for page in &pages {
        for link in links(&read(page)) {
            found += 1;
            let (path, wanted) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { joined(folder(page), path) };
            if !root().join(&target).exists() {
                wrong.push(format!("{page}: no file {link}"));
            } else if !wanted.is_empty() && !anchors(&read(&target)).contains(wanted) {
                wrong.push(format!("{page}: no heading {link}"));
            }
        }
    }
    assert!(found > 400, "only {found} links were recognised");
    assert!(wrong.is_empty(), "links that lead nowhere:\n{}", wrong.join("\n"));
}

#[test]
fn every_error_leads_to_a_heading_that_exists() {
    for code in mainstay_types::Code::ALL {
        let entry = code.entry().unwrap_or_else(|| panic!("{code} has no entry"));
        for place in [entry.as_str()].into_iter().chain(code.page()) {
            let (page, wanted) = place.split_once('#').unwrap_or((place, ""));
            let is_there = wanted.is_empty() || anchors(&read(page)).contains(wanted);
            assert!(is_there, "{code}: there is no {place}");
        }
    }
}

#[test]
fn every_page_of_the_manual_is_in_its_table_of_contents_once() {
    let listed: Vec<String> =
        links(&read("docs/SUMMARY.md")).iter().map(|link| joined("docs", link)).collect();
    let pages: BTreeSet<String> = files()
        .into_iter()
        .filter(|file| file.starts_with("docs/") && file.ends_with(".md") && file != "docs/SUMMARY.md")
        .collect();
    let of_manual: BTreeSet<String> =
        listed.iter().filter(|page| page.starts_with("docs/")).cloned().collect();
    let missing: Vec<_> = pages.difference(&of_manual).collect();
    assert!(missing.is_empty(), "not in docs/SUMMARY.md: {missing:?}");
    assert_eq!(of_manual.len(), listed.len(), "docs/SUMMARY.md names a page twice, or one outside docs");
}

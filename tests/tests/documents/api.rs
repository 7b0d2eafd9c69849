//! The reference of the HTTP API: its routes, as the table has them, and the fields of requests and
//! answers, taken from the sources that describe them.

use super::{files, read};
use mainstay_api::routes::{Answer, ROUTES, Route};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A struct or an enum as its source describes it.
struct Described {
    doc: String,
    /// Name, type and description of each field; the type is empty for a variant.
    parts: Vec<(String, String, String)>,
    is_enum: bool,
}

/// Words of a doc comment as they stand in Markdown outside rustdoc.
fn plain(doc: &str) -> String {
    doc.replace("[`", "`").replace("`]", "`").replace('|', "\\|")
}

/// Types that a source file describes, by name.
fn described(text: &str, found: &mut BTreeMap<String, Described>) {
    let mut lines = text.lines();
    let (mut doc, mut kebab) = (String::new(), false);
    while let Some(line) = lines.next() {
        if let Some(words) = line.strip_prefix("///") {
            doc = format!("{doc} {}", words.trim()).trim().to_owned();
            continue;
        }
        if line.starts_with("#[") {
            kebab |= line.contains("kebab-case");
            continue;
        }
        let head = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "));
        let Some(name) = head.and_then(|head| head.strip_suffix(" {")) else {
            (doc, kebab) = (String::new(), false);
            continue;
        };
        let is_enum = line.starts_with("pub enum");
        let (mut parts, mut words, mut renamed) = (Vec::new(), String::new(), None);
        for line in lines.by_ref().take_while(|line| *line != "}") {
            // A variant's own fields are deeper.
            if line.starts_with("        ") {
                continue;
            }
            let line = line.trim();
            if let Some(more) = line.strip_prefix("///") {
                words = format!("{words} {}", more.trim()).trim().to_owned();
            } else if let Some(name) = line.strip_prefix("#[serde(rename = \"") {
                renamed = name.split('"').next();
            } else if line == "#[serde(flatten)]" {
                renamed = Some("(its fields stand here)");
            } else if let Some(field) = line.strip_prefix("pub ") {
                let (field, kind) = field.split_once(": ").unwrap_or((field, ""));
                let field = renamed.take().unwrap_or(field);
                parts.push((
                    field.to_owned(),
                    kind.trim_end_matches(',').to_owned(),
                    std::mem::take(&mut words),
                ));
            } else if is_enum && line.starts_with(|c: char| c.is_ascii_uppercase()) {
                let variant: String = line.chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
                let shown = if kebab { dashed(&variant) } else { variant };
                parts.push((shown, String::new(), std::mem::take(&mut words)));
            }
        }
        let doc_of = std::mem::take(&mut doc);
        found.insert(name.to_owned(), Described { doc: doc_of, parts, is_enum });
        kebab = false;
    }
}

fn dashed(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}

/// Names of described types in the words of a type or a table, in their order.
fn named<'a>(words: &'a str, types: &'a BTreeMap<String, Described>) -> impl Iterator<Item = &'a str> {
    words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| types.contains_key(*word))
}

/// The row of a route in the table.
fn row(route: &Route) -> String {
    let request = route.request.map(|name| format!("`{name}`")).unwrap_or_default();
    let answer = match route.answer {
        Answer::Json(name) => format!("`{name}`"),
        Answer::Metrics => "not JSON: the text format of Prometheus".to_owned(),
        Answer::Sentence => "not JSON: a sentence".to_owned(),
        Answer::Stream => "not JSON: server-sent events".to_owned(),
        Answer::Description => "the description in OpenAPI 3.1".to_owned(),
    };
    let Route { method, path, summary, access, .. } = route;
    format!("| `{method} {path}` | {summary} | {request} | {answer} | {access} |\n")
}

/// The table of parameters after the `?`.
fn parameters() -> String {
    let mut table = "| route | parameter | meaning |\n|---|---|---|\n".to_owned();
    for route in ROUTES {
        for parameter in route.query {
            let _ = writeln!(
                table,
                "| `{} {}` | `{}` | {} |",
                route.method, route.path, parameter.name, parameter.meaning
            );
        }
    }
    table
}

/// The part of the page after its introduction.
pub fn reference() -> String {
    let mut types = BTreeMap::new();
    let of_api = |file: &String| file.starts_with("crates/api/src/rest") && file.ends_with(".rs");
    for file in files().into_iter().filter(of_api) {
        described(&read(file), &mut types);
    }
    let mut page =
        "| method and path | purpose | request | answer | right |\n|---|---|---|---|---|\n".to_owned();
    let rows: Vec<String> = ROUTES.iter().map(row).collect();
    page += &rows.concat();
    let _ = write!(page, "\n## Parameters\n\n{}", parameters());
    // Each type after those that lead to it.
    let mut order: Vec<&str> = Vec::new();
    let mut next: Vec<&str> = rows.iter().flat_map(|row| named(row, &types)).collect();
    next.reverse();
    while let Some(name) = next.pop() {
        if order.contains(&name) {
            continue;
        }
        order.push(name);
        let inner: Vec<&str> =
            types[name].parts.iter().flat_map(|(_, kind, _)| named(kind, &types)).collect();
        next.extend(inner.into_iter().rev());
    }
    page += "\n## Types\n";
    for name in order {
        let Described { doc, parts, is_enum } = &types[name];
        let _ = write!(page, "\n### {name}\n\n");
        if !doc.is_empty() {
            let _ = write!(page, "{}\n\n", plain(doc));
        }
        page += if *is_enum {
            "| value | meaning |\n|---|---|\n"
        } else {
            "| field | type | meaning |\n|---|---|---|\n"
        };
        for (part, kind, words) in parts {
            let kind = if *is_enum { String::new() } else { format!(" `{kind}` |") };
            let _ = writeln!(page, "| `{part}` |{kind} {} |", plain(words));
        }
    }
    page
}

//! A parser of the text format that takes nothing but what its description allows, and what good
//! manners ask for: each family once, with help and type before its samples, no sample twice,
//! counters that end with `_total`, buckets that are cumulative.

use std::collections::{BTreeMap, BTreeSet};

/// Names and values.
type Labels = Vec<(String, String)>;

#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub labels: Labels,
    pub value: f64,
}

#[derive(Default, Debug)]
pub struct Found {
    pub help: String,
    pub kind: String,
    pub samples: Vec<Sample>,
}

#[derive(Default, Debug)]
pub struct Parsed {
    pub families: BTreeMap<String, Found>,
}

impl Parsed {
    /// The value of the one sample with exactly these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let wanted: BTreeSet<(&str, &str)> = labels.iter().copied().collect();
        let samples = self.families.values().flat_map(|family| &family.samples);
        let mut fitting = samples.filter(|sample| {
            let found: BTreeSet<(&str, &str)> =
                sample.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            sample.name == name && found == wanted
        });
        fitting.next().map(|sample| sample.value)
    }
}

pub fn parse(text: &str) -> Result<Parsed, String> {
    let mut parsed = Parsed::default();
    let mut family = String::new();
    let mut seen = BTreeSet::new();
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the last line has no end".to_owned());
    }
    for line in text.lines() {
        let wrong = |what: &str| format!("{what}: {line}");
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| wrong("no help"))?;
            check_name(name).map_err(|what| wrong(&what))?;
            family = name.to_owned();
            let found =
                Found { help: unescape(help, false).map_err(|what| wrong(&what))?, ..Found::default() };
            if parsed.families.insert(family.clone(), found).is_some() {
                return Err(wrong("a family for the second time"));
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| wrong("no type"))?;
            let known = ["counter", "gauge", "histogram", "summary"].contains(&kind);
            let found = parsed.families.get_mut(name).filter(|found| name == family && found.kind.is_empty());
            match found {
                Some(found) if known => found.kind = kind.to_owned(),
                _ => return Err(wrong("a type out of place")),
            }
        } else {
            let sample = sample(line).map_err(|what| wrong(&what))?;
            let found = parsed.families.get_mut(&family).filter(|found| !found.kind.is_empty());
            let found = found.ok_or_else(|| wrong("a sample without a head"))?;
            let ends: &[&str] = match found.kind.as_str() {
                "histogram" => &["_bucket", "_sum", "_count"],
                "summary" => &["_sum", "_count"],
                "counter" if !family.ends_with("_total") => return Err(wrong("a counter without _total")),
                _ => &[""],
            };
            if !ends.iter().any(|end| sample.name.strip_suffix(end) == Some(family.as_str())) {
                return Err(wrong("a sample of another family"));
            }
            let mut labels = sample.labels.clone();
            labels.sort();
            if !seen.insert((sample.name.clone(), labels)) {
                return Err(wrong("a sample for the second time"));
            }
            found.samples.push(sample);
        }
    }
    for (name, found) in &parsed.families {
        if found.kind == "histogram" {
            check_histogram(name, found)?;
        }
    }
    Ok(parsed)
}

fn check_name(name: &str) -> Result<(), String> {
    let first = name.bytes().next().is_some_and(|c| c.is_ascii_alphabetic() || c == b'_');
    let rest = name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    if first && rest { Ok(()) } else { Err(format!("`{name}` is no name")) }
}

fn sample(line: &str) -> Result<Sample, String> {
    let at = line.find(['{', ' ']).ok_or("no value")?;
    let (name, mut rest) = line.split_at(at);
    check_name(name)?;
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            let (label, after) = rest.split_once("=\"").ok_or("a label without a value")?;
            check_name(label)?;
            let end = end_of_value(after).ok_or("a value without an end")?;
            if labels.iter().any(|(known, _)| known == label) {
                return Err(format!("label {label} for the second time"));
            }
            labels.push((label.to_owned(), unescape(&after[..end], true)?));
            rest = &after[end + 1..];
            if let Some(more) = rest.strip_prefix(',') {
                rest = more;
            } else {
                rest = rest.strip_prefix('}').ok_or("labels without an end")?;
                break;
            }
        }
    }
    let value = rest.strip_prefix(' ').ok_or("no space before the value")?;
    Ok(Sample { name: name.to_owned(), labels, value: number(value)? })
}

/// Where the quotes are that end a value.
fn end_of_value(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(at),
            _ => {}
        }
    }
    None
}

fn number(text: &str) -> Result<f64, String> {
    match text {
        "+Inf" => Ok(f64::INFINITY),
        _ if text.starts_with(|c: char| c.is_ascii_digit() || c == '-') => {
            text.parse().map_err(|_| format!("`{text}` is no number"))
        }
        _ => Err(format!("`{text}` is no number")),
    }
}

fn unescape(text: &str, quotes: bool) -> Result<String, String> {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('\\') => out.push('\\'),
                Some('n') => out.push('\n'),
                Some('"') if quotes => out.push('"'),
                other => return Err(format!("an escape of {other:?}")),
            },
            c => out.push(c),
        }
    }
    Ok(out)
}

/// Per set of labels: bounds rise, counts do not fall, the last one is +Inf and equals the count,
/// and there is a sum.
fn check_histogram(name: &str, found: &Found) -> Result<(), String> {
    let mut series: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
    let (mut sums, mut counts) = (BTreeSet::new(), BTreeMap::new());
    for sample in &found.samples {
        let (le, others): (Vec<_>, Vec<_>) =
            sample.labels.iter().cloned().partition(|(label, _)| label == "le");
        if sample.name.ends_with("_bucket") {
            let [(_, bound)] = &le[..] else { return Err(format!("{name}: a bucket without a bound")) };
            series.entry(others).or_default().push((number(bound)?, sample.value));
        } else if sample.name.ends_with("_sum") {
            sums.insert(others);
        } else {
            counts.insert(others, sample.value);
        }
    }
    for (labels, buckets) in &series {
        let rises = buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1);
        let last = buckets.last().copied().unwrap_or_default();
        if !rises || last.0 != f64::INFINITY || counts.get(labels) != Some(&last.1) || !sums.contains(labels)
        {
            return Err(format!("{name} {labels:?}: {buckets:?}"));
        }
    }
    if counts.len() == series.len() && sums.len() == series.len() {
        Ok(())
    } else {
        Err(format!("{name}: a part is missing"))
    }
}

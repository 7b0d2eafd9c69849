//! The lines of a page of metrics, in the text format of Prometheus.

/// A number with its name and its labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample<'a> {
    pub name: &'a str,
    labels: Vec<(&'a str, String)>,
    pub value: f64,
}

impl Sample<'_> {
    /// Value of a label; empty if the sample has none of this name.
    pub fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(known, _)| *known == name).map_or("", |(_, value)| value)
    }
}

/// The samples of a page. Left out are the buckets of histograms, comments, and lines that are no
/// samples.
pub fn samples(page: &str) -> impl Iterator<Item = Sample<'_>> {
    page.lines().filter_map(sample)
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = line.find(|c| !is_name(c))?;
    let (name, mut rest) = line.split_at(end);
    if name.is_empty() || name.ends_with("_bucket") {
        return None;
    }
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = value(after)?;
            labels.push((label, value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name, labels, value })
}

/// A value of a label up to its closing quote, and the text after that.
fn value(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                c => c,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_as_prometheus_reads_it() {
        let page = "# HELP a Text.\n# TYPE a counter\na 3\nb{x=\"1\",y=\"q\\\"u\\\\o\\nte\"} 2.5\n\
                    c_bucket{le=\"+Inf\"} 9\nd{} +Inf\n\nbroken{x=\"1 2\nno value\ne{x=\"}\"} 1e3 1700000000\n";
        let found: Vec<_> = samples(page).collect();
        let names: Vec<_> = found.iter().map(|one| one.name).collect();
        assert_eq!(names, ["a", "b", "d", "e"]);
        assert_eq!((found[0].value, found[1].value, found[3].value), (3.0, 2.5, 1000.0));
        assert!(found[2].value.is_infinite());
        assert_eq!((found[1].label("y"), found[1].label("z"), found[3].label("x")), ("q\"u\\o\nte", "", "}"));
    }
}

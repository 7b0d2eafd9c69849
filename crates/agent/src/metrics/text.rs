//! The text that Prometheus reads, version 0.0.4, and OpenMetrics 1.0 for scrapers that ask for it.
//!
//! Guarantees: all samples of a family stand together behind its HELP and TYPE; a family without
//! samples is not named; labels are escaped, and are exactly those that the family names; a
//! histogram's buckets are cumulative and end with `+Inf`, which equals its count. A test reads
//! what is written back with a strict parser.

use super::families::{Family, Kind};
use mainstay_types::Histogram;
use std::fmt::Write as _;
use std::ops::RangeInclusive;

/// The format of a page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Format {
    #[default]
    Prometheus,
    OpenMetrics,
}

impl Format {
    /// Returns the format for the header `Accept`. Prometheus names OpenMetrics there when it can
    /// read it.
    #[must_use]
    pub fn wanted(accept: Option<&str>) -> Self {
        let named = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if named { Self::OpenMetrics } else { Self::Prometheus }
    }

    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// A number as it is written.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    Whole(u64),
    Real(f64),
}

impl From<u64> for Value {
    fn from(value: u64) -> Self {
        Self::Whole(value)
    }
}

impl From<usize> for Value {
    fn from(value: usize) -> Self {
        Self::Whole(value as u64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Whole(u64::from(value))
    }
}

/// Seconds, from microseconds.
#[must_use]
pub fn seconds(us: u64) -> Value {
    Value::Real(us as f64 / 1e6)
}

/// Unit of a histogram's buckets, and the buckets that are shown.
#[derive(Clone)]
pub struct Scale {
    /// Buckets that are shown, as powers of two of [`Histogram::up_to`].
    powers: RangeInclusive<usize>,
    /// Number of noted units in one shown unit.
    divisor: f64,
}

/// Microseconds as seconds: 16 µs, 32 µs, … 16.8 s. Less is one turn of a shard, and more is
/// another sort of trouble.
pub const LATENCY: Scale = Scale { powers: 4..=24, divisor: 1e6 };
/// A batch has 96 entries at most.
pub const ENTRIES: Scale = Scale { powers: 0..=7, divisor: 1.0 };

/// A page in the making.
pub struct Page {
    text: String,
    format: Format,
}

impl Page {
    #[must_use]
    pub fn new(format: Format) -> Self {
        Self { text: String::new(), format }
    }

    /// All samples of a family.
    pub fn family(&mut self, family: &'static Family, fill: impl FnOnce(&mut Samples<'_>)) {
        fill(&mut Samples { page: self, family, begun: false });
    }

    /// A family of one sample.
    pub fn one(&mut self, family: &'static Family, value: impl Into<Value>) {
        self.family(family, |samples| samples.add(&[], value));
    }

    #[must_use]
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    fn head(&mut self, family: &Family) {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
        };
        let name = match self.format {
            // There the family of a counter has the name without what its samples end with.
            Format::OpenMetrics => family.name.strip_suffix("_total").unwrap_or(family.name),
            Format::Prometheus => family.name,
        };
        self.text.push_str("# HELP ");
        self.text.push_str(name);
        self.text.push(' ');
        escape(&mut self.text, family.help, false);
        // Writing to a string does not fail, here and below.
        let _ = write!(self.text, "\n# TYPE {name} {kind}\n");
    }
}

/// Where the samples of one family are written.
pub struct Samples<'p> {
    page: &'p mut Page,
    family: &'static Family,
    begun: bool,
}

impl Samples<'_> {
    /// A counter or a gauge. The values of its labels in the order in which the family names them.
    pub fn add(&mut self, labels: &[&str], value: impl Into<Value>) {
        let labels = self.labels(labels);
        self.line("", &labels, None, value.into());
    }

    pub fn histogram(&mut self, labels: &[&str], histogram: &Histogram, scale: &Scale) {
        let labels = self.labels(labels);
        for (bound, count) in histogram.up_to().take(scale.powers.end() + 1).skip(*scale.powers.start()) {
            let bound = Value::Real(bound as f64 / scale.divisor);
            self.line("_bucket", &labels, Some(bound), count.into());
        }
        let count = histogram.count();
        self.line("_bucket", &labels, Some(Value::Real(f64::INFINITY)), count.into());
        self.line("_sum", &labels, None, Value::Real(histogram.sum() as f64 / scale.divisor));
        self.line("_count", &labels, None, count.into());
    }

    /// How often, and how long altogether, in microseconds.
    pub fn summary(&mut self, labels: &[&str], count: u64, sum_us: u64) {
        let labels = self.labels(labels);
        self.line("_sum", &labels, None, seconds(sum_us));
        self.line("_count", &labels, None, count.into());
    }

    /// `name="value",name="value"`.
    fn labels(&self, values: &[&str]) -> String {
        let names = self.family.labels;
        assert!(names.len() == values.len(), "{} has the labels {names:?}, not {values:?}", self.family.name);
        let mut text = String::new();
        for (name, value) in names.iter().zip(values) {
            let comma = if text.is_empty() { "" } else { "," };
            let _ = write!(text, "{comma}{name}=\"");
            escape(&mut text, value, true);
            text.push('"');
        }
        text
    }

    fn line(&mut self, suffix: &str, labels: &str, bound: Option<Value>, value: Value) {
        if !std::mem::replace(&mut self.begun, true) {
            self.page.head(self.family);
        }
        let text = &mut self.page.text;
        text.push_str(self.family.name);
        text.push_str(suffix);
        if !labels.is_empty() || bound.is_some() {
            text.push('{');
            text.push_str(labels);
            if let Some(bound) = bound {
                text.push_str(if labels.is_empty() { "le=\"" } else { ",le=\"" });
                number(text, bound);
                text.push('"');
            }
            text.push('}');
        }
        text.push(' ');
        number(text, value);
        text.push('\n');
    }
}

fn number(text: &mut String, value: Value) {
    let _ = match value {
        Value::Whole(value) => write!(text, "{value}"),
        Value::Real(f64::INFINITY) => write!(text, "+Inf"),
        // With a point, as OpenMetrics wants it of bounds.
        Value::Real(value) if value.fract() == 0.0 => write!(text, "{value:.1}"),
        Value::Real(value) => write!(text, "{value}"),
    };
}

/// Appends `raw` with backslashes and line ends escaped, as in help texts. `quotes`: quotes are
/// escaped too, as in values of labels.
fn escape(text: &mut String, raw: &str, quotes: bool) {
    for c in raw.chars() {
        match c {
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '"' if quotes => text.push_str("\\\""),
            c => text.push(c),
        }
    }
}

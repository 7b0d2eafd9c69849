//! Bars as SVG: a group for each case, and a bar for each set-up. A line over the end of a bar
//! reaches from the smallest to the largest value. Every group has a scale of its own, unless its
//! picture is to have one for all.

use crate::case::Measure;
use crate::report::{Report, Row};
use crate::stats::{Spread, number};
use std::fmt::Write as _;

/// A picture and the name of its file.
pub struct Plot {
    pub file: &'static str,
    pub text: String,
}

const WIDTH: f64 = 860.0;
/// Where bars begin and where they end at most; numbers stand behind their ends.
const LEFT: f64 = 230.0;
const RIGHT: f64 = 770.0;
const BAR: f64 = 14.0;
const GAP: f64 = 3.0;
const TOP: f64 = 48.0;
/// Colours that differ also in brightness.
const COLOURS: [&str; 10] = [
    "#4c566a", "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8c6d31", "#b2abd2",
    "#666666",
];

/// All pictures that the rows give.
#[must_use]
pub fn plots(report: &Report) -> Vec<Plot> {
    let rows = &report.rows;
    let all = [
        ("ratio.svg", "of the baseline (longer is better)", bars(rows, &ratio)),
        ("iops.svg", "operations per second", bars(rows, &|row| of_measure(row, Measure::Iops))),
        ("tps.svg", "transactions per second", bars(rows, &|row| of_measure(row, Measure::Tps))),
        (
            "cpu.svg",
            "µs of processor time for each operation, client not counted",
            bars(rows, &|row| Some(row.cpu_us)),
        ),
    ];
    let names: Vec<&str> = distinct(rows.iter().map(|row| row.set_up.as_str()));
    let drawn = all.into_iter().filter(|(_, _, bars)| !bars.is_empty());
    drawn.map(|(file, title, bars)| Plot { file, text: draw(title, &names, &bars, None) }).collect()
}

fn ratio(row: &Row) -> Option<Spread> {
    if row.measure == Measure::ReadMaxMs { None } else { row.ratio }
}

fn of_measure(row: &Row, measure: Measure) -> Option<Spread> {
    (row.measure == measure).then_some(row.value)
}

/// One bar of a group.
pub struct Bar<'a> {
    /// The group.
    pub case: &'a str,
    /// Name of the set-up in the legend.
    pub set_up: &'a str,
    pub value: Spread,
}

/// A picture of bars that all have one scale.
#[must_use]
pub fn on_one_scale(title: &str, bars: &[Bar<'_>]) -> String {
    let names = distinct(bars.iter().map(|bar| bar.set_up));
    let most = bars.iter().map(|bar| bar.value.max).fold(0.0, f64::max);
    draw(title, &names, bars, Some(most))
}

fn bars<'a>(rows: &'a [Row], value: &dyn Fn(&Row) -> Option<Spread>) -> Vec<Bar<'a>> {
    rows.iter()
        .filter_map(|row| Some(Bar { case: &row.case, set_up: &row.set_up, value: value(row)? }))
        .collect()
}

fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// `most`: the value of the longest bar of all. Without it each group has a scale of its own.
fn draw(title: &str, names: &[&str], bars: &[Bar<'_>], most: Option<f64>) -> String {
    let cases = distinct(bars.iter().map(|bar| bar.case));
    let legend = TOP + 16.0;
    let height = legend + bars.len() as f64 * (BAR + GAP) + cases.len() as f64 * 10.0 + 20.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"20\" font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    let colour = |name: &str| COLOURS[names.iter().position(|n| *n == name).unwrap_or(0) % COLOURS.len()];
    let mut x = 10.0;
    for name in distinct(bars.iter().map(|bar| bar.set_up)) {
        let (fill, label) = (colour(name), escaped(name));
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{fill}\"/><text x=\"{}\" y=\"41\">{label}</text>",
            x + 14.0
        );
        x += 30.0 + 7.0 * name.chars().count() as f64;
    }
    let mut y = legend;
    for case in cases {
        let group: Vec<&Bar> = bars.iter().filter(|bar| bar.case == case).collect();
        // Cases of a benchmark differ by orders of magnitude.
        let scale = most.unwrap_or_else(|| group.iter().map(|bar| bar.value.max).fold(0.0, f64::max));
        let middle = y + group.len() as f64 * (BAR + GAP) / 2.0 + 2.0;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\">{}</text>",
            LEFT - 10.0,
            escaped(case)
        );
        for bar in group {
            out += &one(bar, colour(bar.set_up), y, if scale > 0.0 { (RIGHT - LEFT) / scale } else { 0.0 });
            y += BAR + GAP;
        }
        y += 10.0;
    }
    out + "</svg>\n"
}

fn one(bar: &Bar<'_>, fill: &str, y: f64, per_unit: f64) -> String {
    let Spread { median, min, max, .. } = bar.value;
    let (width, from, to) = (median * per_unit, LEFT + min * per_unit, LEFT + max * per_unit);
    let middle = y + BAR / 2.0;
    format!(
        "<rect x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{fill}\"/>\
         <line x1=\"{from:.1}\" y1=\"{middle}\" x2=\"{to:.1}\" y2=\"{middle}\" stroke=\"black\"/>\
         <text x=\"{:.1}\" y=\"{}\">{}</text>\n",
        to + 6.0,
        y + BAR - 2.0,
        number(median)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn pictures_have_a_bar_for_each_row_that_fits() {
        let plots = super::plots(&crate::report::tests::report());
        let files: Vec<_> = plots.iter().map(|plot| plot.file).collect();
        assert_eq!(files, ["ratio.svg", "iops.svg", "tps.svg", "cpu.svg"]);
        let lines = |file: usize| plots[file].text.matches("<line").count();
        assert_eq!([0, 1, 2, 3].map(lines), [2, 2, 2, 4]);
        for plot in &plots {
            assert!(plot.text.starts_with("<svg") && plot.text.trim_end().ends_with("</svg>"));
            assert!(!plot.text.contains("NaN") && !plot.text.contains("inf"), "{}", plot.text);
        }
    }
}

//! Plots over time as SVG, without scripts. Colours come from the style sheet of the page, so they
//! fit light and dark schemes; each line has its name in the legend and a pattern of its own.

use super::text::short;
use std::fmt::Write as _;

/// Size of a plot in its own units.
const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 180.0;
/// Room for the labels of the axes.
const LEFT: f64 = 56.0;
const BOTTOM: f64 = 22.0;
const TOP: f64 = 8.0;
/// Number of colours that the style sheet has.
pub const COLOURS: usize = 7;

/// One line or area: its name, and its values by point; `None` where nothing is recorded.
pub struct Line {
    pub name: String,
    pub values: Vec<Option<f64>>,
}

/// Kind of a plot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Lines,
    /// Areas on top of each other.
    Stack,
}

/// Text in an element of HTML or SVG.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The least number of the form 1, 2 or 5 times a power of ten that is not less.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|top| *top >= value).unwrap_or(value)
}

fn x(number: usize, points: usize) -> f64 {
    LEFT + (WIDTH - LEFT) * number as f64 / points.max(1) as f64
}

fn y(value: f64, top: f64) -> f64 {
    TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - value / top)
}

/// A plot as an element of HTML. `clocks` has the labels of the first, the middle and the last
/// moment.
pub fn plot(title: &str, unit: &str, kind: Kind, lines: &[&Line], clocks: [&str; 3]) -> String {
    let points = lines.iter().map(|line| line.values.len()).max().unwrap_or(0);
    let value = |line: &Line, at: usize| line.values.get(at).copied().flatten();
    let most = (0..points).map(|at| {
        let values = lines.iter().filter_map(|line| value(line, at));
        if kind == Kind::Stack { values.sum() } else { values.fold(0.0, f64::max) }
    });
    let top = round_up(most.fold(0.0, f64::max));
    let mut svg = format!(
        "<figure><figcaption>{} <span class=\"unit\">{}</span></figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
        escaped(title),
        escaped(unit),
        escaped(&format!("{title}, {unit}, at most {}", short(top)))
    );
    for part in [0.0, 0.5, 1.0] {
        let at = y(part * top, top);
        let _ = write!(
            svg,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{WIDTH}\"/><text class=\"end\" x=\"{:.0}\" y=\"{:.1}\">{}</text>",
            LEFT - 6.0,
            at + 4.0,
            short(part * top)
        );
    }
    for (place, (clock, anchor)) in
        [0.0, 0.5, 1.0].into_iter().zip(clocks.into_iter().zip(["", "middle", "end"]))
    {
        let _ = write!(
            svg,
            "<text class=\"{anchor}\" x=\"{:.0}\" y=\"{:.0}\">{}</text>",
            LEFT + (WIDTH - LEFT) * place,
            HEIGHT - 4.0,
            escaped(clock)
        );
    }
    let mut base = vec![0.0; points];
    for (number, line) in lines.iter().enumerate() {
        let colour = number % COLOURS;
        if kind == Kind::Lines {
            let path = path_of(line, points, top);
            let _ = write!(svg, "<path class=\"line c{colour}\" d=\"{path}\"/>");
            continue;
        }
        let mut upper = String::new();
        let mut lower = String::new();
        for (at, base) in base.iter_mut().enumerate() {
            let next = *base + value(line, at).unwrap_or(0.0);
            let (left, right) = (x(at, points), x(at + 1, points));
            let _ = write!(upper, "L{left:.1} {0:.1}L{right:.1} {0:.1}", y(next, top));
            lower.insert_str(0, &format!("L{right:.1} {0:.1}L{left:.1} {0:.1}", y(*base, top)));
            *base = next;
        }
        let outline = format!("{upper}{lower}");
        let _ = write!(svg, "<path class=\"area f{colour}\" d=\"M{}Z\"/>", outline.trim_start_matches('L'));
    }
    svg.push_str("</svg>\n<ul class=\"legend\">");
    for (number, line) in lines.iter().enumerate() {
        let _ = write!(svg, "<li><i class=\"f{}\"></i>{}</li>", number % COLOURS, escaped(&line.name));
    }
    svg.push_str("</ul></figure>\n");
    svg
}

/// A line with a gap where nothing is recorded. A single point is a short dash.
fn path_of(line: &Line, points: usize, top: f64) -> String {
    let mut path = String::new();
    let mut drawn = false;
    for (at, value) in line.values.iter().enumerate() {
        let Some(value) = value else {
            drawn = false;
            continue;
        };
        let step = if drawn { 'L' } else { 'M' };
        let _ = write!(path, "{step}{:.1} {1:.1}H{2:.1}", x(at, points), y(*value, top), x(at + 1, points));
        drawn = true;
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_top_of_an_axis_is_a_round_number_that_is_not_less() {
        for (value, top) in [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (7.0, 10.0), (101.0, 200.0), (f64::NAN, 1.0)]
        {
            assert!((round_up(value) - top).abs() < 1e-9, "{value}: {}", round_up(value));
        }
    }

    #[test]
    fn a_line_has_gaps_where_nothing_is_recorded_and_names_are_escaped() {
        let line = |values| Line { name: "<db> & \"x\"".into(), values };
        let path = path_of(&line(vec![Some(1.0), None, Some(0.0), Some(1.0)]), 4, 1.0);
        assert_eq!(path.matches('M').count(), 2, "{path}");
        let (one, other) = (line(vec![Some(1.0)]), line(vec![None]));
        let shown = plot("t", "u", Kind::Stack, &[&one, &other], ["a", "b", "c"]);
        assert!(shown.contains("&lt;db&gt; &amp; &quot;x&quot;") && !shown.contains("<db>"), "{shown}");
        assert!(!shown.contains("NaN") && !shown.contains("inf"), "{shown}");
        plot("t", "u", Kind::Lines, &[], ["a", "b", "c"]);
    }
}

//! The report of an interval.

use super::extract::Query;
use super::{ApiResult, App, blocking};
use crate::clock::wall_ms;
use crate::report::{Interval, Span, report};
use axum::extract::State as AppState;
use mainstay_api::rest::Report;
use mainstay_types::{Code, Problem};
use serde::Deserialize;

/// Interval of a question that names no begin.
const INTERVAL_MS: u64 = 3_600_000;

#[derive(Deserialize, Default)]
pub struct ReportQuery {
    /// An hour before the end, if none.
    #[serde(default)]
    from_ms: Option<u64>,
    /// The present time, if none.
    #[serde(default)]
    to_ms: Option<u64>,
    /// Name of the baseline that is reported in the place of an interval.
    #[serde(default)]
    baseline: Option<String>,
    /// Begin of the interval to compare with, which is as long.
    #[serde(default)]
    compare_from_ms: Option<u64>,
    /// Name of the baseline to compare with.
    #[serde(default)]
    compare_baseline: Option<String>,
    /// Name of the resource to which the report is limited; all if none.
    #[serde(default)]
    resource: Option<String>,
}

impl ReportQuery {
    fn spans(self, now_ms: u64) -> Result<(Span, Option<Span>), Problem> {
        let both = |one: &str, other: &str| {
            let why = format!("{one} and {other}: a report takes one of these two");
            Problem::new(Code::BadRequest, why, format!("Leave out `{one}` or `{other}`."))
        };
        if self.compare_from_ms.is_some() && self.compare_baseline.is_some() {
            return Err(both("compare_from_ms", "compare_baseline"));
        }
        let compared = self.compare_baseline.map(Span::Baseline);
        if let Some(name) = self.baseline {
            if self.from_ms.or(self.to_ms).is_some() {
                return Err(both("baseline", "from_ms"));
            }
            if self.compare_from_ms.is_some() {
                return Err(both("baseline", "compare_from_ms"));
            }
            return Ok((Span::Baseline(name), compared));
        }
        let to_ms = self.to_ms.unwrap_or(now_ms);
        let from_ms = self.from_ms.unwrap_or(to_ms.saturating_sub(INTERVAL_MS));
        let interval = Interval { from_ms, to_ms }.checked()?;
        let length = to_ms - from_ms;
        let other = |from_ms: u64| Interval { from_ms, to_ms: from_ms.saturating_add(length) };
        Ok((Span::Interval(interval), compared.or(self.compare_from_ms.map(other).map(Span::Interval))))
    }
}

pub async fn answer(AppState(agent): App, Query(query): Query<ReportQuery>) -> ApiResult<Report> {
    blocking(move || {
        let resource = query.resource.clone();
        let (span, compared) = query.spans(wall_ms())?;
        report(&agent, &span, compared.as_ref(), resource.as_deref())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_about_the_last_hour_and_compares_with_what_is_as_long() {
        let asked = |from_ms, to_ms, compare_from_ms| {
            ReportQuery { from_ms, to_ms, compare_from_ms, ..ReportQuery::default() }.spans(7_200_000)
        };
        let interval = |from_ms, to_ms| Span::Interval(Interval { from_ms, to_ms });
        assert_eq!(asked(None, None, None).unwrap(), (interval(3_600_000, 7_200_000), None));
        let (_, compared) = asked(Some(60_000), Some(180_000), Some(5)).unwrap();
        assert_eq!(compared, Some(interval(5, 120_005)));
        for (from_ms, to_ms) in [(5, 5), (9, 8), (0, 59_999)] {
            let refused = asked(Some(from_ms), Some(to_ms), None).unwrap_err();
            assert_eq!(refused.code, Code::BadRequest);
            assert!(refused.message.contains("is less than a minute"), "{refused}");
        }
    }

    #[test]
    fn a_report_is_of_an_interval_or_of_a_baseline_and_compares_with_one_of_both() {
        let name = || Some("friday".to_owned());
        let baseline = || Span::Baseline("friday".to_owned());
        let of = ReportQuery { baseline: name(), compare_baseline: name(), ..ReportQuery::default() };
        assert_eq!(of.spans(9).unwrap(), (baseline(), Some(baseline())));
        let with = ReportQuery { compare_baseline: name(), ..ReportQuery::default() };
        assert_eq!(with.spans(7_200_000).unwrap().1, Some(baseline()));
        for both in [
            ReportQuery { baseline: name(), from_ms: Some(1), ..ReportQuery::default() },
            ReportQuery { baseline: name(), to_ms: Some(1), ..ReportQuery::default() },
            ReportQuery { baseline: name(), compare_from_ms: Some(1), ..ReportQuery::default() },
            ReportQuery { compare_baseline: name(), compare_from_ms: Some(1), ..ReportQuery::default() },
        ] {
            assert_eq!(both.spans(7_200_000).unwrap_err().code, Code::BadRequest);
        }
    }
}

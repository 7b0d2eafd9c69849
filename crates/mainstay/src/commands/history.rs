//! `mainstay history`.

use crate::cli::HistoryArgs;
use crate::failure::Outcome;
use crate::output::{self, Output};
use mainstay_api::rest::{ChangeView, HistoryPage};
use mainstay_client::Client;
use mainstay_types::clock::clock;

pub fn run(args: &HistoryArgs, client: &Client, output: Output) -> Outcome<u8> {
    let name = args.name.as_deref().map(super::checked_name).transpose()?;
    let name = name.map_or_else(String::new, |name| format!("&name={name}"));
    let page: HistoryPage = client.get(&format!("/v1/history?lines={}{name}", args.lines))?;
    output.newest(args.lines, &page, |page| words(page, args.brief, output::columns()))?;
    Ok(0)
}

fn words(page: &HistoryPage, brief: bool, columns: Option<usize>) -> String {
    let mut parts = Vec::new();
    if let Some(since) = page.since_ms {
        parts.push(format!("the cluster has no events from before {}", clock(since)));
    }
    parts.extend(page.changes.iter().map(|change| of_change(change, brief, columns)));
    if page.changes.is_empty() {
        parts.push("no primary has changed".into());
    }
    parts.join("\n")
}

pub(super) fn of_change(change: &ChangeView, brief: bool, columns: Option<usize>) -> String {
    let nodes = match (&change.from, &change.to) {
        (Some(from), Some(to)) if from == to => format!("{to} again"),
        (Some(from), Some(to)) => format!("from {from} to {to}"),
        (None, Some(to)) => format!("to {to}"),
        (Some(from), None) => format!("from {from} to no node"),
        (None, None) => "to no node".into(),
    };
    let service = change.service.as_ref().map(|name| format!(", service {name}")).unwrap_or_default();
    let ran = change.took_ms.map(|ms| format!(", ran after {}", seconds(ms))).unwrap_or_default();
    let head = format!(
        "{}  resource {}{service}: {nodes}, epoch {}, {}, decided by the {}{ran}",
        clock(change.at_ms),
        change.resource,
        change.epoch,
        change.cause,
        change.decided_by
    );
    let mut lines = vec![output::fold(&head, columns)];
    let stage =
        |after_ms: u64, text: &str| output::fold(&format!("  +{:>9}  {text}", seconds(after_ms)), columns);
    if !brief {
        lines.extend(change.stages.iter().map(|one| stage(one.after_ms, &one.text)));
    }
    lines.join("\n")
}

fn seconds(ms: u64) -> String {
    format!("{}.{:03} s", ms / 1000, ms % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::StageView;

    #[test]
    fn a_change_is_readable_at_80_columns_with_long_names() {
        let name = "a".repeat(32);
        let stage = |after_ms, text: &str| StageView { after_ms, text: text.into() };
        let change = ChangeView {
            resource: name.clone(),
            service: Some(name.clone()),
            from: Some(name.clone()),
            to: Some("b".repeat(32)),
            epoch: 7,
            cause: "node-dead".into(),
            decided_by: "cluster".into(),
            at_ms: 0,
            took_ms: Some(1234),
            stages: vec![
                stage(0, "is primary"),
                stage(1234, &format!("runs on {}", "long words ".repeat(20))),
            ],
        };
        let page = HistoryPage { changes: vec![change], since_ms: Some(1) };
        let shown = words(&page, false, Some(80));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let joined = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in
            ["node-dead, decided by the cluster", "ran after 1.234 s", "epoch 7", "no events from before"]
        {
            assert!(joined.contains(part), "{part} is not in {shown}");
        }
        assert_eq!(words(&page, true, None).lines().count(), 2);
        let none = HistoryPage { changes: Vec::new(), since_ms: None };
        assert_eq!(words(&none, false, None), "no primary has changed");
    }
}

//! `mainstay report baseline`: intervals whose figures nodes keep under a name.

use super::title;
use crate::cli::BaselineCommand;
use crate::connect::checked_name;
use crate::failure::Outcome;
use crate::moment;
use crate::output::Output;
use mainstay_api::rest::{Accepted, BaselineSave, BaselineView, BaselinesPage};
use mainstay_cli::list::{Cell, List};
use mainstay_client::Client;
use mainstay_types::clock::clock;

pub fn run(command: &BaselineCommand, client: &Client, output: Output) -> Outcome<u8> {
    let path = |name: &str| checked_name(name).map(|name| format!("/v1/baselines/{name}"));
    let said = |accepted: &Accepted| accepted.message.clone();
    match command {
        BaselineCommand::Save { name, span } => {
            let (from_ms, to_ms) = span.interval(moment::now_ms());
            let accepted: Accepted = client.put(&path(name)?, &BaselineSave { from_ms, to_ms })?;
            output.result(&accepted, said)?;
        }
        BaselineCommand::List => {
            let page: BaselinesPage = client.get("/v1/baselines")?;
            output.list(&page, list)?;
        }
        BaselineCommand::Delete { name } => {
            let accepted: Accepted = client.delete(&path(name)?)?;
            output.result(&accepted, said)?;
        }
    }
    Ok(0)
}

pub(in crate::commands) fn list(page: &BaselinesPage) -> List {
    let row = |one: &BaselineView| {
        let day = |at| clock(at).get(..16).unwrap_or_default().to_owned();
        let interval = title(one.from_ms, one.to_ms);
        vec![
            Cell::from(one.name.clone()),
            interval.into(),
            day(one.made_ms).into(),
            one.nodes.join(", ").into(),
            Cell::bytes(&[one.bytes]),
        ]
    };
    let rows = page.baselines.iter().map(row);
    let list = List::new(&["NAME", "INTERVAL", "SAVED", "ON", "SIZE"], &[], rows)
        .or_say("there are no baselines; `mainstay report baseline save NAME` keeps the last hour");
    page.missing.iter().fold(list, |list, missing| list.below(format!("not asked: {missing}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_cli::list::Form;

    #[test]
    fn baselines_are_listed_with_their_intervals_and_nodes() {
        let friday = BaselineView {
            name: "friday".into(),
            from_ms: 1_764_423_000_000,
            to_ms: 1_764_426_600_000,
            made_ms: 1_764_500_000_000,
            nodes: vec!["n1".into(), "n2".into()],
            bytes: 20_480,
        };
        let page = BaselinesPage { baselines: vec![friday], missing: vec!["n3: the node is dead".into()] };
        let expected = "NAME    INTERVAL                                       SAVED             ON      SIZE\nfriday  2025-11-29 13:30 to 2025-11-29 14:30 UTC (1h)  2025-11-30 10:53  n1, n2  20 KiB\nnot asked: n3: the node is dead";
        let text = |page: &BaselinesPage| list(page).text(Form::Table, None);
        assert_eq!(text(&page), expected);
        assert_eq!(list(&page).text(Form::Name, None), "friday");
        assert!(text(&BaselinesPage::default()).contains("mainstay report baseline save NAME"));
    }
}

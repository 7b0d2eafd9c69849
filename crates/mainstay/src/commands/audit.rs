//! `mainstay audit`.

use crate::cli::AuditArgs;
use crate::failure::{Code, Context, Outcome};
use crate::output::{self, Output};
use mainstay_api::rest::{AuditPage, AuditView};
use mainstay_client::Client;
use mainstay_types::clock::clock;

pub fn run(args: &AuditArgs, client: &Client, output: Output) -> Outcome<u8> {
    let page: AuditPage = client.get(&format!("/v1/audit?after={}&lines={}", args.after, args.lines))?;
    if args.json_lines {
        for record in &page.records {
            let text = serde_json::to_string(record);
            output::line(&text.or_fail(Code::Output, || "write a record as JSON".into())?);
        }
    } else {
        output.newest(args.lines, &page, |page| words(page, output::columns()))?;
    }
    Ok(0)
}

fn words(page: &AuditPage, columns: Option<usize>) -> String {
    let mut parts = Vec::new();
    if page.gap {
        parts.push("earlier records were dropped: the cluster keeps the last 1000".to_owned());
    }
    parts.extend(page.records.iter().map(|record| of_record(record, columns)));
    if page.records.is_empty() {
        parts.push("nobody has asked for a change".into());
    }
    parts.join("\n")
}

fn of_record(record: &AuditView, columns: Option<usize>) -> String {
    let login = record.login.as_ref().map(|login| format!(" (login {login})")).unwrap_or_default();
    let from = record.from.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
    let result = match (record.status, &record.code) {
        (None, _) => "result unknown".to_owned(),
        (Some(status), None) if status < 400 => "done".to_owned(),
        (Some(status), None) => format!("failed with {status}"),
        (Some(_), Some(code)) => format!("refused: {code}"),
    };
    let took = record.took_ms.map(|ms| format!(" after {ms} ms")).unwrap_or_default();
    let head = format!(
        "{:>6}  {}  {}{login}{from} on {}: {}: {result}{took}",
        record.number,
        clock(record.at_ms),
        record.who,
        record.node,
        record.action
    );
    let mut lines = vec![output::fold(&head, columns)];
    if !record.body.is_empty() {
        lines.push(output::fold(&format!("        {}", record.body), columns));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_types::Access;

    fn record() -> AuditView {
        AuditView {
            number: 7,
            at_ms: 0,
            who: "root".into(),
            from: None,
            login: Some("alice".into()),
            access: Access::Admin,
            node: "n1".into(),
            action: "PUT /v1/nodes/n2/cordon".into(),
            body: r#"{"on":true,"drain":false}"#.into(),
            request: "00000000000000ff".into(),
            took_ms: Some(12),
            status: Some(200),
            code: None,
        }
    }

    #[test]
    fn a_record_says_who_asked_for_what_and_how_it_ended() {
        let text = of_record(&record(), None);
        assert_eq!(
            text,
            "     7  1970-01-01 00:00:00.000Z  root (login alice) on n1: PUT /v1/nodes/n2/cordon: done after 12 ms\n        \
             {\"on\":true,\"drain\":false}"
        );
        let refused = AuditView { status: Some(422), code: Some(Code::UnknownNode), ..record() };
        assert!(of_record(&refused, None).contains(": refused: unknown-node after 12 ms"));
        let (who, from) = ("token ci".to_owned(), Some("192.0.2.9".to_owned()));
        let by_token = AuditView { who, from, login: None, ..record() };
        assert!(of_record(&by_token, None).contains("  token ci from 192.0.2.9 on n1: PUT "));
        let open = AuditView { status: None, took_ms: None, ..record() };
        assert!(of_record(&open, None).contains(": result unknown"));
    }

    #[test]
    fn a_page_is_readable_at_80_columns() {
        let long = AuditView { action: format!("DELETE /v1/resources/{}", "a".repeat(32)), ..record() };
        let page = AuditPage { records: vec![long], last: 7, gap: true };
        let shown = words(&page, Some(80));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        assert!(shown.contains("earlier records were dropped"), "{shown}");
        let none = AuditPage { records: Vec::new(), last: 0, gap: false };
        assert_eq!(words(&none, None), "nobody has asked for a change");
    }
}

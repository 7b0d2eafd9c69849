//! `mainstay cluster token …` and `mainstay cluster certificates`.

use super::authority;
use crate::cli::TokenCommand;
use crate::failure::{Code, Failure, Outcome};
use crate::output::{Output, table};
use mainstay_api::rest::{Accepted, CertificatesView, TokenCreate, TokenMade, TokenStatus, TokenView};
use mainstay_cli::list::List;
use mainstay_client::Client;
use mainstay_types::clock::clock;
use std::io::Read;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest text that is read as a token.
const TOKEN_BYTES_MAX: u64 = 4096;
/// Digits of a fingerprint that are shown.
const SHOWN_DIGITS: usize = 16;
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// The token of the command line, or of standard input.
pub fn given_token(token: String) -> Outcome<String> {
    if token != "-" {
        return Ok(token);
    }
    let mut text = String::new();
    let read = std::io::stdin().take(TOKEN_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| {
        Failure::new(Code::Io, format!("standard input: {error}"), "Give the token with --token.")
    })?;
    Ok(text)
}

pub fn make_token(client: &Client, node: &str, life_ms: Option<u64>) -> Outcome<TokenMade> {
    let request = TokenCreate { node: node.to_owned(), life_ms: life_ms.unwrap_or(DAY_MS) };
    Ok(client.post("/v1/cluster/tokens", &request)?)
}

/// The line that makes a machine the node of the token.
pub fn join_line(made: &TokenMade) -> String {
    format!("mainstay cluster join --peer {} --as {} --token {}", made.peer, made.node, made.token)
}

pub fn token(command: TokenCommand, client: &Client, output: Output) -> Outcome<()> {
    match command {
        TokenCommand::Create { node, ttl } => {
            let made = make_token(client, &node, Some(ttl))?;
            output.result(&made, |made| {
                let left = left_words(made.until_ms, now_ms());
                format!(
                    "token {} for {}, {left}; run on that machine:\n  {}",
                    made.id,
                    made.node,
                    join_line(made)
                )
            })
        }
        TokenCommand::List => {
            let tokens: Vec<TokenView> = client.get("/v1/cluster/tokens")?;
            output.list(&tokens, |tokens| tokens_list(tokens, now_ms()))
        }
        TokenCommand::Revoke { id } => {
            let accepted: Accepted = client.delete(&format!("/v1/cluster/tokens/{}", checked_id(&id)?))?;
            output.result(&accepted, |accepted| accepted.message.clone())
        }
    }
}

/// The text becomes a part of a path.
fn checked_id(id: &str) -> Outcome<&str> {
    if id.len() == 16 && id.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Ok(id);
    }
    let message = format!("`{id}` is not the public half of a token");
    Err(Failure::new(Code::UnknownToken, message, "See `mainstay cluster token list`."))
}

pub(super) fn tokens_list(tokens: &[TokenView], now_ms: u64) -> List {
    let row = |token: &TokenView| {
        let status = match token.status {
            TokenStatus::Open => left_words(token.until_ms, now_ms),
            TokenStatus::Used => "used".to_owned(),
            TokenStatus::Revoked => "revoked".to_owned(),
            TokenStatus::Ended => "ended".to_owned(),
            TokenStatus::Superseded => "of an earlier authority".to_owned(),
        };
        vec![token.id.clone(), token.node.clone(), status, clock(token.made_ms), clock(token.until_ms)]
    };
    List::new(&["ID", "NODE", "STATUS"], &["MADE", "ENDS"], tokens.iter().map(row))
}

pub fn certificates(client: &Client, output: Output) -> Outcome<()> {
    let view: CertificatesView = client.get("/v1/cluster/certificates")?;
    output.result(&view, |view| certificates_words(view, now_ms()))
}

fn certificates_words(view: &CertificatesView, now_ms: u64) -> String {
    let mut lines = authority::lines(view, now_ms);
    let rows: Vec<Vec<String>> = view
        .nodes
        .iter()
        .map(|node| {
            let until = node.until_ms.map_or("none yet".to_owned(), |until_ms| left_words(until_ms, now_ms));
            let authority = node.authority.map_or(String::new(), |number| number.to_string());
            vec![node.node.clone(), until, authority, shortened(&node.key)]
        })
        .collect();
    lines.push(table(&["NODE", "CERTIFICATE", "AUTHORITY", "KEY"], &rows));
    lines.join("\n")
}

/// The beginning of a fingerprint, by which people compare two of them; `--json` shows all of it.
pub(super) fn shortened(fingerprint: &str) -> String {
    format!("{}…", fingerprint.chars().take(SHOWN_DIGITS).collect::<String>())
}

/// A span of time in words, to the nearest minute, hour or day: what was made for 90 days a moment
/// ago is good for 90 days.
pub(super) fn span_words(ms: u64) -> String {
    let nearest = |unit_ms: u64| ms.saturating_add(unit_ms / 2) / unit_ms;
    match ms / 60_000 {
        0..=119 => format!("{} min", nearest(60_000)),
        120..=2879 => format!("{} h", nearest(3_600_000)),
        _ => format!("{} days", nearest(86_400_000)),
    }
}

/// The time until an end in words.
pub(super) fn left_words(until_ms: u64, now_ms: u64) -> String {
    let (left_ms, is_over) = match until_ms.checked_sub(now_ms) {
        Some(left_ms) => (left_ms, false),
        None => (now_ms - until_ms, true),
    };
    let words = span_words(left_ms);
    if is_over { format!("ended {words} ago") } else { format!("good for {words}") }
}

pub(super) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_api::rest::{AuthorityView, CertificateView};

    #[test]
    fn the_line_for_a_machine_can_be_pasted() {
        let made = TokenMade {
            id: "00c0ffee00c0ffee".into(),
            node: "n2".into(),
            token: "mst_join_x".into(),
            until_ms: 0,
            peer: "192.0.2.11:7400".into(),
        };
        assert_eq!(
            join_line(&made),
            "mainstay cluster join --peer 192.0.2.11:7400 --as n2 --token mst_join_x"
        );
    }

    #[test]
    fn certificates_are_shown_with_their_ends() {
        let node = |name: &str, until_ms| CertificateView {
            node: name.into(),
            key: "ab".repeat(32),
            until_ms,
            authority: until_ms.map(|_| 1),
        };
        let fingerprint = "cd".repeat(32);
        let authorities = vec![AuthorityView { number: 1, issues: true, phase: None, fingerprint }];
        let nodes = vec![node("n1", Some(DAY_MS * 31)), node("n2", Some(DAY_MS - 60_000)), node("n3", None)];
        let text = certificates_words(&CertificatesView { authorities, nodes, rotation: None }, DAY_MS);
        for words in
            ["authority 1 gives certificates: cdcd", "good for 30 days", "ended 1 min ago", "none yet"]
        {
            assert!(text.contains(words), "{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn only_the_public_half_of_a_token_is_asked_for() {
        assert!(checked_id("00c0ffee00C0FFEE").is_ok());
        for bad in ["", "00c0ffee00c0ffe", "00c0ffee00c0ffee0", "../../../v1/statu"] {
            assert!(checked_id(bad).is_err(), "{bad}");
        }
    }
}

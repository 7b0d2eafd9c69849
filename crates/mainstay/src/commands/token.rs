//! `mainstay token …`.

use super::identities::{left_words, now_ms};
use crate::cli::ApiTokenCommand;
use crate::connect::checked_name;
use crate::failure::Outcome;
use crate::output::{self, Output};
use mainstay_api::rest::{Accepted, ApiTokenCreate, ApiTokenMade, ApiTokenView, AuthoritiesView, DAY_MS};
use mainstay_cli::list::List;
use mainstay_client::Client;
use mainstay_types::clock::clock;

pub fn run(command: ApiTokenCommand, client: &Client, output: Output) -> Outcome<u8> {
    match command {
        ApiTokenCommand::Create { name, scope, days } => {
            let request = ApiTokenCreate { name, access: scope, life_ms: days * DAY_MS };
            let made: ApiTokenMade = client.post("/v1/tokens", &request)?;
            // Standard output has the token alone, so that it can go into a file.
            output::say(&made_words(&made, now_ms()));
            output.result(&made, |made| made.token.clone())?;
        }
        ApiTokenCommand::List => {
            let tokens: Vec<ApiTokenView> = client.get("/v1/tokens")?;
            output.list(&tokens, |tokens| tokens_list(tokens, now_ms()))?;
        }
        ApiTokenCommand::Revoke { name } => {
            let path = format!("/v1/tokens/{}", checked_name(&name)?);
            let accepted: Accepted = client.delete(&path)?;
            output.result(&accepted, |accepted| accepted.message.clone())?;
        }
        ApiTokenCommand::Authority => {
            let authorities: AuthoritiesView = client.get("/v1/authorities")?;
            output.result(&authorities, |all| all.certificates.concat().trim_end().to_owned())?;
        }
    }
    Ok(0)
}

fn made_words(made: &ApiTokenMade, now_ms: u64) -> String {
    let ApiTokenMade { name, access, until_ms, .. } = made;
    let left = left_words(*until_ms, now_ms);
    format!("token {name} with the right `{access}`, {left}; it is not shown again:")
}

pub(super) fn tokens_list(tokens: &[ApiTokenView], now_ms: u64) -> List {
    let row = |token: &ApiTokenView| {
        let used = token.used_ms.map_or("never".to_owned(), |used_ms| ago_words(used_ms, now_ms));
        vec![
            token.name.clone(),
            token.access.to_string(),
            left_words(token.until_ms, now_ms),
            used,
            token.id.clone(),
            clock(token.made_ms),
            clock(token.until_ms),
        ]
    };
    let list =
        List::new(&["NAME", "RIGHT", "STATUS", "LAST USED"], &["ID", "MADE", "ENDS"], tokens.iter().map(row));
    list.or_say("there are no tokens of the API")
}

/// A use is noted once an hour.
fn ago_words(used_ms: u64, now_ms: u64) -> String {
    match now_ms.saturating_sub(used_ms) / 3_600_000 {
        0 => "in the last hour".to_owned(),
        hours @ 1..=47 => format!("{hours} h ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_cli::list::Form;
    use mainstay_types::Access;

    #[test]
    fn tokens_are_shown_with_their_ends_and_uses() {
        let token = |name: &str, until_ms, used_ms| ApiTokenView {
            name: name.into(),
            id: "00c0ffee00c0ffee".into(),
            access: Access::Operate,
            made_ms: 0,
            until_ms,
            ended: false,
            used_ms,
        };
        let tokens = [
            token("ci", DAY_MS * 100, Some(DAY_MS * 10 - 1)),
            token(&"n".repeat(32), DAY_MS * 9, Some(DAY_MS * 9)),
            token("new", DAY_MS * 11, None),
        ];
        let text = tokens_list(&tokens, DAY_MS * 10).text(Form::Table, None);
        for words in
            ["operate", "good for 90 days", "ended 24 h ago", "in the last hour", "24 h ago", "never"]
        {
            assert!(text.contains(words), "{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert_eq!(ago_words(0, DAY_MS * 10), "10 days ago");
    }

    #[test]
    fn the_words_about_a_new_token_do_not_have_it() {
        let made = ApiTokenMade {
            name: "ci".into(),
            token: "mst_api_x".into(),
            access: Access::Read,
            until_ms: DAY_MS * 90,
        };
        let words = made_words(&made, 700);
        assert!(words.contains("token ci with the right `read`, good for 90 days"), "{words}");
        assert!(!words.contains("mst_api_"), "{words}");
    }
}

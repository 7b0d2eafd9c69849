//! `mainstay token`: tokens by which people and programs use the API from other machines.

use clap::Subcommand;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use mainstay_api::rest::{API_TOKEN_DAYS, API_TOKEN_DAYS_MAX};
use mainstay_cli::list::form_arg;
use mainstay_types::Access;

#[derive(Subcommand, Debug)]
pub enum ApiTokenCommand {
    /// Make a token, and print it. It is shown once: the cluster keeps a hash of it.
    Create {
        /// Name of the token, which the audit log shows.
        #[arg(value_name = "NAME")]
        name: String,
        /// Right of the holder. metrics: read metrics, and nothing else. read, operate, admin: the
        /// same as a member of the group with this right. A holder of admin may run programs as
        /// root.
        #[arg(long, value_name = "SCOPE", value_parser = scope())]
        scope: Access,
        /// Days for which the token is good, at most 366.
        #[arg(long, default_value_t = API_TOKEN_DAYS, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=API_TOKEN_DAYS_MAX))]
        days: u64,
    },
    /// List the tokens with their ends and their last uses.
    #[command(arg = form_arg())]
    List,
    /// Make a token useless at once, on all nodes.
    Revoke {
        /// Name of the token.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Print the certificates of the cluster's authorities, PEM, for --ca on another machine.
    Authority,
}

fn scope() -> impl TypedValueParser<Value = Access> {
    PossibleValuesParser::new(Access::ALL.map(Access::word)).map(|word| {
        let found = Access::ALL.into_iter().find(|access| access.word() == word);
        // The parser lets no other word through.
        found.unwrap_or(Access::Metrics)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn a_token_has_a_scope_and_a_bounded_life() {
        let read = |words: &[&str]| {
            let line = ["mainstay", "token", "create"].iter().chain(words);
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Token(ApiTokenCommand::Create { scope, days, .. })) => Some((scope, days)),
                Ok(other) => panic!("{other:?}"),
                Err(_) => None,
            }
        };
        assert_eq!(read(&["ci", "--scope", "operate"]), Some((Access::Operate, 90)));
        assert_eq!(read(&["ci", "--scope", "metrics", "--days", "366"]), Some((Access::Metrics, 366)));
        for words in [
            &["ci"][..],
            &["--scope", "read"],
            &["ci", "--scope", "root"],
            &["ci", "--scope", "read", "--days", "0"],
            &["ci", "--scope", "read", "--days", "367"],
        ] {
            assert_eq!(read(words), None, "{words:?}");
        }
    }
}

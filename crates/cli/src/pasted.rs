//! Commands in texts for people, so that they work when they are pasted: an agent names them as
//! they are typed on its own node, and the user may have asked it by `--lab`.
//!
//! Guarantees
//! - Only a command between backquotes, or on an indented line of its own, is changed, and only
//!   once.
//! - A command that asks an agent gets the `--lab` and `--node` of the user's own command. A
//!   command about the machine on which it runs is run inside a node of the lab.

use crate::connect::Target;
use std::sync::OnceLock;

/// The lab of the user's command, and the node that it named.
static LAB: OnceLock<(String, Option<String>)> = OnceLock::new();

/// Verbs about the machine on which they run, by their first words.
const OF_THE_MACHINE: [&str; 14] = [
    "agent",
    "check atomic",
    "cluster init",
    "cluster join",
    "cluster recover",
    "cluster restore",
    "config",
    "doctor",
    "engine",
    "inspect",
    "node upgrade",
    "probe",
    "router",
    "snapshot clone",
];
/// Commands that name their lab themselves, or need none.
const OF_NO_AGENT: [&str; 4] = ["bench", "generate", "help", "lab"];

/// Notes the agent that the user's command names. To be called once, before anything is printed.
pub fn asks(target: &Target) {
    if let Some(lab) = &target.lab {
        let _ = LAB.set((lab.clone(), target.node.clone()));
    }
}

/// A text with its commands as this user has to type them.
pub(crate) fn for_this_user(text: &str) -> String {
    match LAB.get() {
        Some((lab, node)) => in_lab(text, lab, node.as_deref()),
        None => text.to_owned(),
    }
}

fn in_lab(text: &str, lab: &str, node: Option<&str>) -> String {
    let parts = text.split('`').enumerate().map(|(at, part)| match part.strip_prefix("mainstay ") {
        Some(words) if at % 2 == 1 => command(words, lab, node).unwrap_or_else(|| part.to_owned()),
        _ => part.to_owned(),
    });
    let quoted = parts.collect::<Vec<_>>().join("`");
    let lines = quoted.split('\n').map(|line| match line.strip_prefix("  mainstay ") {
        Some(words) => command(words, lab, node).map_or_else(|| line.to_owned(), |line| format!("  {line}")),
        None => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The command with these words after the program's name. `None` if it stays as it is.
fn command(words: &str, lab: &str, node: Option<&str>) -> Option<String> {
    let begins = |with: &&str| {
        words.strip_prefix(*with).is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
    };
    if words.starts_with('-') || OF_NO_AGENT.iter().any(begins) {
        return None;
    }
    if OF_THE_MACHINE.iter().any(begins) {
        return Some(format!("mainstay lab exec NODE --name {lab} -- mainstay {words}"));
    }
    let node = node.map(|node| format!(" --node {node}")).unwrap_or_default();
    Some(format!("mainstay --lab {lab}{node} {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_in_advice_names_the_lab_of_the_command_that_was_typed() {
        let of = |text: &str| in_lab(text, "west", None);
        assert_eq!(
            of("run `mainstay service move db --to n2`, or `mainstay status`"),
            "run `mainstay --lab west service move db --to n2`, or `mainstay --lab west status`"
        );
        assert_eq!(
            in_lab("see `mainstay operation show 7`", "west", Some("n2")),
            "see `mainstay --lab west --node n2 operation show 7`"
        );
        assert_eq!(
            of("on n1: Run `mainstay check atomic /srv/db --page 16384`."),
            "on n1: Run `mainstay lab exec NODE --name west -- mainstay check atomic /srv/db --page 16384`."
        );
        assert_eq!(
            of("see `mainstay check`; `mainstay node upgrade` there"),
            "see `mainstay --lab west check`; `mainstay lab exec NODE --name west -- mainstay node upgrade` there"
        );
        assert_eq!(
            of("run here:\n  mainstay cluster token create NODE\n  mainstay cluster join --as n4"),
            "run here:\n  mainstay --lab west cluster token create NODE\n  \
             mainstay lab exec NODE --name west -- mainstay cluster join --as n4"
        );
    }

    #[test]
    fn a_command_that_names_its_lab_and_a_text_that_is_no_command_stay_as_they_are() {
        for text in [
            "`mainstay lab start n1 --name west` returns it",
            "`mainstay --lab east status`",
            "`fsfreeze --unfreeze /srv` on n1, mainstay status, `mainstay`",
            "what is `odd, mainstay status",
        ] {
            assert_eq!(in_lab(text, "west", None), text);
        }
        let once = in_lab("`mainstay status`, `mainstay doctor`", "west", None);
        assert_eq!(in_lab(&once, "west", None), once, "it is changed once");
    }
}

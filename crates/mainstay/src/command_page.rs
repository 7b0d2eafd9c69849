//! The reference page of the command line is written from its description.

use crate::cli::Cli;
use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory};
use std::fmt::Write as _;

const HEAD: &str = "# Command line: reference

For operators who look for a command or an option. This page is made from the program, and says the
same as `--help`. [status.md](status.md#exit-codes) explains exit codes, and how commands wait.
";

/// Words of a help text in one line of Markdown.
fn words(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace('|', "\\|").replace('<', "&lt;").replace('*', "\\*")
}

fn sentence(text: &str) -> String {
    let ends = text.is_empty() || text.ends_with(['.', ':', ')']);
    if ends { text.to_owned() } else { format!("{text}.") }
}

fn row(arg: &Arg, page: &mut String) {
    let mut meaning = sentence(&words(arg.get_long_help().or_else(|| arg.get_help())));
    let is_switch = arg.get_num_args().is_some_and(|number| number.max_values() == 0);
    let values = arg.get_possible_values();
    let names: Vec<String> =
        values.iter().filter(|one| !one.is_hide_set()).map(|one| format!("`{}`", one.get_name())).collect();
    if !names.is_empty() && !is_switch {
        let _ = write!(meaning, " One of {}.", names.join(", "));
    }
    let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if !default.is_empty() && !is_switch {
        let _ = write!(meaning, " Default: `{}`.", default.join(","));
    }
    if let Some(variable) = arg.get_env() {
        let _ = write!(meaning, " Environment: `{}`.", variable.to_string_lossy());
    }
    let name = arg.to_string().replace('|', "\\|");
    let _ = writeln!(page, "| `{name}` | {} |", meaning.trim());
}

/// Options that every command takes are in a table of their own.
fn section(command: &Command, path: &str, depth: usize, page: &mut String) {
    let _ = write!(page, "\n{} {path}\n\n", "#".repeat(depth));
    let about = sentence(&words(command.get_long_about().or_else(|| command.get_about())));
    if !about.is_empty() {
        let _ = writeln!(page, "{about}");
    }
    let own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
    let args: Vec<&Arg> = command.get_arguments().filter(own).collect();
    if !args.is_empty() {
        page.push_str("\n| argument or option | meaning |\n|---|---|\n");
        args.into_iter().for_each(|arg| row(arg, page));
    }
    for inner in command.get_subcommands().filter(shown) {
        section(inner, &format!("{path} {}", inner.get_name()), (depth + 1).min(4), page);
    }
}

fn shown(command: &&Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

fn page() -> String {
    let mut cli = Cli::command();
    cli.build();
    let mut page = HEAD.to_owned();
    page.push_str("\n## Options of every command\n\n| option | meaning |\n|---|---|\n");
    cli.get_arguments()
        .filter(|arg| arg.is_global_set() && !arg.is_hide_set())
        .for_each(|arg| row(arg, &mut page));
    for command in cli.get_subcommands().filter(shown) {
        section(command, &format!("mainstay {}", command.get_name()), 2, &mut page);
    }
    page
}

/// `MAINSTAY_BLESS=1` writes the page anew.
#[test]
fn the_manual_has_every_command_and_option_as_the_program_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/command-line.md");
    let written = page();
    assert!(written.contains("### mainstay service create") && written.contains("`--accept-loss`"));
    if std::env::var_os("MAINSTAY_BLESS").is_some() {
        std::fs::write(path, written).expect("the page can be written");
        return;
    }
    let found = std::fs::read_to_string(path).expect("the page is there");
    assert!(
        found == written,
        "docs/command-line.md is not as the program has it: write it anew with MAINSTAY_BLESS=1"
    );
}

//! Manual pages and completions, made of the description of the command line.

use crate::cli::{Cli, GenerateCommand};
use crate::failure::{Code, Context, Outcome};
use clap::CommandFactory;
use clap_complete::Shell;

pub fn run(command: &GenerateCommand) -> Outcome<()> {
    match command {
        GenerateCommand::Man { directory } => clap_mangen::generate_to(Cli::command(), directory)
            .or_fail(Code::BadDirectory, || format!("write manual pages to {}", directory.display())),
        GenerateCommand::Completions { directory } => {
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                clap_complete::generate_to(shell, &mut Cli::command(), "mainstay", directory)
                    .or_fail(Code::BadDirectory, || {
                        format!("write completions to {}", directory.display())
                    })?;
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Command;
    use std::fs;

    /// A page of the manual for each command that is not hidden, which has all of its options.
    fn pages(command: &Command, name: &str, directory: &std::path::Path) -> usize {
        let page = fs::read_to_string(directory.join(format!("{name}.1")));
        let page = page.unwrap_or_else(|error| panic!("{name}: {error}"));
        for option in command.get_arguments().filter(|option| !option.is_hide_set()) {
            let Some(long) = option.get_long() else { continue };
            let written = format!("--{long}").replace('-', "\\-");
            assert!(page.contains(&written), "{name} has no {written}");
        }
        let below = command.get_subcommands().filter(|command| !command.is_hide_set());
        1 + below
            .map(|command| pages(command, &format!("{name}-{}", command.get_name()), directory))
            .sum::<usize>()
    }

    #[test]
    fn every_command_has_a_manual_page_and_completions() {
        let directory = tempfile::tempdir().unwrap();
        run(&GenerateCommand::Man { directory: directory.path().into() }).unwrap();
        let cli = Cli::command();
        assert!(pages(&cli, "mainstay", directory.path()) > 50);
        run(&GenerateCommand::Completions { directory: directory.path().into() }).unwrap();
        for file in ["mainstay.bash", "_mainstay", "mainstay.fish"] {
            let text = fs::read_to_string(directory.path().join(file)).unwrap();
            for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(text.contains(command.get_name()), "{file} has no {}", command.get_name());
            }
        }
        let missing = directory.path().join("missing");
        let refused = run(&GenerateCommand::Man { directory: missing.clone() }).unwrap_err();
        assert!(format!("{refused:?}").contains("missing"), "{refused:?}");
    }
}

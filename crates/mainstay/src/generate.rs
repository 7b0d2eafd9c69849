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

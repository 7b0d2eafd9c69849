//! `mainstay lab` and `mainstay bench`: thin fronts of the program `mainstay-lab`, which a server
//! need not have. A front hands all its arguments over and becomes that program.

use crate::cli::{Cli, Command};
use crate::failure::{Code, Failure, exit};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::process;

const PROGRAM: &str = "mainstay-lab";

#[derive(Args, Debug)]
pub struct FrontArgs {
    // A word that begins with a dash is for the other command line, unless it is an option of all
    // commands.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    pub words: Vec<OsString>,
}

/// A command that is another program's.
pub struct Front {
    /// Words that begin the usage in the program's help.
    shown: &'static str,
    /// Arguments of the program.
    pub words: Vec<OsString>,
}

impl Front {
    /// The front that the command is. Options that every command has may stand before its words.
    pub fn of(cli: &Cli, matches: &ArgMatches) -> Option<Self> {
        let (shown, verb, words) = match &cli.command {
            Command::Lab(args) => ("mainstay lab", None, &args.words),
            Command::Bench(args) => ("mainstay", Some("bench"), &args.words),
            _ => return None,
        };
        let target = &cli.target;
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let mut all: Vec<OsString> = Vec::new();
        all.extend(target.json.then(|| "--json".into()));
        if is_given("socket") {
            all.extend(["--socket".into(), target.socket.clone().into()]);
        }
        for (id, option, value) in [
            ("server", "--server", target.server.clone().map(OsString::from)),
            ("token_file", "--token-file", target.token_file.clone().map(OsString::from)),
            ("ca", "--ca", target.ca.clone().map(OsString::from)),
            ("fingerprint", "--fingerprint", target.fingerprint.clone().map(OsString::from)),
        ] {
            all.extend(value.filter(|_| is_given(id)).into_iter().flat_map(|value| [option.into(), value]));
        }
        for (option, value) in [("--lab", &target.lab), ("--node", &target.node)] {
            all.extend(value.iter().flat_map(|value| [option.into(), value.into()]));
        }
        all.extend(verb.map(OsString::from));
        all.extend(words.iter().cloned());
        Some(Self { shown, words: all })
    }

    /// The front of which `mainstay help` is asked.
    pub fn of_help(words: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut words = words.peekable();
        words.next().filter(|word| word == "help")?;
        let shown = match words.peek()?.to_str()? {
            "lab" => words.next().map(|_| "mainstay lab")?,
            "bench" => "mainstay",
            _ => return None,
        };
        Some(Self { shown, words: [OsString::from("help")].into_iter().chain(words).collect() })
    }

    /// Runs the program beside this one, else the one in the search path, in the place of this
    /// process. Returns only if there is none.
    pub fn become_program(self) -> Failure {
        let beside = std::env::current_exe().map(|own| own.with_file_name(PROGRAM));
        let beside = beside.ok().filter(|path| path.is_file());
        let program = beside.unwrap_or_else(|| PROGRAM.into());
        let error = process::Command::new(&program).arg0(self.shown).args(&self.words).exec();
        let message = match error.kind() {
            ErrorKind::NotFound => {
                format!("`{PROGRAM}` runs this command, and is neither beside `mainstay` nor in PATH")
            }
            _ => format!("cannot run {}: {error}", program.display()),
        };
        let remedy = format!("Put `{PROGRAM}` beside `mainstay`: `make build` makes both.");
        let failure = Failure::new(Code::LabProgramMissing, message, remedy);
        // Every other exit code of `lab exec` is that of the command inside the node.
        let is_exec = self.words.iter().take_while(|word| *word != "--").any(|word| word == "exec");
        if is_exec { failure.with_exit(exit::EXEC) } else { failure }
    }
}

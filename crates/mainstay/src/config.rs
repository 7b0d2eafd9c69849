//! The configuration file of a node: `/etc/mainstay/mainstay.toml`.
//!
//! Guarantees
//! - Each option of `mainstay engine` and `mainstay agent` is a key of the file, with the help, the
//!   default and the checks of the command line: there is no second list.
//! - An option of the command line wins over the environment, the environment over the file, the
//!   file over the default.
//! - A file with a mistake starts nothing and changes nothing. The message has line, column and
//!   what to do.
//! - At SIGHUP the file is read again. What can change in a running program does; for the rest the
//!   log says that it needs a restart.
//!
//! A file is read in two steps. [`File::parse`] makes [`Setting`]s of it and finds what is wrong
//! with each. [`complete`] then turns those that neither the command line nor the environment names
//! into words of the command line, so `clap` reads all of them in the same way.

use crate::cli::{Cli, ConfigCommand};
use crate::failure::{Code, Context, Failure, Outcome};
use crate::output::{Output, fold};
use clap::builder::Resettable;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory};
use std::collections::BTreeMap;
use std::error::Error;
use std::ffi::OsString;
use std::fmt::Write;
use std::io::ErrorKind as Io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// Place of the file if nothing else is said.
pub const PATH: &str = "/etc/mainstay/mainstay.toml";
/// Programs that read the file, and their tables in it.
const ROLES: [&str; 2] = ["engine", "agent"];
/// Columns of the comments in the file.
const COLUMNS: usize = 96;
/// Largest file, in bytes.
const BYTES_MAX: u64 = 1 << 20;
/// Keys that change in a running program.
const LIVE: [&str; 1] = ["log"];

/// A key of the file: an option of one role, or of both.
struct Key {
    /// Table that the key is in: empty for what both roles share.
    table: &'static str,
    arg: Arg,
}

impl Key {
    fn name(&self) -> &str {
        self.arg.get_id().as_str()
    }

    /// Name with its table.
    fn path(&self) -> String {
        path(self.table, self.name())
    }

    /// A role that has the option.
    fn role(&self) -> &'static str {
        if self.table.is_empty() { ROLES[0] } else { self.table }
    }

    fn is_switch(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::SetTrue | ArgAction::SetFalse)
    }

    fn is_list(&self) -> bool {
        matches!(self.arg.get_action(), ArgAction::Append)
    }

    fn option(&self) -> String {
        format!("--{}", self.arg.get_long().unwrap_or_default())
    }

    /// Value of the key in the file that `config default` prints.
    fn default(&self) -> String {
        if self.is_switch() {
            return "false".into();
        }
        let defaults: Vec<String> = self
            .arg
            .get_default_values()
            .iter()
            .map(|value| format!("{:?}", value.to_string_lossy()))
            .collect();
        match defaults.as_slice() {
            [one] if !self.is_list() => one.clone(),
            [] if !self.is_list() => {
                let name =
                    self.arg.get_value_names().and_then(|names| names.first().map(ToString::to_string));
                format!("{:?}", name.unwrap_or_else(|| "VALUE".into()))
            }
            all => format!("[{}]", all.join(", ")),
        }
    }

    /// A line that the file may have, for advice.
    fn example(&self) -> String {
        format!("{} = {}", self.name(), self.default())
    }
}

fn path(table: &str, name: &str) -> String {
    if table.is_empty() { name.to_owned() } else { format!("{table}.{name}") }
}

fn of_role(role: &str) -> Vec<Arg> {
    let cli = Cli::command();
    let role = cli.find_subcommand(role).expect("a role is a command");
    let is_key = |arg: &&Arg| arg.get_long().is_some() && arg.get_id() != "config";
    role.get_arguments().filter(is_key).cloned().collect()
}

/// All keys, those that both roles share first, in the order of the help.
fn keys() -> Vec<Key> {
    let [engine, agent] = ROLES.map(of_role);
    // Options of one name need not mean the same: each role listens somewhere else.
    let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
    let is_same = |one: &Arg, other: &Arg| one.get_id() == other.get_id() && help(one) == help(other);
    let is_in = |args: &[Arg], arg: &Arg| args.iter().any(|other| is_same(other, arg));
    let shared =
        engine.iter().filter(|arg| is_in(&agent, arg)).map(|arg| Key { table: "", arg: arg.clone() });
    let own = |table, args: &[Arg], other: &[Arg]| -> Vec<Key> {
        args.iter().filter(|arg| !is_in(other, arg)).map(|arg| Key { table, arg: arg.clone() }).collect()
    };
    shared.chain(own(ROLES[0], &engine, &agent)).chain(own(ROLES[1], &agent, &engine)).collect()
}

/// The file with all keys, each with its help and its default, commented out.
pub fn default_file() -> String {
    let mut text = format!(
        "# Configuration of Mainstay's engine and agent on this node. The usual place is {PATH}.\n#\n\
         # Each key is an option of `mainstay engine` or `mainstay agent`, with a default that is right for most\n\
         # nodes. To change one, remove the # before it. An option on the command line wins over the environment,\n\
         # and the environment over this file. Settings of the cluster and of resources are not here:\n\
         # `mainstay cluster settings`.\n#\n\
         # Check the file: `mainstay config check`. `systemctl reload` takes over `log`; a restart takes over all.\n\
         # Restarting the engine stops the services of this node, so move them away first.\n"
    );
    let mut table = "";
    for key in keys() {
        if key.table != table {
            table = key.table;
            let _ = write!(text, "\n[{table}]\n");
        }
        text.push('\n');
        for line in comment(&key).lines() {
            let _ = writeln!(text, "# {}", line.trim_start());
        }
        let _ = writeln!(text, "#{}", key.example());
    }
    text
}

fn comment(key: &Key) -> String {
    let help = key.arg.get_long_help().or(key.arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.trim().to_owned();
    if !help.ends_with(['.', ']']) {
        help.push('.');
    }
    let choices: Vec<String> =
        key.arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !choices.is_empty() && !key.is_switch() {
        let _ = write!(help, " Values: {}.", choices.join(", "));
    }
    if !key.is_switch() && key.arg.get_default_values().is_empty() && !help.to_lowercase().contains("default")
    {
        help += " Not set by default.";
    }
    let _ = write!(help, " Option: {}", key.option());
    if let Some(variable) = key.arg.get_env() {
        let _ = write!(help, ", environment: {}", variable.to_string_lossy());
    }
    fold(&format!("{help}."), Some(COLUMNS))
}

/// A mistake in the file.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Mistake {
    /// Counted from 1.
    pub line: usize,
    /// Counted from 1, in characters.
    pub column: usize,
    pub what: String,
    pub remedy: String,
}

impl std::fmt::Display for Mistake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

/// A key with its value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Table that the key is in.
    pub table: &'static str,
    pub name: String,
    /// Words of the command line that mean the same.
    pub words: Vec<String>,
    /// Value as the file has it.
    pub value: String,
    /// Where the key begins, in bytes.
    at: usize,
}

/// A configuration file without mistakes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct File {
    pub settings: Vec<Setting>,
}

struct Reader<'a> {
    text: &'a str,
    keys: Vec<Key>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn wrong(&mut self, at: usize, what: impl Into<String>, remedy: impl Into<String>) {
        let start = (0..=at.min(self.text.len())).rev().find(|at| self.text.is_char_boundary(*at));
        let before = &self.text[..start.unwrap_or_default()];
        let line = 1 + before.matches('\n').count();
        let column = 1 + before.rsplit('\n').next().unwrap_or_default().chars().count();
        self.mistakes.push(Mistake { line, column, what: what.into(), remedy: remedy.into() });
    }

    fn table(&mut self, table: &'static str, found: &DeTable<'_>, settings: &mut Vec<Setting>) {
        for (name, value) in found {
            let (at, name) = (name.span().start, name.get_ref().as_ref());
            let role = ROLES.into_iter().find(|role| *role == name);
            if let Some(role) = role.filter(|_| table.is_empty()) {
                match value.get_ref() {
                    DeValue::Table(inner) => self.table(role, inner, settings),
                    _ => self.wrong(
                        at,
                        format!("`{role}` is a table"),
                        format!("Write [{role}] on a line of its own, and its keys below."),
                    ),
                }
                continue;
            }
            let Some(key) = self.keys.iter().position(|key| key.table == table && key.name() == name) else {
                let remedy = self.instead(table, name);
                self.wrong(at, format!("there is no key `{}`", path(table, name)), remedy);
                continue;
            };
            match words(&self.keys[key], value) {
                Ok(words) => settings.push(Setting {
                    table,
                    name: name.to_owned(),
                    words,
                    value: self.text.get(value.span()).unwrap_or_default().to_owned(),
                    at,
                }),
                Err((span, what)) => {
                    let key = &self.keys[key];
                    let (path, example) = (key.path(), key.example());
                    self.wrong(span.start, format!("`{path}` {what}"), format!("Write it like `{example}`."));
                }
            }
        }
    }

    /// Returns the remedy for a name that is no key of `table`.
    fn instead(&self, table: &str, name: &str) -> String {
        let plain = name.replace('-', "_").to_lowercase();
        let role = ROLES.into_iter().find(|role| mainstay_ha::distance(&plain, role) <= 2);
        if let Some(role) = role.filter(|_| table.is_empty()) {
            return format!("Did you mean [{role}]?");
        }
        let near =
            self.keys.iter().map(|key| (mainstay_ha::distance(&plain, key.name()), key.table != table, key));
        let near = near.min_by_key(|(distance, elsewhere, _)| (*distance, *elsewhere));
        match near {
            Some((0, true, key)) if key.table.is_empty() => {
                format!("`{}` is for engine and agent: write it above the first table.", key.name())
            }
            Some((0, true, key)) => format!("Write it below [{}].", key.table),
            Some((0..=2, _, key)) => {
                format!("Did you mean `{}`? `mainstay config default` prints all keys.", key.path())
            }
            _ => "Correct the name, or remove the line. `mainstay config default` prints all keys.".into(),
        }
    }
}

/// The words that mean the same on the command line. An error is what is wrong with which part.
fn words(key: &Key, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, (Range<usize>, String)> {
    let kind = |value: &DeValue<'_>| match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let plain = |value: &Spanned<DeValue<'_>>| match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        other => Err((value.span(), format!("is {}, and has to be a text in quotes", kind(other)))),
    };
    let option = key.option();
    match value.get_ref() {
        DeValue::Boolean(true) if key.is_switch() => Ok(vec![option]),
        DeValue::Boolean(false) if key.is_switch() => Ok(vec![]),
        other if key.is_switch() => {
            Err((value.span(), format!("is {}, and has to be true or false", kind(other))))
        }
        DeValue::Array(list) if key.is_list() => {
            list.iter().map(|one| plain(one).map(|text| format!("{option}={text}"))).collect()
        }
        _ => Ok(vec![format!("{option}={}", plain(value)?)]),
    }
}

/// The command line without what the environment says.
fn bare() -> Command {
    Cli::command().mut_subcommands(|command| command.mut_args(|arg| arg.env(Resettable::Reset)))
}

fn accepts<'a>(role: &'a str, words: impl Iterator<Item = &'a String>) -> Result<(), clap::Error> {
    let line = ["mainstay", role].into_iter().chain(words.map(String::as_str));
    bare().try_get_matches_from(line).map(drop)
}

/// Words of `clap` about a value, without the form of the command line.
fn reason(error: &clap::Error) -> String {
    let choices = match error.get(ContextKind::ValidValue) {
        Some(ContextValue::Strings(all)) => all.join(", "),
        _ => String::new(),
    };
    match error.source() {
        Some(source) => format!("is not usable: {source}"),
        None if choices.is_empty() => "is not usable".into(),
        None => format!("has to be one of {choices}"),
    }
}

/// The options that `clap` misses, as keys.
fn missing(error: &clap::Error) -> Vec<String> {
    let named = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::Strings(all)) => all.clone(),
        Some(ContextValue::String(one)) => vec![one.clone()],
        _ => vec![],
    };
    named
        .iter()
        .filter_map(|word| Some(word.strip_prefix("--")?.split([' ', '=']).next()?.replace('-', "_")))
        .collect()
}

impl File {
    /// # Errors
    /// Everything that is wrong with the file, in the order of its lines. `whole`: also what is
    /// only wrong if neither command line nor environment adds to it.
    pub fn parse(text: &str, whole: bool) -> Result<Self, Vec<Mistake>> {
        let mut reader = Reader { text, keys: keys(), mistakes: vec![] };
        let document = match DeTable::parse(text) {
            Ok(document) => document,
            Err(error) => {
                let what = error.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
                reader.wrong(
                    error.span().map_or(0, |span| span.start),
                    format!("it is no TOML: {what}"),
                    "Correct the line: texts need quotes, each key a line of its own, and tables a [header].",
                );
                return Err(reader.mistakes);
            }
        };
        let mut settings = Vec::new();
        reader.table("", document.get_ref(), &mut settings);
        settings.sort_by_key(|setting| setting.at);
        for setting in &settings {
            let Some(key) =
                reader.keys.iter().find(|key| key.table == setting.table && key.name() == setting.name)
            else {
                continue;
            };
            let (path, example) = (key.path(), key.example());
            let Err(error) = accepts(key.role(), setting.words.iter()) else { continue };
            if error.kind() != ErrorKind::MissingRequiredArgument {
                let what = format!("`{path}` {}: {}", reason(&error), setting.value);
                reader.wrong(setting.at, what, format!("Write it like `{example}`."));
            } else if whole {
                let of_role =
                    settings.iter().filter(|other| other.table.is_empty() || other.table == key.role());
                if accepts(key.role(), of_role.clone().flat_map(|other| &other.words)).is_ok() {
                    continue;
                }
                let lacks: Vec<String> = missing(&error)
                    .into_iter()
                    .filter(|name| !of_role.clone().any(|other| other.name == *name))
                    .collect();
                if lacks.is_empty() {
                    continue;
                }
                let lacks = lacks.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let remedy = format!("Add {lacks} to [{}], or remove `{}`.", key.role(), setting.name);
                reader.wrong(setting.at, format!("`{path}` is of no use without {lacks}"), remedy);
            }
        }
        if reader.mistakes.is_empty() {
            Ok(Self { settings })
        } else {
            reader.mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
            Err(reader.mistakes)
        }
    }

    /// The settings of a role.
    fn of<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a Setting> {
        self.settings.iter().filter(move |setting| setting.table.is_empty() || setting.table == role)
    }
}

fn read_text(path: &Path) -> std::io::Result<String> {
    if path.metadata()?.len() > BYTES_MAX {
        return Err(std::io::Error::other(format!("it has more than {BYTES_MAX} bytes")));
    }
    std::fs::read_to_string(path)
}

/// Reads the file of a node. `None` if there is none at the usual place.
fn read(path: &Path, is_named: bool) -> Outcome<Option<File>> {
    let text = match read_text(path) {
        Ok(text) => text,
        Err(error) if error.kind() == Io::NotFound && !is_named => return Ok(None),
        Err(error) => {
            let remedy = "Name another file with --config, or make one: `mainstay config default`.";
            let what = format!("cannot read the configuration {}: {error}", path.display());
            return Err(Failure::new(Code::BadConfiguration, what, remedy));
        }
    };
    File::parse(&text, false).map(Some).map_err(|mistakes| refused(path, &mistakes))
}

/// The value of a key in the file at the usual place, or of what `MAINSTAY_CONFIG` names.
///
/// # Errors
/// When the file has a mistake.
pub fn value(role: &str, name: &str) -> Outcome<Option<String>> {
    let named = std::env::var_os("MAINSTAY_CONFIG").map(PathBuf::from);
    let file = read(named.as_deref().unwrap_or(Path::new(PATH)), named.is_some())?.unwrap_or_default();
    let found =
        file.of(role).find(|setting| setting.name == name).and_then(|setting| setting.words.first().cloned());
    Ok(found.and_then(|word| word.split_once('=').map(|(_, value)| value.to_owned())))
}

fn refused(path: &Path, mistakes: &[Mistake]) -> Failure {
    let first = mistakes.first().map(|mistake| mistake.remedy.clone()).unwrap_or_default();
    let all: Vec<String> = mistakes.iter().map(|mistake| format!("{}, {mistake}", path.display())).collect();
    let remedy = format!("{first} `mainstay config check {}` checks the file.", path.display());
    Failure::new(Code::BadConfiguration, all.join("\n"), remedy)
}

/// File and settings that a running role was started with.
#[derive(Clone, Debug)]
pub struct Started {
    role: &'static str,
    path: PathBuf,
    is_named: bool,
    /// Settings of the file, by name.
    settings: BTreeMap<String, Setting>,
    /// Names of the keys over which command line or environment win.
    overridden: Vec<String>,
}

/// Reads the file of a role that is to run, and the command line again with what the file adds. The
/// answer is `None` for other commands.
///
/// # Errors
/// When the file cannot be read or has a mistake.
pub fn complete(
    words: &[OsString],
    first: Result<ArgMatches, clap::Error>,
) -> Outcome<(ArgMatches, Option<Started>)> {
    let matches = match first {
        Ok(matches) => matches,
        // A missing option may be in the file.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            match Cli::command().ignore_errors(true).try_get_matches_from(words) {
                Ok(matches) if matches.subcommand_name().is_some_and(|name| ROLES.contains(&name)) => matches,
                _ => error.exit(),
            }
        }
        Err(error) => error.exit(),
    };
    let role = ROLES.into_iter().find(|role| matches.subcommand_name() == Some(*role));
    let Some((role, own)) = role.and_then(|role| Some((role, matches.subcommand_matches(role)?))) else {
        return Ok((matches, None));
    };
    let path = own.get_one::<PathBuf>("config").cloned().unwrap_or_else(|| PATH.into());
    let is_named = own.value_source("config").is_some_and(|source| source != ValueSource::DefaultValue);
    let file = read(&path, is_named)?.unwrap_or_default();
    let wins = |name: &str| {
        matches!(own.value_source(name), Some(ValueSource::CommandLine | ValueSource::EnvVariable))
    };
    let overridden: Vec<String> =
        of_role(role).iter().map(|arg| arg.get_id().to_string()).filter(|name| wins(name)).collect();
    let added = file
        .of(role)
        .filter(|setting| !overridden.contains(&setting.name))
        .flat_map(|setting| &setting.words);
    let all = words.iter().cloned().chain(added.map(OsString::from));
    let matches = Cli::command().try_get_matches_from(all).unwrap_or_else(|error| error.exit());
    let settings = file.of(role).map(|setting| (setting.name.clone(), setting.clone())).collect();
    Ok((matches, Some(Started { role, path, is_named, settings, overridden })))
}

/// Meaning of a changed file for a running program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// The new value of `log`, if it changed and counts. `None` inside: the default.
    pub log: Option<Option<String>>,
    /// Keys that changed and need a restart.
    pub restart: Vec<String>,
}

impl Started {
    /// Reads the file again and compares it with what counts.
    ///
    /// # Errors
    /// When the file cannot be read or has a mistake. Then what counted before still counts.
    pub fn reload(&mut self) -> Outcome<Changes> {
        let file = read(&self.path, self.is_named)?.unwrap_or_default();
        Ok(self.compare(&file))
    }

    fn compare(&mut self, file: &File) -> Changes {
        let new: BTreeMap<&str, &Setting> =
            file.of(self.role).map(|setting| (setting.name.as_str(), setting)).collect();
        let mut changes = Changes::default();
        for key in keys().iter().filter(|key| key.table.is_empty() || key.table == self.role) {
            let name = key.name();
            let (was, is) = (self.settings.get(name), new.get(name).copied());
            let said =
                |setting: Option<&Setting>| setting.map(|setting| setting.words.clone()).unwrap_or_default();
            let differs = said(was) != said(is);
            if !differs || self.overridden.iter().any(|own| own == name) {
                continue;
            }
            if LIVE.contains(&name) {
                let value = is.and_then(|setting| {
                    setting.words.first()?.split_once('=').map(|(_, value)| value.to_owned())
                });
                changes.log = Some(value);
                match is {
                    Some(setting) => self.settings.insert(name.to_owned(), setting.clone()),
                    None => self.settings.remove(name),
                };
            } else {
                changes.restart.push(key.path());
            }
        }
        changes
    }
}

pub fn run(command: ConfigCommand, output: Output) -> Outcome<u8> {
    match command {
        ConfigCommand::Default => {
            output.result(&default_file(), |text| text.trim_end().to_owned())?;
        }
        ConfigCommand::Check { file } => {
            let path = file.unwrap_or_else(|| PATH.into());
            let text =
                read_text(&path).or_fail(Code::BadConfiguration, || format!("read {}", path.display()))?;
            let file = File::parse(&text, true).map_err(|mistakes| {
                let all: Vec<String> = mistakes
                    .iter()
                    .map(|mistake| format!("{}, {mistake}. {}", path.display(), mistake.remedy))
                    .collect();
                let remedy = "Correct the file, and check it again. Programs that run go on with what they read before.";
                Failure::new(Code::BadConfiguration, all.join("\n"), remedy)
            })?;
            let set: BTreeMap<String, &str> = file
                .settings
                .iter()
                .map(|setting| (self::path(setting.table, &setting.name), setting.value.as_str()))
                .collect();
            output.result(&set, |set| {
                let mut text = format!("{} is right; keys that it sets: {}", path.display(), set.len());
                for (path, value) in set {
                    let _ = write!(text, "\n  {path} = {value}");
                }
                text
            })?;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTRIB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../contrib/mainstay.toml");

    #[test]
    fn the_file_of_the_package_is_that_of_the_command_line() {
        let text = default_file();
        if std::env::var_os("MAINSTAY_BLESS").is_some() {
            std::fs::write(CONTRIB, &text).unwrap();
        }
        let there = std::fs::read_to_string(CONTRIB).unwrap_or_default();
        assert!(
            text == there,
            "contrib/mainstay.toml is not what the options are; write it anew with MAINSTAY_BLESS=1"
        );
        assert_eq!(File::parse(&text, true), Ok(File::default()), "everything is commented out");
        assert!(text.lines().all(|line| line.chars().count() <= 112), "lines fit a terminal");
    }

    /// Each default as the file shows it is one that the file may have.
    #[test]
    fn each_key_can_be_uncommented() {
        let text = default_file();
        let is_key =
            |line: &&str| line.starts_with('#') && line[1..].starts_with(|c: char| c.is_ascii_lowercase());
        let mut seen = 0;
        for line in text.lines().filter(is_key) {
            let before = &text[..text.find(&format!("\n{line}\n")).unwrap()];
            let table = before.lines().rev().find(|line| line.starts_with('[')).unwrap_or_default();
            let file = format!("{table}\n{}\n", &line[1..]);
            seen += 1;
            match File::parse(&file, false) {
                Ok(file) => assert_eq!(file.settings.len(), 1, "{line}"),
                // There is no default, and what has to be written is in capitals.
                Err(mistakes) => {
                    assert!(line.contains("\"ADDRESS:PORT\"") && mistakes.len() == 1, "{line}: {mistakes:?}")
                }
            }
        }
        assert!(seen >= 12, "only {seen} keys were found");
    }

    fn mistakes(text: &str) -> Vec<Mistake> {
        File::parse(text, true).expect_err(text)
    }

    #[test]
    fn a_mistake_has_line_column_and_remedy() {
        for (text, place, what, remedy) in [
            ("log = \"info\"\nlgo = \"x\"\n", (2, 1), "no key `lgo`", "`log`"),
            ("[engine]\n  lisen = \"0.0.0.0:1\"\n", (2, 3), "`engine.lisen`", "`engine.listen`"),
            ("[engine]\nnbd-listen = \"0.0.0.0:1\"\n", (2, 1), "`engine.nbd-listen`", "`engine.nbd_listen`"),
            ("listen = \"0.0.0.0:1\"\n", (1, 1), "no key `listen`", "[engine]"),
            ("[agent]\nrun_dir = \"/run/x\"\n", (2, 1), "no key `agent.run_dir`", "above the first table"),
            ("[engin]\n", (1, 2), "no key `engin`", "[engine]"),
            (
                "[engine]\nno_poll = \"yes\"\n",
                (2, 11),
                "a text, and has to be true or false",
                "no_poll = false",
            ),
            (
                "[engine]\nlisten = true\n",
                (2, 10),
                "true or false, and has to be a text",
                "listen = \"0.0.0.0:7401\"",
            ),
            ("[agent]\nlisten = 7400\n", (2, 1), "`agent.listen` is not usable", "0.0.0.0:7400"),
            ("[agent]\nlisten = \"0.0.0.0:74000\"\n", (2, 1), "0.0.0.0:74000", "0.0.0.0:7400"),
            ("[engine]\ndevice = \"ubl\"\n", (2, 1), "ublk", "device = \"auto\""),
            ("agent = 1\n", (1, 1), "is a table", "[agent]"),
            ("[agent]\nvolatile_journals = true\n", (2, 1), "`journal_dir`", "Add `journal_dir` to [agent]"),
            ("log = info\n", (1, 7), "no TOML", "quotes"),
            ("log = \"info\"\nlog = \"info\"\n", (2, 1), "no TOML", "each key"),
            ("log = \"mainstay=zzz\"\n", (1, 1), "`log` is not usable", "log = \"info\""),
        ] {
            let found = mistakes(text);
            let [mistake] = found.as_slice() else { panic!("{text}: {found:?}") };
            assert_eq!((mistake.line, mistake.column), place, "{text}: {mistake:?}");
            assert!(mistake.what.contains(what), "{text}: {mistake:?}");
            assert!(mistake.remedy.contains(remedy), "{text}: {mistake:?}");
        }
        let several = mistakes("lgo = 1\n[engine]\nno_poll = 1\nlisten = \"x\"\n");
        assert_eq!(several.iter().map(|mistake| mistake.line).collect::<Vec<_>>(), [1, 3, 4]);
        assert!(
            mistakes("[engine]\nnbd_certificate = \"a\"\nnbd_listen = \"0.0.0.0:1\"\n")[0]
                .what
                .contains("`nbd_key`")
        );
    }

    /// Runs `complete` on a command line with a file.
    fn completed(text: &str, words: &[&str]) -> (ArgMatches, Started) {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        let config = file.path().to_str().unwrap();
        let words: Vec<OsString> =
            ["mainstay"].iter().chain(words).chain(&["--config", config]).map(OsString::from).collect();
        let first = Cli::command().try_get_matches_from(&words);
        let (matches, started) = complete(&words, first).unwrap();
        let started = started.unwrap();
        (matches.subcommand_matches(started.role).unwrap().clone(), started)
    }

    #[test]
    fn an_option_wins_over_the_file_and_the_file_over_the_default() {
        let text = "run_dir = \"/run/a\"\n[engine]\nlisten = \"10.0.0.1:1\"\npreallocate = true\n[agent]\nlisten = \"10.0.0.1:2\"\n";
        let listen =
            |matches: &ArgMatches| matches.get_one::<std::net::SocketAddr>("listen").unwrap().to_string();
        let (engine, _) = completed(text, &["engine"]);
        assert_eq!(listen(&engine), "10.0.0.1:1");
        assert!(engine.get_flag("preallocate"));
        assert_eq!(engine.get_one::<PathBuf>("run_dir").unwrap(), Path::new("/run/a"));
        assert_eq!(engine.get_one::<PathBuf>("state_dir").unwrap(), Path::new("/var/lib/mainstay"));
        let (engine, _) = completed(text, &["engine", "--listen", "10.0.0.2:3"]);
        assert_eq!(listen(&engine), "10.0.0.2:3");
        assert_eq!(listen(&completed(text, &["agent"]).0), "10.0.0.1:2");
        // The option that another one needs may be in the file.
        let (agent, _) = completed("[agent]\njournal_dir = \"/mnt/j\"\n", &["agent", "--volatile-journals"]);
        assert!(agent.get_flag("volatile_journals"));
    }

    #[test]
    fn a_changed_file_says_what_needs_a_restart() {
        let text = "log = \"info\"\n[engine]\nlisten = \"10.0.0.1:1\"\n[agent]\nlisten = \"10.0.0.1:2\"\n";
        let (_, mut started) = completed(text, &["engine"]);
        let mut changes = |text: &str| started.compare(&File::parse(text, false).unwrap());
        assert_eq!(changes(text), Changes::default());
        let other = "log = \"debug\"\n[engine]\nlisten = \"10.0.0.1:7\"\nno_poll = true\n[agent]\nlisten = \"10.0.0.1:9\"\n";
        assert_eq!(
            changes(other),
            Changes {
                log: Some(Some("debug".into())),
                restart: vec!["engine.listen".into(), "engine.no_poll".into()]
            }
        );
        // What changed in place is told once, what waits for a restart each time.
        assert_eq!(changes(other).log, None);
        assert_eq!(changes(other).restart.len(), 2);
        assert_eq!(changes(""), Changes { log: Some(None), restart: vec!["engine.listen".into()] });
        let (_, mut started) = completed(text, &["engine", "--log", "warn", "--listen", "10.0.0.1:8"]);
        assert_eq!(started.compare(&File::parse(other, false).unwrap()).restart, ["engine.no_poll"]);
    }
}

//! `mainstay service edit`: the file of a service in the operator's editor.
//!
//! Guarantees
//! - Nothing is applied that was not shown as a dry run first and confirmed, or that --yes
//!   confirms.
//! - A change that is not applied is never lost: it stays in a file, and the command names it.
//! - Values of environment variables never reach that file (R24): they are hidden in it.

use super::{change_lines, path, would};
use crate::cli::WaitArgs;
use crate::failure::{Code, Context, Failure, Outcome, exit};
use crate::output::{self, Output};
use mainstay_api::rest::{ServiceApplied, ServiceApply, ServiceEffect, ServiceFile};
use mainstay_client::Client;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Editor where neither variable names one.
const EDITOR: &str = "vi";
/// Attempts to find a name for the file that no other file has.
const NAMES: u32 = 1000;

pub(super) fn edit(
    name: &str,
    (yes, force): (bool, bool),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    let file: ServiceFile = client.get(&format!("{}/file", path(name)?))?;
    let copy = written(name, &file.toml)?;
    let outcome = until_applied(&file, &copy, (yes, force), wait, client, output);
    match outcome {
        Ok(()) => {
            drop(fs::remove_file(&copy));
            Ok(())
        }
        Err(mut failure) => {
            if fs::read_to_string(&copy).is_ok_and(|text| text == file.toml) {
                drop(fs::remove_file(&copy));
            } else {
                failure.problem.remedy += &format!(" Your change is in {}.", copy.display());
            }
            Err(failure)
        }
    }
}

/// Opens the editor until its file is applied, or the operator gives up.
fn until_applied(
    file: &ServiceFile,
    copy: &Path,
    (yes, force): (bool, bool),
    wait: WaitArgs,
    client: &Client,
    output: Output,
) -> Outcome<()> {
    loop {
        open_editor(copy)?;
        let text = fs::read_to_string(copy).or_fail(Code::ServiceFileUnreadable, || {
            format!("read what the editor wrote, {}", copy.display())
        })?;
        if text == file.toml {
            output.note(&format!("service {} stays as it is: the file was not changed", file.name));
            return Ok(());
        }
        let ask = |dry_run| {
            let request = ServiceApply { toml: text.clone(), dry_run, force, edition: Some(file.edition) };
            client.put::<_, ServiceApplied>("/v1/services", &request)
        };
        let dry: ServiceApplied = match ask(true) {
            Ok(dry) => dry,
            Err(error) => {
                let refused = Failure::from(error);
                if yes || !wants_to_edit_again(&refused) {
                    return Err(refused);
                }
                continue;
            }
        };
        if dry.service.name != file.name {
            let message = format!("the file is of service {}, and not of {}", dry.service.name, file.name);
            let remedy = "To make another service, use `mainstay service apply FILE`.";
            return Err(Failure::new(Code::BadService, message, remedy));
        }
        if dry.effect == ServiceEffect::Unchanged {
            output.note(&format!(
                "service {} stays as it is: its values are the same{}",
                file.name,
                change_lines(&dry)
            ));
            return Ok(());
        }
        if !yes {
            output::say(&would(&dry));
            if !confirmed("Apply this change? [y/N] ")? {
                let message = format!("service {} is left as it is", file.name);
                let remedy = "To apply the change without a question, add --yes.";
                let refused = Failure::new(Code::NotConfirmed, message, remedy);
                let asked = std::io::stdin().is_terminal();
                return Err(if asked { refused.with_exit(exit::FAILED) } else { refused });
            }
        }
        return super::apply_text(text, (false, force), Some(file.edition), wait, client, output);
    }
}

/// Asks on the terminal. Without one the answer is no.
fn confirmed(question: &str) -> Outcome<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("{question}");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).or_fail(Code::Io, || "read the answer".into())?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Shows why a change was refused, and asks whether to mend it.
fn wants_to_edit_again(refused: &Failure) -> bool {
    if !std::io::stdin().is_terminal() {
        return false;
    }
    output::say(&format!("{}\n{}", refused.problem.message, refused.problem.remedy));
    confirmed("Edit the file again? [y/N] ").unwrap_or(false)
}

/// Writes the file for the editor, where only this user can read it.
fn written(name: &str, text: &str) -> Outcome<PathBuf> {
    let directory = std::env::temp_dir();
    let failed = || format!("write a file for the editor in {}", directory.display());
    for number in 0..NAMES {
        let path = directory.join(format!("mainstay-service-{name}-{}-{number}.toml", process::id()));
        // Another user may have put something in its place: it has to be new.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let mut file = match file {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => continue,
            file => file.or_fail(Code::Io, failed)?,
        };
        file.write_all(text.as_bytes()).or_fail(Code::Io, failed)?;
        return Ok(path);
    }
    let message = format!("cannot {}: there are too many of them", failed());
    let remedy = format!("Remove old files mainstay-service-{name}-*.toml there.");
    Err(Failure::new(Code::Io, message, remedy))
}

/// The editor that the environment names. It may have arguments, as in `code --wait`.
fn editor(visual: Option<OsString>, editor: Option<OsString>) -> OsString {
    let named = |value: &OsString| !value.is_empty();
    visual.filter(named).or(editor.filter(named)).unwrap_or_else(|| EDITOR.into())
}

/// Runs the editor to its end.
fn open_editor(file: &Path) -> Outcome<()> {
    let editor = editor(std::env::var_os("VISUAL"), std::env::var_os("EDITOR"));
    let shown = editor.to_string_lossy().into_owned();
    let mut script = editor;
    script.push(" \"$1\"");
    let mut command = Command::new("/bin/sh");
    command.arg("-c").arg(script).arg("sh").arg(file);
    let remedy = "Name an editor in VISUAL or EDITOR, for example `EDITOR=nano`.";
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            Err(Failure::new(Code::Editor, format!("the editor '{shown}' ended with {status}"), remedy))
        }
        Err(error) => {
            Err(Failure::new(Code::Editor, format!("cannot start the editor '{shown}': {error}"), remedy))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_editor_is_visual_before_editor_before_vi() {
        let of = |visual: Option<&str>, editor: Option<&str>| {
            super::editor(visual.map(Into::into), editor.map(Into::into)).into_string().unwrap()
        };
        assert_eq!(of(Some("code --wait"), Some("nano")), "code --wait");
        assert_eq!(of(Some(""), Some("nano")), "nano");
        assert_eq!(of(None, None), "vi");
    }

    #[test]
    fn the_file_for_the_editor_is_new_and_only_its_user_can_read_it() {
        let first = written("db", "name = 'db'\n").unwrap();
        let second = written("db", "").unwrap();
        assert_ne!(first, second);
        assert_eq!(fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(&first).unwrap(), "name = 'db'\n");
        for file in [first, second] {
            fs::remove_file(file).unwrap();
        }
    }
}

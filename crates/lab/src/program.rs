//! Programs of Mainstay that the lab starts: itself again, and the one that its nodes run.

use crate::failure::{Code, Context, Failure, Outcome};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;

/// The program that the nodes of a lab run: `mainstay` beside this one.
pub fn of_nodes() -> Outcome<PathBuf> {
    let own = std::env::current_exe().or_fail(Code::LabNode, || "find this program".into())?;
    let path = own.with_file_name("mainstay");
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(
        Code::LabProgramMissing,
        format!("the nodes of a lab run {}, which is not there", path.display()),
        "Put `mainstay` beside `mainstay-lab`: `make build` makes both.",
    ))
}

/// This program again, for a verb that needs a process of its own. `path`: where it is.
pub fn again(path: impl AsRef<OsStr>, verb: &str) -> Command {
    let mut command = Command::new(path);
    // The verb names its lab itself.
    command.arg(verb).env_remove("MAINSTAY_LAB").env_remove("MAINSTAY_LAB_DIR");
    command
}

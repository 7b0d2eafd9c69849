//! Programs of the system that a lab uses because they are much simpler than the kernel's own
//! interface.

use crate::failure::{Code, Failure, Outcome};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Programs and the Debian packages they are in.
const TOOLS: [(&str, &str); 3] = [("ip", "iproute2"), ("nft", "nftables"), ("mkfs.xfs", "xfsprogs")];

/// Fails with the names of all packages that are missing, so that one installation is enough.
pub fn check() -> Outcome<()> {
    let missing: Vec<_> = TOOLS.iter().filter(|(tool, _)| find(tool).is_none()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let tools: Vec<_> = missing.iter().map(|(tool, _)| *tool).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    Err(Failure::new(
        Code::LabToolMissing,
        format!("the lab needs {}, which this machine does not have", tools.join(" and ")),
        format!("apt-get install {}", packages.join(" ")),
    ))
}

/// A user's search path often lacks the directories of the system's own tools.
fn find(tool: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(system).map(|dir| dir.join(tool)).find(|path| path.is_file())
}

/// Runs a tool to its end; its complaint becomes the failure's message.
pub fn run(tool: &str, args: &[&str]) -> Outcome<()> {
    run_with_input(tool, args, "")
}

pub fn run_with_input(tool: &str, args: &[&str], input: &str) -> Outcome<()> {
    let fail = |cause: String| {
        Failure::new(
            Code::LabToolFailed,
            format!("`{tool} {}` failed: {}", args.join(" "), cause.trim()),
            "Mend what the tool complains of, run `mainstay lab down`, and run the command again.",
        )
    };
    let path = find(tool).ok_or_else(|| fail("it is not installed".into()))?;
    let mut child = Command::new(path)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        // Ctrl-C is for the lab command, which cleans up with these same tools.
        .process_group(0)
        .spawn()
        .map_err(|error| fail(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|error| fail(error.to_string()))?;
    }
    let done = child.wait_with_output().map_err(|error| fail(error.to_string()))?;
    if done.status.success() {
        return Ok(());
    }
    Err(fail(format!("{} ({})", String::from_utf8_lossy(&done.stderr).trim(), done.status)))
}

//! Running programs with a time limit, and reporting their output when they fail.

use crate::error::{Error, Result};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Exit status and output of a finished program.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Exit code; 128 and the signal's number for a program that a signal ended.
    #[must_use]
    pub fn code(&self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or(0))
    }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // Output before a read error is still worth showing.
            let _ = stream.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Runs `command` to its end, whatever its exit status.
///
/// # Errors
/// When it cannot be started or runs longer than `limit`; then it is killed.
pub fn finish(command: &mut Command, limit: Duration) -> Result<Finished> {
    let words = words(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Error::system(format!("start: {words}")))?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let Some(status) = wait(&mut child, limit)? else {
        child.kill().and_then(|()| child.wait()).map_err(Error::system(format!("end: {words}")))?;
        return Err(Error::TooLong { words, limit });
    };
    let text = |handle: std::thread::JoinHandle<String>| handle.join().unwrap_or_default();
    Ok(Finished { status, stdout: text(stdout), stderr: text(stderr) })
}

/// Runs `command` and returns its standard output.
///
/// # Errors
/// When it cannot be started, takes too long, or exits with another code than 0.
pub fn output(command: &mut Command, limit: Duration) -> Result<String> {
    let finished = finish(command, limit)?;
    if !finished.status.success() {
        let said = format!("{}\n{}", finished.stderr.trim(), finished.stdout.trim());
        return Err(Error::Failed { words: words(command), code: finished.code(), said });
    }
    Ok(finished.stdout)
}

/// Waits for a child's end; `None` when it still runs after `limit`.
///
/// # Errors
/// When the child cannot be waited for.
pub fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().map_err(Error::system("wait for a child"))? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn words(command: &Command) -> String {
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    let program = command.get_program().to_string_lossy().into_owned();
    std::iter::once(program).chain(args).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failed_command_is_reported_with_its_words_and_its_output() {
        let limit = Duration::from_secs(10);
        assert_eq!(output(&mut shell("echo fine"), limit).unwrap(), "fine\n");
        let error = output(&mut shell("echo broken >&2; exit 3"), limit).unwrap_err().to_string();
        assert!(error.contains("exit code 3: sh -c") && error.contains("broken"), "{error}");
        assert_eq!(finish(&mut shell("kill -9 $$"), limit).unwrap().code(), 137);
    }

    #[test]
    fn a_program_that_takes_too_long_is_ended() {
        let start = Instant::now();
        let error = finish(&mut shell("exec sleep 20"), Duration::from_millis(50)).unwrap_err();
        assert!(error.to_string().contains("ran longer than") && start.elapsed() < Duration::from_secs(10));
    }
}

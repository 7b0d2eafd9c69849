//! The account of a login: the name of the user and the password.

use crate::{Outcome, Probed};
use nix::unistd::{Uid, User};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

/// Longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 1024;
/// Permissions that a file with a password must not give: all of other users.
const MODE_FORBIDDEN: u32 = 0o007;

/// User and password of a login.
pub struct Login {
    pub user: String,
    /// `None` if the probe names no file for it.
    pub password: Option<Vec<u8>>,
    /// Path of the password's file, for words.
    pub password_file: Option<String>,
}

impl Login {
    /// Reads the password's file and, if no user is named, asks the system for the name of this
    /// process's user. Both may hang, so a thread of its own does them.
    pub async fn read(user: Option<&String>, password_file: Option<&String>) -> Probed<Self> {
        let (user, password_file) = (user.cloned(), password_file.cloned());
        let read = tokio::task::spawn_blocking(move || {
            let user = user.map_or_else(own_name, Ok)?;
            let password = password_file.as_deref().map(password).transpose()?;
            Ok(Self { user, password, password_file })
        });
        let read = read.await.map_err(|error| Outcome::Unhealthy(format!("the probe failed: {error}")))?;
        read.map_err(Outcome::Unhealthy)
    }

    /// The password, empty if there is none.
    pub fn password(&self) -> &[u8] {
        self.password.as_deref().unwrap_or_default()
    }

    /// The words after "a login" that tell how it was tried.
    pub fn manner(&self) -> String {
        match &self.password_file {
            Some(path) => format!("with the password in {path}"),
            None => "without a password, because no password file is named".into(),
        }
    }
}

fn own_name() -> Result<String, String> {
    let uid = Uid::effective();
    match User::from_uid(uid) {
        Ok(Some(user)) => Ok(user.name),
        _ => Err(format!("user {uid} has no name on this machine: name the account of the database as user")),
    }
}

fn password(path: &str) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| {
        format!(
            "the password file {path} cannot be read: {error}; it must be readable by the user of the probe"
        )
    };
    // Not to hang on a pipe.
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path);
    let file = opened.map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(format!("the password file {path} is not a regular file"));
    }
    if metadata.mode() & MODE_FORBIDDEN != 0 {
        return Err(format!("the password file {path} is open to every user: run `chmod o= {path}`"));
    }
    let mut bytes = Vec::new();
    file.take(PASSWORD_BYTES_MAX + 3).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.ends_with(b"\n") {
        bytes.pop();
        if bytes.ends_with(b"\r") {
            bytes.pop();
        }
    }
    if bytes.is_empty() || bytes.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(format!("the password file {path} does not hold 1 to {PASSWORD_BYTES_MAX} bytes"));
    }
    if bytes.iter().any(|byte| matches!(byte, 0 | b'\n')) {
        return Err(format!("the password file {path} holds more than one line: write the password only"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_password_file_holds_one_line_and_is_closed_to_others() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password").display().to_string();
        let read = |content: &[u8], mode: u32| {
            std::fs::write(&path, content).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            password(&path)
        };
        assert_eq!(read(b"secret\n", 0o600).unwrap(), b"secret");
        assert_eq!(read(b"sec ret\r\n", 0o640).unwrap(), b"sec ret");
        assert!(read(b"secret", 0o644).unwrap_err().contains("chmod o="));
        for bad in [&b""[..], b"\n", b"user\npassword\n", b"a\0b", &[b'x'; 1025]] {
            let words = read(bad, 0o600).unwrap_err();
            assert!(words.contains(&path) && !words.contains("user\n"), "{words}");
        }
        let words = password(directory.path().to_str().unwrap()).unwrap_err();
        assert!(words.contains("not a regular file"), "{words}");
        assert!(password("/nowhere/at/all").unwrap_err().contains("cannot be read"));
    }
}

//! The file of a support bundle: a tar archive, compressed, which its owner alone can read.

use super::sources::Part;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes a new file, and removes it again if it cannot be finished. Returns its size in bytes.
///
/// # Errors
/// When the file exists, or cannot be written.
pub fn write(file: &Path, directory: &str, parts: &[Part], made_s: u64) -> io::Result<u64> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    let written = fill(&opened, directory, parts, made_s);
    if written.is_err() {
        drop(fs::remove_file(file));
    }
    written
}

fn fill(mut file: &fs::File, directory: &str, parts: &[Part], made_s: u64) -> io::Result<u64> {
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for part in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(part.content.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(made_s);
        archive.append_data(&mut header, format!("{directory}/{}", part.name), part.content.as_bytes())?;
    }
    archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

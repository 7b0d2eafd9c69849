//! Data files that a process has open for writing without O_DIRECT, as `/proc` tells.

use super::files::Patterns;
use super::verdict::{Files, Trouble};
use std::fs;
use std::path::Path;

/// Notes such files below `root`, which has no links in it. What cannot be read belongs to a
/// process that has ended, or to one that this user may not look at.
pub fn note(root: &Path, patterns: &Patterns, found: &mut Files) {
    let Ok(processes) = fs::read_dir("/proc") else { return };
    let is_number = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    for process in processes.flatten().filter(|entry| is_number(&entry.file_name().to_string_lossy())) {
        let Ok(descriptors) = fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(file) = fs::read_link(descriptor.path()) else { continue };
            let is_data = |name: &std::ffi::OsStr| patterns.fit(&name.to_string_lossy());
            if !file.starts_with(root) || !file.file_name().is_some_and(is_data) {
                continue;
            }
            let info = process.path().join("fdinfo").join(descriptor.file_name());
            if fs::read_to_string(info).is_ok_and(|text| writes_buffered(&text)) {
                let program = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                let number = process.file_name().to_string_lossy().into_owned();
                let who = format!("{} ({}, process {number})", file.display(), program.trim_end());
                found.note(Trouble::OpenBuffered, &who);
            }
        }
    }
}

/// Whether the text of a descriptor in `fdinfo` says that it writes through the page cache.
fn writes_buffered(text: &str) -> bool {
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_ACCMODE != libc::O_RDONLY && flags & libc::O_DIRECT == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_descriptors_that_write_through_the_page_cache_count() {
        let info = |flags: i32| format!("pos:\t0\nflags:\t0{flags:o}\nmnt_id:\t27\n");
        assert!(
            writes_buffered(&info(libc::O_RDWR)) && writes_buffered(&info(libc::O_WRONLY | libc::O_CLOEXEC))
        );
        assert!(!writes_buffered(&info(libc::O_RDWR | libc::O_DIRECT)));
        assert!(!writes_buffered(&info(libc::O_RDONLY)) && !writes_buffered("pos:\t0\n"));
    }

    #[test]
    fn a_file_that_this_process_writes_through_the_page_cache_is_named() {
        let root = std::env::temp_dir().join(format!("mainstay-open-{}", std::process::id()));
        fs::create_dir_all(&root).expect("a directory");
        let root = root.canonicalize().expect("it is there");
        let open = fs::File::create(root.join("t.ibd")).expect("made");
        let other = fs::File::create(root.join("t.log")).expect("made");
        let mut found = Files::default();
        note(&root, &Patterns::new(&[]), &mut found);
        let examples = found.troubles.remove(&Trouble::OpenBuffered).expect("it is open");
        assert_eq!(examples.files, 1);
        assert!(examples.named[0].contains("/t.ibd ("), "{examples:?}");
        drop((open, other));
        note(&root, &Patterns::new(&[]), &mut found);
        assert!(found.troubles.is_empty());
        fs::remove_dir_all(&root).expect("removed");
    }
}

//! Options for making a file system, as the operator writes them in a service file.
//!
//! Guarantees
//! - Each option stands in a table of those that shape a file system. Its value is the next word.
//!   So no word can be taken for a device, a size or a file.
//! - No value names a device or a file, sets the identity of the file system, which Mainstay
//!   chooses, or moves the file system away from the beginning of the volume.

use crate::spec::SpecError;

const WORDS_MAX: usize = 32;
const WORD_BYTES_MAX: usize = 256;

/// Options with a value, of mkfs.ext4 and its older types, and of mkfs.xfs.
const EXT: [&str; 14] = ["-b", "-C", "-E", "-g", "-G", "-i", "-I", "-J", "-L", "-m", "-N", "-O", "-r", "-T"];
const XFS: [&str; 8] = ["-b", "-d", "-i", "-l", "-L", "-m", "-n", "-s"];

/// Parts of values that name something outside of the volume, or that Mainstay sets itself.
const REFUSED: [(&str, &str); 8] = [
    ("device", "it names another device"),
    ("logdev", "it names another device"),
    ("journal_dev", "it makes a journal for another file system"),
    ("rtdev", "it names another device"),
    ("name", "it names another file"),
    ("file", "it names another file"),
    ("offset", "the file system begins where the volume begins"),
    ("uuid", "Mainstay chooses the identity of the file system"),
];

/// Checks the options of `mkfs_options`. `fstype`: type of the file system.
pub(crate) fn validate(fstype: &str, mkfs: bool, words: &[String]) -> Result<(), SpecError> {
    let wrong = |problem: String, remedy: &str| Err(SpecError::new("mount.mkfs_options", problem, remedy));
    if words.is_empty() {
        return Ok(());
    }
    if !mkfs {
        return wrong(
            "no file system is made without mkfs".into(),
            "write `mkfs = true`, or remove the line",
        );
    }
    let known: &[&str] = match fstype {
        "ext2" | "ext3" | "ext4" => &EXT,
        "xfs" => &XFS,
        other => {
            return wrong(
                format!("options for making a file system of the type {other} are not known"),
                "use fstype ext4 or xfs, or remove the line",
            );
        }
    };
    if words.len() > WORDS_MAX || words.iter().any(|word| word.len() > WORD_BYTES_MAX) {
        return wrong(
            format!("more than {WORDS_MAX} words, or one of more than {WORD_BYTES_MAX} bytes"),
            "leave options out",
        );
    }
    for pair in words.chunks(2) {
        let option = &pair[0];
        if !known.contains(&option.as_str()) {
            let options = known.join(", ");
            return wrong(
                format!("'{option}' is no option that can be used here"),
                &format!("use {options}, each with its value as the next word of the list"),
            );
        }
        let Some(value) = pair.get(1) else {
            return wrong(format!("'{option}' has no value"), "write its value as the next word");
        };
        let strange = |c: char| c.is_control() || c.is_whitespace() || c == '/';
        if value.is_empty() || value.starts_with('-') || value.contains(strange) {
            return wrong(
                format!("'{value}' is no value of {option}: it is empty, names a path, or is an option"),
                "write a value without spaces and without '/'",
            );
        }
        let part = |part: &str| part.split('=').next().unwrap_or_default().to_owned();
        let refused = value.split(',').find_map(|text| {
            let name = part(text);
            REFUSED.iter().find(|(known, _)| *known == name)
        });
        if let Some((name, why)) = refused.filter(|_| option != "-L") {
            return wrong(format!("'{name}' in the value of {option} cannot be used: {why}"), "remove it");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(fstype: &str, words: &[&str]) -> Result<(), SpecError> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        validate(fstype, true, &words)
    }

    #[test]
    fn options_that_shape_a_file_system_are_taken() {
        judged("ext4", &["-O", "bigalloc,^has_journal", "-C", "16384", "-E", "stride=4"]).unwrap();
        judged("xfs", &["-b", "size=16384", "-m", "reflink=0", "-L", "shop"]).unwrap();
        judged("btrfs", &[]).unwrap();
    }

    #[test]
    fn no_option_reaches_another_device_a_file_or_a_shell() {
        for (fstype, words) in [
            ("ext4", &["/dev/sda"][..]),
            ("ext4", &["-C", "16384", "/dev/sda"]),
            ("ext4", &["-d", "/etc"]),
            ("ext4", &["-n", "-O"]),
            ("ext4", &["-C"]),
            ("ext4", &["-C16384"]),
            ("ext4", &["-U", "random"]),
            ("ext4", &["-J", "device=LABEL=x"]),
            ("ext4", &["-O", "bigalloc,journal_dev"]),
            ("ext4", &["-E", "stride=4,offset=4096"]),
            ("ext4", &["-L", "a b"]),
            ("ext4", &["-O", "$(reboot) "]),
            ("xfs", &["-l", "logdev=x"]),
            ("xfs", &["-m", "uuid=0"]),
            ("xfs", &["-d", "file,name=x"]),
            ("xfs", &["-p", "x"]),
            ("xfs", &["-C", "16384"]),
            ("btrfs", &["-O", "x"]),
        ] {
            let error = judged(fstype, words).unwrap_err();
            assert_eq!(error.field, "mount.mkfs_options", "{words:?}");
            assert!(!error.remedy.is_empty(), "{words:?}");
        }
        let idle = validate("ext4", false, &["-C".into(), "16384".into()]).unwrap_err();
        assert!(idle.remedy.contains("mkfs = true"), "{idle}");
    }
}

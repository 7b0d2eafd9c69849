//! Templates: whole service files for programs that are known.
//!
//! Guarantees
//! - A file that a template gives is a specification that [`ServiceSpec::parse`] takes.
//! - A commit that a database of a template acknowledges is durable, whatever else is changed for
//!   speed: no template turns a flush off.
//! - A database of a template protects its pages against a power cut, unless the check before its
//!   start says that none can tear.
//! - A preparation makes the data directory once. Interrupted at any moment, it begins anew.

use crate::spec::{ServiceSpec, SpecError, name_field};
use mainstay_types::size::size_words;

/// Least memory that a database is set up for, in bytes.
pub const TEMPLATE_MEMORY_BYTES_MIN: u64 = 256 << 20;

/// Smallest volume that a database is set up on, in bytes.
pub const TEMPLATE_VOLUME_BYTES_MIN: u64 = 448 << 20;

const MIB: u64 = 1 << 20;
/// Bounds of the log that a database reads after a power cut, in MiB: recovery has to end.
const REDO_MIB: (u64, u64) = (96, 2048);
const WAL_MIB: (u64, u64) = (1024, 8192);
/// This log takes at most one part of a volume in so many: a database whose volume is full ends.
const LOG_PARTS: u64 = 4;

/// A kind of program that there is a template for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Template {
    Mariadb,
    Mysql,
    Postgresql,
    Filesystem,
}

/// Choices of an operator for a service that a template makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choices {
    pub name: String,
    pub resource: String,
    pub volume: u16,
    /// Size of the volume in bytes, if it is known.
    pub volume_bytes: Option<u64>,
    /// Floating address with prefix length.
    pub vip: Option<String>,
    /// Memory of a node that the service may use, in bytes.
    pub memory_bytes: u64,
    /// Major version of PostgreSQL.
    pub version: u32,
}

impl Template {
    /// The service file.
    ///
    /// # Errors
    /// When a choice is none that a service can have.
    pub fn file(self, choices: &Choices) -> Result<String, SpecError> {
        let Choices { name, resource, volume, volume_bytes, vip, memory_bytes, version } = choices;
        // Both become parts of scripts.
        name_field("name", name)?;
        name_field("resource", resource)?;
        if self != Self::Filesystem && *memory_bytes < TEMPLATE_MEMORY_BYTES_MIN {
            return Err(SpecError::new(
                "memory",
                format!("{} is too little for a database", size_words(*memory_bytes)),
                format!("give it {} or more with --memory", size_words(TEMPLATE_MEMORY_BYTES_MIN)),
            ));
        }
        if let Some(bytes) =
            volume_bytes.filter(|&bytes| self != Self::Filesystem && bytes < TEMPLATE_VOLUME_BYTES_MIN)
        {
            let size = size_words(TEMPLATE_VOLUME_BYTES_MIN).replace(' ', "");
            return Err(SpecError::new(
                "mount.volume",
                format!("{} is too little for a database", size_words(bytes)),
                format!("run `mainstay resource resize {resource} {size} --volume {volume}` first"),
            ));
        }
        let mib = memory_bytes / MIB;
        let pool = mib / 4 * 3;
        let log_max = volume_bytes.map_or(u64::MAX, |bytes| bytes / MIB / LOG_PARTS);
        let log = |wanted: u64, (least, most): (u64, u64)| wanted.clamp(least, most).min(log_max).to_string();
        let values = [
            ("name", name.clone()),
            ("resource", resource.clone()),
            ("volume", volume.to_string()),
            ("version", version.to_string()),
            ("memory", size_words(mib * MIB)),
            ("pool", pool.to_string()),
            ("redo", log(pool / 4, REDO_MIB)),
            ("shared", (mib / 2).to_string()),
            ("cache", mib.to_string()),
            ("maintenance", (mib / 16).clamp(64, 2048).to_string()),
            ("wal", log(mib / 2, WAL_MIB)),
        ];
        let mut text = match self {
            Self::Mariadb => include_str!("template/mariadb.toml"),
            Self::Mysql => include_str!("template/mysql.toml"),
            Self::Postgresql => include_str!("template/postgresql.toml"),
            Self::Filesystem => include_str!("template/filesystem.toml"),
        }
        .to_owned();
        for (placeholder, value) in values {
            text = text.replace(&format!("{{{{{placeholder}}}}}"), &value);
        }
        text += &match vip {
            Some(address) => format!(
                "\n# The address that clients use. It is on the node where the service runs.\n[vip]\naddress = {}\n",
                toml::Value::String(address.clone())
            ),
            None => "\n# An address that clients use, on the node where the service runs:\n# [vip]\n# address = \"10.0.0.7/24\"\n".into(),
        };
        ServiceSpec::parse(&text)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Template; 4] =
        [Template::Mariadb, Template::Mysql, Template::Postgresql, Template::Filesystem];

    fn choices() -> Choices {
        Choices {
            name: "shop".into(),
            resource: "r1".into(),
            volume: 1,
            volume_bytes: Some(100 << 30),
            vip: Some("10.0.0.7/24".into()),
            memory_bytes: 4 << 30,
            version: 15,
        }
    }

    #[test]
    fn every_template_gives_a_service_as_it_was_chosen() {
        for template in ALL {
            let text = template.file(&choices()).unwrap();
            assert!(!text.contains("{{") && !text.contains("}}"), "{text}");
            let spec = ServiceSpec::parse(&text).unwrap();
            assert_eq!((&*spec.name, &*spec.resource), ("shop", "r1"));
            let mount = spec.mount.as_ref().unwrap();
            assert_eq!((mount.volume, &*mount.path, mount.mkfs), (1, "/srv/shop", true));
            assert_eq!(spec.vips[0].address, "10.0.0.7/24");
            assert_eq!(spec.processes.is_empty(), template == Template::Filesystem);
            for process in &spec.processes {
                assert!(process.probe.is_some() && process.user.is_some(), "{template:?}");
                assert!(
                    !process
                        .command
                        .iter()
                        .any(|word| word.contains("/srv/") && !word.contains("/srv/shop/"))
                );
            }
            let without = template.file(&Choices { vip: None, ..choices() }).unwrap();
            assert_eq!(ServiceSpec::parse(&without).unwrap().vips, []);
        }
    }

    #[test]
    fn a_database_of_a_template_flushes_each_commit() {
        let command = |template: Template| {
            let text = template.file(&choices()).unwrap();
            ServiceSpec::parse(&text).unwrap().processes.remove(0).command
        };
        for template in [Template::Mariadb, Template::Mysql] {
            let words = command(template);
            for word in [
                "--innodb-flush-log-at-trx-commit=1",
                "--sync-binlog=1",
                "--innodb-doublewrite=ON",
                "--innodb-buffer-pool-size=3072M",
            ] {
                assert!(words.iter().any(|given| given == word), "{template:?} has no {word}");
            }
        }
        let words = command(Template::Postgresql);
        for word in ["fsync=on", "synchronous_commit=on", "full_page_writes=on", "shared_buffers=2048MB"] {
            assert!(words.windows(2).any(|pair| pair == ["-c", word]), "PostgreSQL has no {word}");
        }
    }

    #[test]
    fn a_database_writes_its_pages_once_only_where_a_check_allows_it() {
        let spec = |template: Template| ServiceSpec::parse(&template.file(&choices()).unwrap()).unwrap();
        for template in [Template::Mariadb, Template::Mysql] {
            let spec = spec(template);
            let (mount, process) = (spec.mount.as_ref().unwrap(), &spec.processes[0]);
            assert_eq!((&*mount.fstype, mount.mkfs, mount.grow), ("ext4", true, true));
            assert_eq!(mount.mkfs_options, ["-O", "bigalloc", "-C", "16384"]);
            assert!(process.command.iter().any(|word| word == "--innodb-flush-method=O_DIRECT"));
            let pages = process.pages.as_ref().unwrap();
            assert_eq!(pages.arguments, ["--innodb-doublewrite=OFF"], "it overrides the one in the command");
            assert_eq!((pages.size, pages.buffered, pages.interval_s), (16384, false, 86_400));
            let data = format!("--datadir={}", pages.path.as_ref().unwrap());
            assert!(process.command.contains(&data), "{template:?}");
        }
        // Its pages go through the page cache, which no usual file system writes in one piece.
        assert_eq!(spec(Template::Postgresql).processes[0].pages, None);
    }

    #[test]
    fn the_log_of_a_database_leaves_room_on_a_small_volume() {
        let log = |template: Template, volume_bytes: Option<u64>| -> u64 {
            let choices = Choices { memory_bytes: 16 << 30, volume_bytes, ..choices() };
            let text = template.file(&choices).unwrap();
            let words = ServiceSpec::parse(&text).unwrap().processes.remove(0).command;
            let keys = ["--innodb-log-file-size=", "--innodb-redo-log-capacity=", "max_wal_size="];
            let value = words.iter().find_map(|word| keys.iter().find_map(|key| word.strip_prefix(key)));
            value.unwrap().trim_end_matches(['M', 'B']).parse().unwrap()
        };
        for template in [Template::Mariadb, Template::Mysql, Template::Postgresql] {
            assert_eq!(log(template, Some(TEMPLATE_VOLUME_BYTES_MIN)), 112, "{template:?}");
            assert!(log(template, Some(100 << 30)) >= 2048, "{template:?}");
            assert_eq!(log(template, None), log(template, Some(100 << 30)), "{template:?}");
            let choices = Choices { volume_bytes: Some(256 << 20), ..choices() };
            let refused = template.file(&choices).unwrap_err();
            assert!(refused.remedy.contains("resource resize r1 448MiB --volume 1"), "{refused}");
        }
        let choices = Choices { volume_bytes: Some(64 << 20), ..choices() };
        assert!(Template::Filesystem.file(&choices).is_ok());
    }

    #[test]
    fn a_choice_that_no_service_can_have_is_refused_by_its_name() {
        let with = |change: fn(&mut Choices)| {
            let mut choices = choices();
            change(&mut choices);
            Template::Mariadb.file(&choices).expect_err("it was taken")
        };
        for (error, field) in [
            (with(|choices| choices.name = "a; rm -rf /".into()), "name"),
            (with(|choices| choices.resource = "\"".into()), "resource"),
            (with(|choices| choices.vip = Some("10.0.0.7\"\n[x]".into())), "vip.address"),
            (with(|choices| choices.vip = Some("10.0.0.0/24".into())), "vip.address"),
            (with(|choices| choices.memory_bytes = 1 << 20), "memory"),
        ] {
            assert!(error.field.starts_with(field) && !error.remedy.is_empty(), "{error}");
        }
        let small = Choices { memory_bytes: 0, ..choices() };
        assert!(Template::Filesystem.file(&small).is_ok());
    }
}

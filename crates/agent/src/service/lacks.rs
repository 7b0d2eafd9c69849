//! Needs of a service that this node does not meet: users, programs, an interface, a file system.
//!
//! Guarantees
//! - Nothing is mounted or changed to find out, and nothing is started but a resource agent that
//!   describes itself, and a rehearsal of making a file system, in memory.
//! - Files on the service's own volume are not looked for: they are there only while it is mounted.
//! - A need is told as lacking only when that was found out.

use super::command;
use super::make;
use super::mount::mount_data;
use super::runners;
use super::vip::{self, Vip, VipError};
use crate::sys::{self, Refusal};
use mainstay_ha::{Probe, Process, Ready, ServiceSpec};
use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Bytes of a script in which its first line is looked for.
const INTERPRETER_BYTES: u64 = 256;
/// Most links that are followed in one path, as the kernel does.
const LINKS_MAX: u32 = 40;

/// One thing that this node does not have.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Lack {
    /// The field of the specification as TOML has it, for example `process[0].user`.
    pub field: String,
    /// For example `there is no user mysql`.
    pub problem: String,
    pub remedy: String,
}

/// Returns the needs of a service that is about to be made or changed: as [`lacks`], and the
/// options of a file system are rehearsed.
#[must_use]
pub fn lacks_before(spec: &ServiceSpec) -> Vec<Lack> {
    let mut found = lacks(spec);
    let mount = spec.mount.as_ref().filter(|mount| mount.mkfs && !mount.mkfs_options.is_empty());
    // A program that is not there is told already.
    if let Some(mount) = mount
        && !found.iter().any(|lack| lack.field == "mount.mkfs")
        && let Some(why) = make::refused(&mount.fstype, &mount.mkfs_options)
    {
        found.push(Lack {
            field: "mount.mkfs_options".into(),
            problem: format!("mkfs.{} does not take these options: {why}", mount.fstype),
            remedy: "correct or remove what it names".into(),
        });
    }
    found
}

/// Returns the needs of `spec` that this node does not meet, in the order of the specification.
#[must_use]
pub fn lacks(spec: &ServiceSpec) -> Vec<Lack> {
    let mut found = Vec::new();
    let mut note = |field: String, problem: String, remedy: &str| {
        found.push(Lack { field, problem, remedy: remedy.into() });
    };
    if let Some(mount) = &spec.mount {
        match sys::try_options(&mount.fstype, &mount_data(&mount.fstype, &mount.options)) {
            Ok(()) => {}
            Err(Refusal::UnknownType) => note(
                "mount.fstype".into(),
                format!("the kernel has no file system {}", mount.fstype),
                "load its module there, or use another type",
            ),
            Err(Refusal::Option(option)) => note(
                "mount.options".into(),
                format!("the kernel does not take '{option}' for {}", mount.fstype),
                "correct the option or leave it out",
            ),
        }
        let maker = format!("mkfs.{}", mount.fstype);
        if mount.mkfs && find_program(&maker, &search_path_of_agent()).is_none() {
            let remedy = "install it there, or make the file system elsewhere and set mkfs = false";
            note("mount.mkfs".into(), format!("there is no program {maker}"), remedy);
        }
    }
    for (i, process) in spec.processes.iter().enumerate() {
        let field = |name: &str| format!("process[{i}].{name}");
        for (name, user) in [("user", &process.user), ("prepare_user", &process.prepare_user)] {
            if let Some(user) = user.as_ref().filter(|user| !command::user_exists(user)) {
                note(field(name), format!("there is no user {user}"), "make the user there");
            }
        }
        let mut lacks = match runners::of(process) {
            Ok(runner) => runner.lacks(process, spec),
            Err(problem) => {
                note(format!("process[{i}]"), problem, "upgrade Mainstay there");
                continue;
            }
        };
        lacks.extend(program_lacks("prepare", &process.prepare, process, spec));
        if let Some(Ready::Command(command)) = &process.ready {
            lacks.extend(program_lacks("ready", command, process, spec));
        }
        if let Some(Probe::Command(command)) = &process.probe {
            lacks.extend(program_lacks("probe", command, process, spec));
        }
        if let Some(file) = process.probe.as_ref().and_then(Probe::password_file)
            && !is_on_volume(Path::new(file), spec)
            && !Path::new(file).is_file()
        {
            let problem = format!("there is no file {file}");
            note(field("probe"), problem, "make it there; it holds the password and nothing else");
        }
        for Lack { field: name, problem, remedy } in lacks {
            note(field(&name), problem, &remedy);
        }
    }
    for (i, named) in spec.vips.iter().enumerate() {
        let table = if spec.vips.len() == 1 { "vip".to_owned() } else { format!("vip[{i}]") };
        let field = |name: &str| format!("{table}.{name}");
        let Ok(address) = named.address.parse::<Vip>() else { continue };
        match vip::find_interface(address, named.interface.as_deref()) {
            Err(VipError::UnknownInterface(name)) => note(
                field("interface"),
                format!("there is no interface {name}"),
                "name one that every node has, or leave the field out to have it found by subnet",
            ),
            Err(VipError::NoInterface(_)) => note(
                field("address"),
                format!("no interface has an address in the subnet of {address}"),
                "name the interface in vip.interface, or give it an address there",
            ),
            Err(error @ VipError::NoHost { .. }) => {
                note(field("address"), error.to_string(), "use another address of the network");
            }
            _ if address.address.is_ipv6() && !sys::has_ipv6() => {
                note(field("address"), "it has no IPv6".into(), "enable IPv6 there, or use an IPv4 address");
            }
            _ => {}
        }
    }
    found
}

/// Returns what this node lacks for a command of `process`; `field` within the process's entry.
pub(super) fn program_lacks(
    field: &str,
    command: &[String],
    process: &Process,
    spec: &ServiceSpec,
) -> Option<Lack> {
    let problem = lacking(command.first()?, process, spec)?;
    Some(Lack { field: field.into(), problem, remedy: "install it there, or correct the path".into() })
}

/// Whether `path` is on the service's own file system, of which other nodes know nothing.
pub(super) fn is_on_volume(path: &Path, spec: &ServiceSpec) -> bool {
    let mount = spec.mount.as_ref().map(|mount| follow(Path::new(&mount.path)));
    mount.is_some_and(|mount| follow(path).starts_with(mount))
}

/// Why `program` cannot be started, if it is known.
fn lacking(program: &str, process: &Process, spec: &ServiceSpec) -> Option<String> {
    let on_volume = |path: &Path| is_on_volume(path, spec);
    let search = process.env.get("PATH").map_or(command::SEARCH_PATH, String::as_str);
    // A service starts in the root directory.
    let path = if program.contains('/') {
        Path::new("/").join(program)
    } else if search.split(':').any(|dir| on_volume(Path::new(dir))) {
        return None;
    } else {
        match find_program(program, search) {
            Some(path) => path,
            None => return Some(format!("there is no program {program} in {search}")),
        }
    };
    if on_volume(&path) {
        return None;
    }
    if !path.is_file() {
        return Some(format!("there is no program {}", path.display()));
    }
    if access(&path, AccessFlags::X_OK).is_err() {
        return Some(format!("{} is not executable", path.display()));
    }
    let interpreter = interpreter_of(&path).filter(|interpreter| !on_volume(interpreter))?;
    (!interpreter.is_file())
        .then(|| format!("{} needs {}, which is not there", path.display(), interpreter.display()))
}

/// Where a path leads, followed link by link: also one that leads to a volume that is not mounted
/// now.
fn follow(path: &Path) -> PathBuf {
    let mut found = PathBuf::from("/");
    let mut rest: Vec<OsString> = path.components().rev().map(|part| part.as_os_str().to_owned()).collect();
    let mut links = 0;
    while let Some(part) = rest.pop() {
        if part == ".." {
            found.pop();
            continue;
        }
        found.push(part);
        if links < LINKS_MAX
            && let Ok(target) = found.read_link()
        {
            links += 1;
            found.pop();
            rest.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
        }
    }
    found
}

fn find_program(name: &str, search: &str) -> Option<PathBuf> {
    let found = search.split(':').map(|dir| Path::new(dir).join(name));
    found.into_iter().find(|path| path.is_file() && access(path, AccessFlags::X_OK).is_ok())
}

fn search_path_of_agent() -> String {
    std::env::var("PATH").unwrap_or_else(|_| command::SEARCH_PATH.into())
}

/// Returns the program that the first line of a script names.
fn interpreter_of(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(INTERPRETER_BYTES).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let words = String::from_utf8_lossy(line);
    Some(PathBuf::from(words.split_whitespace().next()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn spec(more: &str) -> ServiceSpec {
        ServiceSpec::parse(&format!("name='s'\nresource='db'\n{more}")).unwrap()
    }

    fn fields(spec: &ServiceSpec) -> Vec<String> {
        lacks(spec).into_iter().map(|lack| lack.field).collect()
    }

    #[test]
    fn programs_and_users_of_the_node_are_not_reported_as_lacking() {
        let has = "[[process]]\nname='a'\nuser='root'\ncommand=['/bin/sh']\nprepare=['true']\nready={command=['sh','-c','x']}\n";
        assert_eq!(lacks(&spec(has)), []);
    }

    #[test]
    fn every_thing_that_a_node_lacks_is_named_by_its_field() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str, mode: u32| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            path.display().to_string()
        };
        let (plain, script) = (file("plain", "", 0o644), file("script", "#!/nonexistent/sh -e\n", 0o755));
        let process = |text: &str| spec(&format!("[[process]]\nname='a'\n{text}"));
        for (text, field) in [
            ("command=['/bin/sh']\nuser='nobody-has-this'\n".to_owned(), "process[0].user"),
            (
                "command=['/bin/sh']\nprepare=['/bin/sh']\nprepare_user='nobody-has-this'\n".into(),
                "process[0].prepare_user",
            ),
            ("command=['/nonexistent/db']\n".into(), "process[0].command"),
            ("command=['no-such-program']\n".into(), "process[0].command"),
            (format!("command=['{plain}']\n"), "process[0].command"),
            (format!("command=['{script}']\n"), "process[0].command"),
            ("command=['sh']\nenv={PATH='/nonexistent'}\n".into(), "process[0].command"),
            ("command=['/bin/sh']\nprepare=['/bin/no-such']\n".into(), "process[0].prepare"),
            ("command=['/bin/sh']\nready={command=['/bin/no-such']}\n".into(), "process[0].ready"),
            ("command=['/bin/sh']\nprobe={command=['/bin/no-such']}\n".into(), "process[0].probe"),
            (
                "command=['/bin/sh']\nprobe={mysql={socket='/s',password_file='/nonexistent/p'}}\n".into(),
                "process[0].probe",
            ),
        ] {
            assert_eq!(fields(&process(&text)), [field], "{text}");
        }
        let with_password =
            format!("command=['/bin/sh']\nprobe={{mysql={{socket='/s',password_file='{plain}'}}}}\n");
        assert_eq!(fields(&process(&with_password)), Vec::<String>::new());
        let on_volume =
            "[mount]\npath='/srv/s'\nfstype='proc'\n[[process]]\nname='a'\ncommand=['/srv/s/bin/db']\n";
        assert_eq!(fields(&spec(on_volume)), Vec::<String>::new());
        // A link that leads to the volume, which is not mounted here.
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("db");
        std::os::unix::fs::symlink("/srv/s/opt", &link).unwrap();
        for linked in [link.join("bin/db"), directory.path().join("up/../db/bin/db")] {
            let linked = linked.display();
            let text = format!(
                "[mount]\npath='/srv/s'\nfstype='proc'\n[[process]]\nname='a'\ncommand=['{linked}']\n"
            );
            assert_eq!(fields(&spec(&text)), Vec::<String>::new(), "{linked}");
        }
        let vip = spec("[vip]\naddress='10.255.254.7/31'\ninterface='no-such0'\n");
        assert_eq!(fields(&vip), ["vip.interface"]);
        let several = "[[vip]]\naddress='10.255.254.7/31'\ninterface='lo'\n[[vip]]\naddress='fd00:255::7/64'\ninterface='no0'\n";
        assert_eq!(fields(&spec(several)), ["vip[1].interface"]);
        let mount = spec("[mount]\npath='/srv/s'\nfstype='nosuchfs'\nmkfs=true\n");
        let found = fields(&mount);
        // Without the right to ask the kernel nothing is known of what it can.
        assert!(found.ends_with(&["mount.mkfs".to_owned()]), "{found:?}");
        let with = |options: &str| {
            let text = format!("[mount]\npath='/srv/s'\nfstype='ext4'\nmkfs=true\nmkfs_options={options}\n");
            let lacks = lacks_before(&spec(&text));
            lacks.iter().any(|lack| lack.field == "mount.mkfs_options")
        };
        assert!(with("['-O','bigaloc','-C','16384']") && !with("['-O','bigalloc','-C','16384']"));
    }
}

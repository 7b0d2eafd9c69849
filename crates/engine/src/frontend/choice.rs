//! Which frontend an engine uses: what the node's operator asks for against what its kernel offers.
//!
//! Guarantee: a frontend that was named is used, or refused with the reason. It is
//! never replaced by another one. `auto` takes the first of [`AUTO_ORDER`] that the kernel offers,
//! and says why it passed over those before.

use mainstay_devices::netlink::Netlink;
use mainstay_types::FrontendKind;
use std::fs::File;
use std::str::FromStr;
use thiserror::Error;

/// Frontends that `auto` tries, best first: ublk has no second layer of the block stack and no file
/// between the kernel and the engine. Frontends that serve other users than this machine's kernel
/// are used only when they are named.
pub const AUTO_ORDER: [FrontendKind; 2] = [FrontendKind::Ublk, FrontendKind::Fuse];

/// The node's option `device`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum DeviceOption {
    #[default]
    Auto,
    Only(FrontendKind),
}

impl DeviceOption {
    /// Names that [`FromStr`] accepts.
    pub const NAMES: [&str; 5] = ["auto", "ublk", "nbd", "fuse", "vhost-user"];
}

/// No frontend has this name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{0:?} is none of auto, ublk, nbd, fuse, vhost-user")]
pub struct UnknownDevice(String);

impl FromStr for DeviceOption {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "ublk" => Self::Only(FrontendKind::Ublk),
            "nbd" => Self::Only(FrontendKind::Nbd),
            "fuse" => Self::Only(FrontendKind::Fuse),
            "vhost-user" => Self::Only(FrontendKind::VhostUser),
            _ => return Err(UnknownDevice(text.to_owned())),
        })
    }
}

/// Result of a probe: what speaks for a frontend, or why it cannot be used here.
pub type Offer = Result<String, String>;

/// A frontend and why it is used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Choice {
    /// `None`: `auto` found none. The engine runs, and replicates, but its resources get no
    /// devices.
    pub kind: Option<FrontendKind>,
    /// For log and status.
    pub reason: String,
}

/// The frontend that was named cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("device = {kind} was asked for, but {reason}")]
pub struct ChoiceError {
    pub kind: FrontendKind,
    pub reason: String,
}

/// Chooses by what `probe` finds. It is asked about as few frontends as possible: asking may load
/// modules.
///
/// # Errors
/// When the option names a frontend that cannot be used.
pub fn choose(
    option: DeviceOption,
    mut probe: impl FnMut(FrontendKind) -> Offer,
) -> Result<Choice, ChoiceError> {
    match option {
        DeviceOption::Only(kind) => match probe(kind) {
            Ok(reason) => Ok(Choice { kind: Some(kind), reason: format!("asked for; {reason}") }),
            Err(reason) => Err(ChoiceError { kind, reason }),
        },
        DeviceOption::Auto => {
            let mut passed = String::new();
            for kind in AUTO_ORDER {
                match probe(kind) {
                    Ok(reason) => {
                        return Ok(Choice { kind: Some(kind), reason: format!("auto: {passed}{reason}") });
                    }
                    Err(reason) => passed.push_str(&format!("not {kind}, because {reason}; ")),
                }
            }
            Ok(Choice { kind: None, reason: format!("auto: {}", passed.trim_end_matches("; ")) })
        }
    }
}

/// Checks whether a frontend can be used on this machine.
pub fn probe(kind: FrontendKind) -> Offer {
    match kind {
        FrontendKind::Fuse => probe_fuse(),
        FrontendKind::Ublk => mainstay_devices::ublk_device::probe(),
        FrontendKind::Nbd => probe_nbd(),
        FrontendKind::VhostUser => Ok("volumes are disks of virtual machines".to_owned()),
    }
}

/// The server needs nothing of the kernel; devices on this machine do.
fn probe_nbd() -> Offer {
    let driver = Netlink::new().and_then(|netlink| mainstay_devices::nbd_device::driver(&netlink));
    Ok(match driver {
        Ok(Some(_)) => "volumes are exports, and devices of the kernel's nbd driver".to_owned(),
        Ok(None) => "volumes are exports only: the kernel has no nbd driver".to_owned(),
        Err(error) => format!("volumes are exports only: the kernel cannot be asked for nbd ({error})"),
    })
}

fn probe_fuse() -> Offer {
    for (node, module) in [("/dev/fuse", "fuse"), ("/dev/loop-control", "loop")] {
        if let Err(error) = File::options().read(true).write(true).open(node) {
            return Err(format!(
                "{node} cannot be opened ({error}): is the kernel's {module} module loaded?"
            ));
        }
    }
    Ok("the kernel has FUSE and loop devices".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(usable: &[FrontendKind]) -> impl FnMut(FrontendKind) -> Offer {
        move |kind| {
            if usable.contains(&kind) { Ok(format!("{kind} is there")) } else { Err(format!("no {kind}")) }
        }
    }

    #[test]
    fn only_devices_that_fail_with_their_engine_cache() {
        let kinds = [FrontendKind::Ublk, FrontendKind::Nbd, FrontendKind::Fuse, FrontendKind::VhostUser];
        assert_eq!(kinds.map(FrontendKind::caches), [false, false, true, false]);
    }

    #[test]
    fn auto_takes_the_best_device_and_names_those_passed_over() {
        let choice = choose(DeviceOption::Auto, only(&AUTO_ORDER)).unwrap();
        assert_eq!((choice.kind, choice.reason.as_str()), (Some(FrontendKind::Ublk), "auto: ublk is there"));
        let choice = choose(DeviceOption::Auto, only(&[FrontendKind::Fuse])).unwrap();
        assert_eq!(choice.kind, Some(FrontendKind::Fuse));
        assert_eq!(choice.reason, "auto: not ublk, because no ublk; fuse is there");
        let choice = choose(DeviceOption::Auto, only(&[])).unwrap();
        assert_eq!(choice.kind, None);
        assert_eq!(choice.reason, "auto: not ublk, because no ublk; not fuse, because no fuse");
    }

    #[test]
    fn a_named_device_kind_is_used_or_refused() {
        let option = "fuse".parse().unwrap();
        let choice = choose(option, only(&AUTO_ORDER)).unwrap();
        assert_eq!(
            (choice.kind, choice.reason.as_str()),
            (Some(FrontendKind::Fuse), "asked for; fuse is there")
        );
        let error = choose("nbd".parse().unwrap(), only(&AUTO_ORDER)).unwrap_err();
        assert_eq!(error.to_string(), "device = nbd was asked for, but no nbd");
        assert!("nvme".parse::<DeviceOption>().is_err());
    }

    #[test]
    fn every_name_is_taken() {
        for name in DeviceOption::NAMES {
            match name.parse().expect("a name") {
                DeviceOption::Auto => assert_eq!(name, "auto"),
                DeviceOption::Only(kind) => assert_eq!(name, kind.to_string()),
            }
        }
    }
}

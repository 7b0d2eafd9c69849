//! Units of systemd that start the unit of a service without asking Mainstay.
//!
//! | starter | is refused |
//! |---|---|
//! | a socket, timer or path that triggers the unit | if it is enabled or active, or if the unit itself starts it |
//! | a name of D-Bus whose first use starts the unit | always |
//! | a unit that wants or requires the unit, or starts it after its own end | if it is enabled, or active with no setting that says whether it is enabled |
//!
//! Guarantees
//! - A unit with such a starter is not started: the starter could start it again on a node without
//!   the lease (R19).
//! - A starter that is disabled is the operator's business, and is not refused.

use crate::unit::{UnitFault, is_enabled};

/// Another unit that starts the unit of a service. Texts are those of its properties.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitStarter {
    pub id: String,
    pub how: Starts,
    pub load: String,
    pub active: String,
    /// `enabled`, `disabled`, `static` and the like.
    pub file: String,
    /// The unit that it starts starts it as well.
    pub is_needed: bool,
}

/// Occasion on which a unit starts another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Starts {
    /// When something happens: a connection, a time, a change of a file.
    OnTrigger,
    /// Whenever it is started itself.
    WithItself,
    /// When it has ended.
    AfterItself,
    /// When somebody uses a name of D-Bus. The starter's `id` is the name, and its `file` the path
    /// of the file that says so.
    OnName,
}

impl Starts {
    /// Properties of a unit that name its starters, and what they do.
    pub const PROPERTIES: [(&'static str, Self); 7] = [
        ("TriggeredBy", Self::OnTrigger),
        ("WantedBy", Self::WithItself),
        ("RequiredBy", Self::WithItself),
        ("BoundBy", Self::WithItself),
        ("UpheldBy", Self::WithItself),
        ("OnFailureOf", Self::AfterItself),
        ("OnSuccessOf", Self::AfterItself),
    ];
}

/// Properties of a unit that name the units which it starts itself.
pub const UNIT_NEEDS: [&str; 4] = ["Requires", "Wants", "BindsTo", "Upholds"];

impl UnitStarter {
    /// Returns the reason why `unit` cannot be run as long as this starter is as it is.
    #[must_use]
    pub fn fault(&self, unit: &str) -> Option<UnitFault> {
        let Self { id, how, .. } = self;
        let fault = |problem: String, remedy: String| Some(UnitFault { problem, remedy });
        if self.load != "loaded" {
            return None;
        }
        let is_enabled = is_enabled(&self.file);
        let is_active = !matches!(self.active.as_str(), "inactive" | "failed");
        // One without [Install] has no enabled and disabled.
        let can_be_enabled =
            matches!(self.file.as_str(), "enabled" | "enabled-runtime" | "disabled" | "indirect");
        let off = match self.file.as_str() {
            "enabled-runtime" => format!("systemctl disable --runtime --now {id}"),
            _ if can_be_enabled => format!("systemctl disable --now {id}"),
            _ => format!("systemctl mask --now {id}"),
        };
        match how {
            Starts::OnName => {
                let file = &self.file;
                fault(
                    format!(
                        "whoever uses the D-Bus name {id} starts the unit {unit} without a lease: see {file}"
                    ),
                    format!(
                        "copy {file} there to /usr/local/share/dbus-1/system-services, take the line `SystemdService=` out of the copy, \
                         and run `systemctl reload dbus`"
                    ),
                )
            }
            Starts::OnTrigger if self.is_needed => fault(
                format!("the unit {unit} starts {id} itself, and {id} would start it again without a lease"),
                format!(
                    "run `systemctl edit --full {unit}` there and take {id} out of its Requires= and Wants=; then run `{off}`"
                ),
            ),
            Starts::OnTrigger if is_enabled || is_active => {
                let state = if is_active { "active" } else { "enabled" };
                fault(
                    format!("{id} is {state} and would start the unit {unit} without a lease"),
                    format!("run `{off}` there"),
                )
            }
            Starts::WithItself | Starts::AfterItself if is_enabled || (is_active && !can_be_enabled) => {
                let (state, when) = (
                    if is_enabled { "enabled" } else { "active" },
                    if *how == Starts::AfterItself { "when it ends" } else { "with itself" },
                );
                let remedy = if is_enabled {
                    let off = off.replace(" --now", "");
                    format!(
                        "run `{off}` there, or take {unit} out of what {id} starts: see `systemctl cat {id}`"
                    )
                } else {
                    format!(
                        "take {unit} out of what {id} starts there: see `systemctl cat {id}`, and `find /etc/systemd /run/systemd /usr/lib/systemd -name {unit}` for links"
                    )
                };
                fault(format!("{id} is {state} and starts the unit {unit} {when}, without a lease"), remedy)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starter(id: &str, how: Starts, active: &str, file: &str) -> UnitStarter {
        UnitStarter {
            id: id.into(),
            how,
            load: "loaded".into(),
            active: active.into(),
            file: file.into(),
            is_needed: false,
        }
    }

    #[test]
    fn a_unit_that_would_be_started_without_the_lease_is_refused_with_the_command_that_disables_its_starter()
    {
        use Starts::{AfterItself, OnTrigger, WithItself};
        for (starter, remedy) in [
            (starter("a.socket", OnTrigger, "inactive", "enabled"), "`systemctl disable --now a.socket`"),
            (starter("a.socket", OnTrigger, "active", "disabled"), "`systemctl disable --now a.socket`"),
            (starter("a.timer", OnTrigger, "active", "static"), "`systemctl mask --now a.timer`"),
            (
                starter("a.path", OnTrigger, "inactive", "enabled-runtime"),
                "`systemctl disable --runtime --now a.path`",
            ),
            (starter("b.service", WithItself, "inactive", "enabled"), "`systemctl disable b.service`"),
            (starter("b.service", AfterItself, "active", "enabled"), "`systemctl disable b.service`"),
            (starter("multi-user.target", WithItself, "active", "static"), "take a.service out"),
            (starter("dev-sda.device", WithItself, "active", ""), "take a.service out"),
        ] {
            let fault = starter.fault("a.service").expect("it is refused");
            assert!(fault.problem.contains(&starter.id) && fault.problem.contains("a.service"), "{fault:?}");
            assert!(fault.remedy.contains(remedy), "{remedy}: {fault:?}");
        }
        for harmless in [
            starter("a.socket", OnTrigger, "inactive", "disabled"),
            starter("a.socket", OnTrigger, "failed", "static"),
            starter("b.service", WithItself, "active", "disabled"),
            starter("b.target", WithItself, "inactive", "static"),
            UnitStarter { load: "masked".into(), ..starter("a.socket", OnTrigger, "active", "masked") },
        ] {
            assert_eq!(harmless.fault("a.service"), None, "{harmless:?}");
        }
    }

    #[test]
    fn a_socket_that_the_unit_starts_itself_is_refused_before_it_is_there() {
        let socket =
            UnitStarter { is_needed: true, ..starter("a.socket", Starts::OnTrigger, "inactive", "disabled") };
        let fault = socket.fault("a.service").expect("it would be active when the unit has run");
        assert!(fault.problem.contains("starts a.socket itself"), "{fault:?}");
        let needed = UnitStarter { how: Starts::WithItself, ..socket };
        assert_eq!(needed.fault("a.service"), None, "it starts nothing by itself");
    }
}

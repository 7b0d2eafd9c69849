//! The placement of a service: what its file says about other services and about nodes.
//!
//! The control plane decides with it where each service runs (`mainstay_control::constraints`).
//! This file knows one service file alone. Cycles and unknown names are found when it is applied.

use crate::spec::{SpecError, name_field};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;

/// Most names in one list of a placement.
pub const PLACEMENT_NAMES_MAX: usize = 16;

/// Constraints of a service. They are kept always; preferences are in the policy.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Placement {
    /// Services that have to run for this one to run. It starts after them and stops before them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// The service on whose node this one runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<String>,
    /// Services that never run on the node of this one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub apart: Vec<String>,
    /// Nodes on which the service never runs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub avoid: Vec<String>,
}

impl Placement {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn validate(&self, service: &str) -> Result<(), SpecError> {
        let lists = [("after", &self.after), ("apart", &self.apart), ("avoid", &self.avoid)];
        for (list, names) in lists {
            names_field(&format!("placement.{list}"), names)?;
            if list != "avoid" && names.iter().any(|name| name == service) {
                return Err(itself(&format!("placement.{list}")));
            }
        }
        if let Some(with) = &self.with {
            name_field("placement.with", with)?;
            if with == service {
                return Err(itself("placement.with"));
            }
            if self.apart.contains(with) {
                return Err(SpecError::new(
                    "placement.apart",
                    format!("service {with} is in `with` too"),
                    "remove it from one of the two: a service cannot be on the node of another one and apart from it",
                ));
            }
        }
        Ok(())
    }
}

fn itself(field: &str) -> SpecError {
    SpecError::new(field, "the service names itself", "name another service, or remove the name")
}

/// Checks a list of names.
pub(crate) fn names_field(field: &str, names: &[String]) -> Result<(), SpecError> {
    if names.len() > PLACEMENT_NAMES_MAX {
        let problem = format!("more than {PLACEMENT_NAMES_MAX} names");
        return Err(SpecError::new(field, problem, "name fewer"));
    }
    let mut seen = BTreeSet::new();
    for (i, name) in names.iter().enumerate() {
        name_field(&format!("{field}[{i}]"), name)?;
        if !seen.insert(name) {
            return Err(SpecError::new(field, format!("'{name}' is there twice"), "name it once"));
        }
    }
    Ok(())
}

/// One name or a list of names; a list of one is written as the name.
pub(crate) mod name_or_names {
    use super::{Deserializer, Serialize, Serializer};
    use serde::de::{Error, SeqAccess, Visitor};
    use std::fmt;

    pub fn serialize<S: Serializer>(names: &[String], serializer: S) -> Result<S::Ok, S::Error> {
        match names {
            [name] => name.serialize(serializer),
            names => names.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Vec<String>;

            fn expecting(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str("a string or a list of strings")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Vec<String>, E> {
                Ok(vec![name.to_owned()])
            }

            // A file of an earlier release may have nothing in the place of the name.
            fn visit_unit<E: Error>(self) -> Result<Vec<String>, E> {
                Ok(Vec::new())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<String>, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                Ok(names)
            }
        }
        deserializer.deserialize_any(Names)
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::ServiceSpec;

    const HEAD: &str = "name='app'\nresource='app'\n[mount]\npath='/srv/app'\n";

    fn parsed(more: &str) -> Result<ServiceSpec, crate::SpecError> {
        ServiceSpec::parse(&format!("{HEAD}{more}"))
    }

    #[test]
    fn a_preferred_node_is_a_name_or_a_list_and_survives_json_and_toml() {
        for (text, names) in
            [("'n1'", vec!["n1"]), ("['n1']", vec!["n1"]), ("['n2', 'n1']", vec!["n2", "n1"])]
        {
            let spec = parsed(&format!("[policy]\npreferred = {text}\nfailback = true\n")).unwrap();
            assert_eq!(spec.policy.preferred, names);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(
                json.contains("\"preferred\":\"n1\""),
                names == ["n1"],
                "as earlier releases wrote it: {json}"
            );
            assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
            assert_eq!(ServiceSpec::parse(&spec.to_toml().unwrap()).unwrap(), spec);
        }
    }

    #[test]
    fn a_placement_is_read_and_shown() {
        let placed = "[placement]\nafter = ['db']\nwith = 'db'\napart = ['other']\navoid = ['n3']\n";
        let spec = parsed(placed).unwrap();
        assert_eq!((spec.placement.after.len(), spec.placement.with.as_deref()), (1, Some("db")));
        assert_eq!(ServiceSpec::parse(&spec.to_toml().unwrap()).unwrap(), spec);
        let changed = parsed("").unwrap().changes(&spec);
        let fields: Vec<_> = changed.iter().map(|change| (change.field.as_str(), change.restarts)).collect();
        let placement = ["placement.after", "placement.with", "placement.apart", "placement.avoid"];
        assert_eq!(fields, placement.map(|field| (field, false)));
    }

    #[test]
    fn a_placement_that_makes_no_sense_is_refused_with_its_field() {
        for (more, field) in [
            ("[placement]\nafter = ['app']\n", "placement.after"),
            ("[placement]\nwith = 'app'\n", "placement.with"),
            ("[placement]\nwith = 'db'\napart = ['db']\n", "placement.apart"),
            ("[placement]\napart = ['db', 'db']\n", "placement.apart"),
            ("[placement]\navoid = ['N 1']\n", "placement.avoid[0]"),
            ("[placement]\nbefore = ['db']\n", "placement.before"),
            ("[placement]\nafter = 'db'\n", "placement.after"),
            ("[policy]\npreferred = ['n1', 'n1']\n", "policy.preferred"),
            ("[policy]\npreferred = 3\n", "policy.preferred"),
            ("[policy]\npreferred = []\nfailback = true\n", "policy.failback"),
        ] {
            let error = parsed(more).unwrap_err();
            assert!(error.field.starts_with(field), "{more}: {error}");
            assert!(!error.remedy.is_empty(), "{more}");
        }
    }
}

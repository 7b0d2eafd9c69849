//! The floating addresses of a service, as the operator writes them.
//!
//! A file has one table `[vip]`, or several tables `[[vip]]`. Both are read into the same list. A
//! list of one is written as the table, which versions before several addresses read as well.
//!
//! Guarantees
//! - An address that passed [`validate`] is one that a single host of a network may have. Whether
//!   it is an address of a node of the cluster is for the control plane to say.

use crate::spec::SpecError;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most floating addresses of one service.
pub const VIPS_MAX: usize = 16;

/// A floating address of a service.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vip {
    /// With prefix length, for example `10.0.0.7/24` or `fd00::7/64`.
    pub address: String,
    /// The interface that has an address in the same subnet, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
}

/// A parsed `address/prefix`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    pub ip: IpAddr,
    pub prefix: u8,
}

impl Vip {
    /// The parsed address; `None` only for a specification that was not validated.
    #[must_use]
    pub fn parsed(&self) -> Option<Address> {
        let (ip, prefix) = self.address.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let prefix: u8 = prefix.parse().ok()?;
        let prefix_max = if ip.is_ipv4() { 32 } else { 128 };
        (prefix >= 1 && prefix <= prefix_max && !ip.is_unspecified() && !ip.is_multicast())
            .then_some(Address { ip, prefix })
    }

    fn check(&self, field: &str) -> Result<(), SpecError> {
        let refused = |(problem, remedy): (&str, &str)| {
            Err(SpecError::new(format!("{field}.address"), format!("'{}' {problem}", self.address), remedy))
        };
        let well_formed = self
            .address
            .split_once('/')
            .and_then(|(ip, prefix)| Some((ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?)));
        let wrong = match well_formed {
            None => Some(NO_ADDRESS),
            Some((IpAddr::V4(ip), prefix)) => wrong_v4(ip, prefix),
            Some((IpAddr::V6(ip), prefix)) => wrong_v6(ip, prefix),
        };
        match wrong {
            Some(wrong) => refused(wrong),
            None => self.check_interface(field),
        }
    }

    fn check_interface(&self, field: &str) -> Result<(), SpecError> {
        let wrong = |name: &String| {
            name.is_empty()
                || name.len() > 15
                || name.bytes().any(|b| b == b'/' || b.is_ascii_control() || b.is_ascii_whitespace())
        };
        let Some(interface) = self.interface.as_ref().filter(|name| wrong(name)) else { return Ok(()) };
        Err(SpecError::new(
            format!("{field}.interface"),
            format!("'{interface}' is not an interface name"),
            "name an interface as `ip link` shows it, or leave the field out to have it found by subnet",
        ))
    }
}

/// A problem and its remedy.
type Wrong = (&'static str, &'static str);

const NO_ADDRESS: Wrong =
    ("is not a unicast IP address with prefix length", "write it like \"10.0.0.7/24\" or \"fd00::7/64\"");
const ANOTHER: &str = "use an address that a single host may have";
const ANOTHER_OF_IT: &str = "use another address of the network";

fn wrong_v4(ip: Ipv4Addr, prefix: u8) -> Option<Wrong> {
    let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let own = ip.to_bits() & hosts;
    match ip.octets()[0] {
        _ if prefix == 0 || prefix > 32 => Some(NO_ADDRESS),
        0 => Some(("is unspecified: it names no host", ANOTHER)),
        127 => Some(("is a loopback address: no other host reaches it", ANOTHER)),
        224..=239 => Some(("is a multicast address", ANOTHER)),
        240..=255 => Some(("is reserved, or the address of all hosts (broadcast)", ANOTHER)),
        // RFC 3021: with 31 bits both addresses are hosts.
        _ if prefix < 31 && own == 0 => Some(("is the address of the network itself", ANOTHER_OF_IT)),
        _ if prefix < 31 && own == hosts => {
            Some(("is the address of all hosts of the network (broadcast)", ANOTHER_OF_IT))
        }
        _ => None,
    }
}

fn wrong_v6(ip: Ipv6Addr, prefix: u8) -> Option<Wrong> {
    let hosts = u128::MAX.checked_shr(prefix.into()).unwrap_or(0);
    match ip {
        _ if prefix == 0 || prefix > 128 => Some(NO_ADDRESS),
        _ if ip.is_unspecified() => Some(("is unspecified: it names no host", ANOTHER)),
        _ if ip.is_loopback() => Some(("is a loopback address: no other host reaches it", ANOTHER)),
        _ if ip.is_multicast() => Some(("is a multicast address", ANOTHER)),
        _ if ip.is_unicast_link_local() => Some((
            "is a link-local address: it names a host only together with an interface",
            "use a global address, or a unique local one such as \"fd00::7/64\"",
        )),
        // ::ffff:0:0/96 is IPv4 in the form of IPv6, ::/96 its abandoned predecessor.
        _ if ip.to_ipv4().is_some() => {
            Some(("is an IPv4 address written as IPv6", "write it as IPv4, such as \"10.0.0.7/24\""))
        }
        // RFC 4291, 2.6.1; RFC 6164: with 127 bits both addresses are hosts.
        _ if prefix < 127 && ip.to_bits() & hosts == 0 => {
            Some(("is the anycast address of all routers of the network", ANOTHER_OF_IT))
        }
        _ => None,
    }
}

/// Checks everything about the addresses of a service that can be checked without a node.
///
/// # Errors
/// The first fault, with its field.
pub(crate) fn validate(vips: &[Vip]) -> Result<(), SpecError> {
    if vips.len() > VIPS_MAX {
        let problem = format!("more than {VIPS_MAX} addresses");
        return Err(SpecError::new("vip", problem, "give the other addresses to other services"));
    }
    for (i, vip) in vips.iter().enumerate() {
        let field = if vips.len() == 1 { "vip".to_owned() } else { format!("vip[{i}]") };
        vip.check(&field)?;
        let ip = vip.parsed().map(|address| address.ip);
        if vips[..i].iter().any(|other| other.parsed().map(|address| address.ip) == ip) {
            return Err(SpecError::new(
                format!("{field}.address"),
                format!("'{}' is there twice", vip.address),
                "give every table [[vip]] its own address",
            ));
        }
    }
    Ok(())
}

/// All addresses in words for the operator; empty for none.
#[must_use]
pub fn listed(vips: &[Vip]) -> String {
    vips.iter().map(|vip| vip.address.as_str()).collect::<Vec<_>>().join(", ")
}

/// One table, or a list of them.
pub(crate) mod one_or_many {
    use super::Vip;
    use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
    use serde::de::{MapAccess, SeqAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::fmt;

    pub fn serialize<S: Serializer>(vips: &[Vip], serializer: S) -> Result<S::Ok, S::Error> {
        match vips {
            [one] => one.serialize(serializer),
            many => many.serialize(serializer),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vip>, D::Error> {
        struct OneOrMany;
        impl<'de> Visitor<'de> for OneOrMany {
            type Value = Vec<Vip>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table or a list of tables")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Vec<Vip>, A::Error> {
                Vip::deserialize(MapAccessDeserializer::new(map)).map(|vip| vec![vip])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<Vip>, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(list))
            }

            // An older version wrote no address so.
            fn visit_unit<E>(self) -> Result<Vec<Vip>, E> {
                Ok(Vec::new())
            }
        }
        deserializer.deserialize_any(OneOrMany)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServiceSpec;

    const TOP: &str = "name='a'\nresource='r'\n";

    #[test]
    fn a_floating_address_is_one_that_a_host_may_have() {
        let address = |address: &str| ServiceSpec::parse(&format!("{TOP}[vip]\naddress='{address}'\n"));
        for good in [
            "10.0.0.7/24",
            "10.0.0.0/31",
            "10.0.0.1/31",
            "10.0.0.0/32",
            "10.0.0.255/16",
            "10.0.1.0/16",
            "fd00::7/64",
            "fd00::/127",
            "fd00::/128",
            "2001:db8::ffff:ffff:ffff:ffff/64",
        ] {
            assert!(address(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("10.0.0.7", "with prefix length"),
            ("10.0.0.7/0", "with prefix length"),
            ("10.0.0.7/33", "with prefix length"),
            ("here/24", "with prefix length"),
            ("10.0.0.0/24", "network itself"),
            ("10.0.0.255/24", "broadcast"),
            ("10.0.0.3/30", "broadcast"),
            ("0.0.0.0/32", "unspecified"),
            ("127.0.0.1/8", "loopback"),
            ("224.0.0.5/24", "multicast"),
            ("255.255.255.255/32", "broadcast"),
            ("fd00::7", "with prefix length"),
            ("fd00::7/0", "with prefix length"),
            ("fd00::7/129", "with prefix length"),
            ("fe80::7%eth0/64", "with prefix length"),
            ("::/64", "unspecified"),
            ("::1/128", "loopback"),
            ("ff02::1/64", "multicast"),
            ("fe80::7/64", "link-local"),
            ("::ffff:10.0.0.7/96", "IPv4 address written as IPv6"),
            ("::10.0.0.7/96", "IPv4 address written as IPv6"),
            ("fd00::/64", "all routers"),
        ] {
            let error = address(bad).unwrap_err();
            assert_eq!(error.field, "vip.address", "{bad}");
            assert!(error.problem.contains(why) && !error.remedy.is_empty(), "{bad}: {error}");
        }
    }

    #[test]
    fn a_table_and_a_list_of_tables_are_read_and_written() {
        let table = "[[vip]]\naddress='10.0.0.7/24'\n";
        let second = "[[vip]]\naddress='fd00::7/64'\ninterface='eth1'\n";
        let one = ServiceSpec::parse(&format!("{TOP}{table}")).unwrap();
        assert_eq!(one, ServiceSpec::parse(&format!("{TOP}[vip]\naddress='10.0.0.7/24'\n")).unwrap());
        assert!(serde_json::to_value(&one).unwrap()["vip"].is_object(), "an older version reads it");
        let two = ServiceSpec::parse(&format!("{TOP}{table}{second}")).unwrap();
        assert_eq!(listed(&two.vips), "10.0.0.7/24, fd00::7/64");
        assert_eq!(two.vips[1].interface.as_deref(), Some("eth1"));
        for spec in [one, two] {
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<ServiceSpec>(&json).unwrap(), spec);
            assert_eq!(ServiceSpec::parse(&spec.to_toml().unwrap()).unwrap(), spec);
        }
        let none = serde_json::json!({ "name": "a", "resource": "r", "vip": null });
        assert_eq!(serde_json::from_value::<ServiceSpec>(none).unwrap().vips, []);
    }

    #[test]
    fn a_fault_of_one_address_among_several_is_named_by_its_place() {
        let parse = |more: &str| ServiceSpec::parse(&format!("{TOP}{more}")).unwrap_err();
        let good = "[[vip]]\naddress='10.0.0.7/24'\n";
        let twice = parse(&format!("{good}[[vip]]\naddress='10.0.0.7/16'\n"));
        assert_eq!((twice.field.as_str(), twice.problem.contains("twice")), ("vip[1].address", true));
        let bad = parse(&format!("{good}[[vip]]\naddress='fe80::7/64'\n"));
        assert_eq!(bad.field, "vip[1].address");
        let named = parse(&format!("{good}[[vip]]\naddress='fd00::7/64'\ninterface='a b'\n"));
        assert_eq!(named.field, "vip[1].interface");
        let unknown = parse(&format!("{good}[[vip]]\naddres='fd00::7/64'\n"));
        assert!(unknown.field.starts_with("vip[1].addres (line "), "{unknown}");
        assert!(unknown.remedy.contains("did you mean address?"), "{}", unknown.remedy);
        let many: String = (1..=17).map(|n| format!("[[vip]]\naddress='10.0.0.{n}/24'\n")).collect();
        assert_eq!(parse(&many).field, "vip");
        assert!(parse("vip = 'x'\n").problem.contains("has to be a table or a list of tables"));
    }
}

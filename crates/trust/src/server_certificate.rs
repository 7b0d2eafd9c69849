//! The certificate that a node shows to clients of its API, from the cluster's authority.
//!
//! Guarantees
//! - It is never taken for a node's: a node's certificate names its cluster and number as a URI
//!   ([`crate::Subject`]), and this one has no URI. It is for servers only.
//! - A node's certificate is never taken for this one: it has neither a host name nor an address.

use crate::TrustError;
use crate::authority::{Authority, Issued, LIFE_MS, life, serial};
use crate::key::PublicKey;
use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyUsagePurpose, SanType,
};
use rustls::pki_types::ServerName;
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Most names, and most addresses, that a certificate gets.
const NAMES_MAX: usize = 64;
/// Name of the owner in the certificate. It decides nothing.
const OWNER: &str = "mainstay API";

/// Names and addresses under which clients reach a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ServerNames {
    names: BTreeSet<String>,
    addresses: BTreeSet<IpAddr>,
}

impl ServerNames {
    /// Adds a host: an address, or a name. Text that is neither is left out.
    pub fn add(&mut self, host: &str) {
        if let Ok(address) = host.parse::<IpAddr>() {
            self.add_address(address);
            return;
        }
        let is_name = matches!(ServerName::try_from(host), Ok(ServerName::DnsName(_)));
        if is_name && self.names.len() < NAMES_MAX {
            self.names.insert(host.to_ascii_lowercase());
        }
    }

    /// Adds an address. One that stands for all addresses of the machine is left out.
    pub fn add_address(&mut self, address: IpAddr) {
        if !address.is_unspecified() && self.addresses.len() < NAMES_MAX {
            self.addresses.insert(address.to_canonical());
        }
    }

    fn alternatives(&self) -> Result<Vec<SanType>, TrustError> {
        let names = self.names.iter().map(|name| Ok(SanType::DnsName(name.as_str().try_into()?)));
        let addresses = self.addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
        names.chain(addresses).collect()
    }
}

impl Authority {
    /// Gives a node a certificate for its server of the API.
    ///
    /// # Errors
    /// When the kernel gives no randomness, or the clock is outside of what certificates can say.
    pub fn issue_server(
        &self,
        names: &ServerNames,
        key: &PublicKey,
        now_ms: u64,
    ) -> Result<Issued, TrustError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, OWNER);
        params.subject_alt_names = names.alternatives()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.serial_number = Some(serial()?);
        (params.not_before, params.not_after) = life(now_ms, LIFE_MS)?;
        self.sign(params, key, now_ms + LIFE_MS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::peer::{Expect, Refusal, Trust};
    use mainstay_types::NodeId;
    use rustls::pki_types::UnixTime;
    use std::time::Duration;

    const NOW_MS: u64 = 1_800_000_000_000;

    #[test]
    fn a_certificate_of_the_api_is_never_taken_for_that_of_a_node() {
        let (authority, key) = (Authority::make(7, 1, NOW_MS).unwrap(), Key::generate().unwrap());
        let mut names = ServerNames::default();
        // A name that looks like a node's is no name of a host.
        names.add("mainstay://0000000000000007/node/1");
        names.add("n1");
        names.add("10.0.0.1");
        let issued = authority.issue_server(&names, &key.public(), NOW_MS).unwrap();
        assert_eq!(issued.until_ms, NOW_MS + LIFE_MS);
        let shown = [issued.certificate, authority.certificate().clone()];
        let now = UnixTime::since_unix_epoch(Duration::from_millis(NOW_MS));
        let with_record = [(NodeId(1), key.public().fingerprint())].into();
        for members in [None, Some(with_record)] {
            let trust =
                Trust { cluster: Some(7), authorities: vec![authority.certificate().clone()], members };
            assert_eq!(trust.judge_client(&shown, now), Err(Refusal::WrongUse));
            for expect in [
                Expect::Node(NodeId(1)),
                Expect::Member,
                Expect::Renewal,
                Expect::Authority(authority.fingerprint()),
            ] {
                assert_eq!(trust.judge_server(&shown, expect, now), Err(Refusal::Malformed), "{expect:?}");
            }
        }
    }

    #[test]
    fn a_certificate_has_the_names_that_can_be_names_of_hosts() {
        let mut names = ServerNames::default();
        for host in
            ["n1", "DB.Example.com", "10.0.0.1", "::1", "0.0.0.0", "", "a b", "-", "*", "::ffff:10.0.0.1"]
        {
            names.add(host);
        }
        assert_eq!(names.names.iter().collect::<Vec<_>>(), ["db.example.com", "n1"]);
        assert_eq!(names.addresses.len(), 2, "{names:?}");
        (0..200).for_each(|number| names.add(&format!("n{number}")));
        assert_eq!(names.names.len(), NAMES_MAX);
    }
}

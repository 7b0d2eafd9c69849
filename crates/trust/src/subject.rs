//! The name in a node's certificate: its cluster and its number there, as a URI.

use mainstay_types::NodeId;
use std::fmt;

const SCHEME: &str = "mainstay://";

/// A node of a cluster. Numbers of nodes are never used again in a cluster, so this names one
/// machine for good. Written as `mainstay://00c0ffee00c0ffee/node/3`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Subject {
    pub cluster: u64,
    pub node: NodeId,
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{:016x}/node/{}", self.cluster, self.node.0)
    }
}

impl Subject {
    /// Reads a name, in exactly the form that is written.
    #[must_use]
    pub fn read(uri: &str) -> Option<Self> {
        let (cluster, node) = uri.strip_prefix(SCHEME)?.split_once("/node/")?;
        let subject =
            Self { cluster: u64::from_str_radix(cluster, 16).ok()?, node: NodeId(node.parse().ok()?) };
        (subject.to_string() == uri).then_some(subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_in_one_form_only() {
        let subject = Subject { cluster: 0xc0ffee, node: NodeId(3) };
        assert_eq!(subject.to_string(), "mainstay://0000000000c0ffee/node/3");
        assert_eq!(Subject::read(&subject.to_string()), Some(subject));
        for bad in [
            "",
            "mainstay://",
            "mainstay://c0ffee/node/3",
            "mainstay://0000000000C0FFEE/node/3",
            "mainstay://0000000000c0ffee/node/",
            "mainstay://0000000000c0ffee/node/+3",
            "mainstay://0000000000c0ffee/node/03",
            "mainstay://0000000000c0ffee/node/3/",
            "mainstay://0000000000c0ffee/node/99999999999999999999",
            "https://0000000000c0ffee/node/3",
        ] {
            assert_eq!(Subject::read(bad), None, "{bad}");
        }
    }
}

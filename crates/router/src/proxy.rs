//! The header of the PROXY protocol, version 2: it tells the database the address of the client
//! behind the router. Source: HAProxy's `doc/proxy-protocol.txt`, section 2.2.

use std::net::{IpAddr, SocketAddr};

const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;

/// Returns the header of a connection that `client` made to the router's address `router`.
#[must_use]
pub fn header(client: SocketAddr, router: SocketAddr) -> Vec<u8> {
    let mut addresses = Vec::with_capacity(36);
    let family = match (client.ip().to_canonical(), router.ip().to_canonical()) {
        (IpAddr::V4(client), IpAddr::V4(router)) => {
            addresses.extend(client.octets());
            addresses.extend(router.octets());
            TCP_OVER_IPV4
        }
        (client, router) => {
            for ip in [client, router] {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                addresses.extend(ip.octets());
            }
            TCP_OVER_IPV6
        }
    };
    addresses.extend(client.port().to_be_bytes());
    addresses.extend(router.port().to_be_bytes());
    let mut header = Vec::with_capacity(16 + addresses.len());
    header.extend(SIGNATURE);
    header.extend([VERSION_AND_COMMAND, family, 0, addresses.len() as u8]);
    header.extend(addresses);
    header
}

#[cfg(test)]
mod tests {
    use super::header;

    #[test]
    fn the_header_has_the_bytes_of_the_protocol() {
        let four = header("192.0.2.7:51000".parse().unwrap(), "198.51.100.1:6446".parse().unwrap());
        let mut expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c".to_vec();
        expected.extend([192, 0, 2, 7, 198, 51, 100, 1, 0xc7, 0x38, 0x19, 0x2e]);
        assert_eq!(four, expected);
        let six = header("[2001:db8::7]:51000".parse().unwrap(), "[2001:db8::1]:6446".parse().unwrap());
        assert_eq!((six.len(), &six[12..16]), (52, &[0x21, 0x21, 0, 36][..]));
        assert_eq!(&six[48..], &[0xc7, 0x38, 0x19, 0x2e]);
    }

    /// A router that listens on all IPv6 addresses sees IPv4 clients as mapped ones.
    #[test]
    fn a_mapped_address_is_told_as_the_ipv4_address_that_it_is() {
        let mapped =
            header("[::ffff:192.0.2.7]:1".parse().unwrap(), "[::ffff:198.51.100.1]:2".parse().unwrap());
        assert_eq!(mapped, header("192.0.2.7:1".parse().unwrap(), "198.51.100.1:2".parse().unwrap()));
    }
}

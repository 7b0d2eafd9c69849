//! An agent on another machine: its address, how it is known, and the token for it.
//!
//! Guarantees
//! - Nothing is sent before the server has proven that it is the one that was asked for. TLS is
//!   1.3.
//! - The token is in no error and no output.

use crate::ClientError;
use hyper::header::HeaderValue;
use mainstay_trust::https::{Believed, client};
use mainstay_trust::{ApiToken, Zeroizing, pem};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error};

pub(crate) const SCHEME: &str = "https:";
/// Port of an agent's server if none is named.
pub const PORT: u16 = 7404;
/// Files in which distributions keep the authorities that a machine trusts.
const OF_MACHINE: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];

/// How a command knows the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Knows {
    /// By the authorities that this machine trusts.
    Machine,
    /// By the authorities whose certificates are in this text, in PEM form.
    Authorities(Vec<u8>),
    /// By the SHA-256 of its certificate or of its authority's, as 64 hexadecimal digits with or
    /// without colons.
    Fingerprint(String),
}

/// Reasons why a server cannot be asked, each with the option that is wrong.
#[derive(Debug, thiserror::Error)]
pub enum BadServer {
    #[error("`{0}` is not the address of a server: write it as https://HOST:PORT")]
    Address(String),
    #[error("the certificates of the authorities cannot be used: {0}")]
    Authorities(String),
    #[error("`{0}` is not a fingerprint: it has 64 hexadecimal digits")]
    Fingerprint(String),
    #[error("this machine has no list of authorities: name the cluster's with --ca or --fingerprint")]
    NoAuthorities,
    #[error("{0}")]
    Token(String),
}

/// See the top of this file.
#[derive(Clone)]
pub struct Server {
    /// Host without brackets.
    host: String,
    /// Host and port, as in a URL.
    address: String,
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    token: Zeroizing<String>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({})", self.address)
    }
}

impl Server {
    /// `address` is a URL such as `https://n1:7404`.
    ///
    /// # Errors
    /// When one of the parts cannot be used.
    pub fn new(address: &str, knows: Knows, token: &str) -> Result<Self, BadServer> {
        let (host, port) = split(address).ok_or_else(|| BadServer::Address(address.to_owned()))?;
        let name = ServerName::try_from(host.clone()).map_err(|_| BadServer::Address(address.to_owned()))?;
        let token = ApiToken::read(token).map_err(|error| BadServer::Token(error.to_string()))?.text();
        let believed = match knows {
            Knows::Machine => Believed::Authorities(of_machine()?),
            Knows::Authorities(text) => Believed::Authorities(
                pem::certificates(&text).map_err(|why| BadServer::Authorities(format!("the file {why}")))?,
            ),
            Knows::Fingerprint(digits) => {
                let plain = digits.replace(':', "").to_lowercase();
                Believed::Fingerprint(plain.parse().map_err(|_| BadServer::Fingerprint(digits))?)
            }
        };
        let config = client(believed).map_err(|error| BadServer::Authorities(error.to_string()))?;
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        Ok(Self { address: format!("{shown}:{port}"), host, config, name, token })
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The place as errors tell it.
    pub(crate) fn shown(&self) -> PathBuf {
        format!("{SCHEME}//{}", self.address).into()
    }

    /// Value of the header that proves the caller.
    pub(crate) fn authorization(&self) -> HeaderValue {
        let text = Zeroizing::new(format!("Bearer {}", *self.token));
        // A token has characters of headers only.
        let mut value = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        value.set_sensitive(true);
        value
    }

    /// Opens a connection on which the server has proven itself.
    pub(crate) async fn connect(&self) -> Result<TlsStream<TcpStream>, ClientError> {
        let unreachable = |source| ClientError::Unreachable { path: self.shown(), source };
        let stream = TcpStream::connect(&self.address).await.map_err(unreachable)?;
        let made = TlsConnector::from(self.config.clone()).connect(self.name.clone(), stream).await;
        made.map_err(|error| match self.why(&error) {
            Some(why) => ClientError::Unproven { path: self.shown(), why },
            None => unreachable(error),
        })
    }

    /// Why the server was not believed, in words; `None` if the connection itself failed.
    fn why(&self, error: &io::Error) -> Option<String> {
        use CertificateError as Bad;
        let tls = error.get_ref()?.downcast_ref::<Error>()?;
        let words = match tls {
            Error::InvalidCertificate(Bad::UnknownIssuer) => {
                "its certificate comes from no authority that this command believes"
            }
            Error::InvalidCertificate(Bad::NotValidForName | Bad::NotValidForNameContext { .. }) => {
                return Some(format!("its certificate is for other names than {}", self.host));
            }
            Error::InvalidCertificate(Bad::Expired | Bad::ExpiredContext { .. }) => {
                "its certificate has ended by the clock of this machine"
            }
            Error::InvalidCertificate(Bad::NotValidYet | Bad::NotValidYetContext { .. }) => {
                "its certificate is not valid yet by the clock of this machine"
            }
            Error::InvalidMessage(_) => "it does not speak TLS",
            other => return Some(other.to_string()),
        };
        Some(words.to_owned())
    }
}

/// Host without brackets, and port.
fn split(address: &str) -> Option<(String, u16)> {
    let rest = address.strip_prefix(SCHEME)?.strip_prefix("//")?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = match rest.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            (host, port.strip_prefix(':').or(Some(port).filter(|rest| rest.is_empty()))?)
        }
        None => match rest.split_once(':') {
            Some((_, "")) => return None,
            Some(both) => both,
            None => (rest, ""),
        },
    };
    let port = if port.is_empty() { PORT } else { port.parse().ok().filter(|port| *port > 0)? };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

fn of_machine() -> Result<Vec<tokio_rustls::rustls::pki_types::CertificateDer<'static>>, BadServer> {
    let found = OF_MACHINE.iter().find(|path| Path::new(path).exists()).ok_or(BadServer::NoAuthorities)?;
    let bad = |why: String| BadServer::Authorities(format!("{found} {why}"));
    let text = std::fs::read(found).map_err(|error| bad(format!("cannot be read: {error}")))?;
    pem::certificates(&text).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_server_has_one_form() {
        for (text, host, port) in [
            ("https://n1:7404", "n1", 7404),
            ("https://n1", "n1", PORT),
            ("https://n1/", "n1", PORT),
            ("https://10.0.0.1:443", "10.0.0.1", 443),
            ("https://[2001:db8::1]:443", "2001:db8::1", 443),
            ("https://[2001:db8::1]", "2001:db8::1", PORT),
        ] {
            assert_eq!(split(text), Some((host.to_owned(), port)), "{text}");
        }
        let bad = [
            "",
            "n1",
            "n1:7404",
            "http://n1:7404",
            "https://",
            "https://:1",
            "https://n1:",
            "https://n1:0",
            "https://n1:99999",
            "https://n1:1:2",
            "https://[n1]:1",
            "https://[::1",
            "https://[::1]x",
        ];
        for text in bad {
            assert_eq!(split(text), None, "{text}");
        }
        let token = ApiToken::make().unwrap().text();
        let print = Knows::Fingerprint("ab".repeat(32));
        for text in ["https://a b:1", "https://me@n1:1", "https://n1/v1", "https://n1?x=1"] {
            assert!(matches!(Server::new(text, print.clone(), &token), Err(BadServer::Address(_))), "{text}");
        }
    }

    #[test]
    fn a_token_is_in_no_output() {
        let (token, print) = (ApiToken::make().unwrap().text(), Knows::Fingerprint("AB:".repeat(31) + "AB"));
        let server = Server::new("https://n1", print.clone(), &token).unwrap();
        let secret = token.splitn(4, '_').nth(3).unwrap();
        assert!(secret.len() > 30 && server.authorization().to_str().unwrap().ends_with(secret));
        let shown = format!("{server:?} {:?} {}", server.authorization(), server.shown().display());
        assert!(!shown.contains(&secret[..8]), "{shown}");
        let mangled = Server::new("https://n1", print, &token[..token.len() - 1]).unwrap_err();
        assert!(!mangled.to_string().contains(&secret[..8]), "{mangled}");
    }

    #[test]
    fn a_server_is_known_by_something() {
        let token = ApiToken::make().unwrap().text();
        let new = |knows| Server::new("https://n1", knows, &token).map(|_| ());
        for digits in ["", "ab", &"g".repeat(64)] {
            let refused = new(Knows::Fingerprint(digits.to_owned()));
            assert!(matches!(refused, Err(BadServer::Fingerprint(_))), "{digits}");
        }
        assert!(matches!(new(Knows::Authorities(b"no PEM".to_vec())), Err(BadServer::Authorities(_))));
    }
}

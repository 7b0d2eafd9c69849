//! Certificates and private keys in PEM form.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Characters of a line (RFC 7468).
const LINE: usize = 64;

/// All certificates of a text, in their order.
///
/// # Errors
/// When the text is no PEM, or has no certificate, in words that go on after the name of a file.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, Error> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| format!("is not in PEM form: {error}"))?;
    if found.is_empty() { Err("has no certificate in PEM form".to_owned()) } else { Ok(found) }
}

/// The first private key of a text.
///
/// # Errors
/// When there is none, or it is damaged, in words that go on after the name of a file. They quote
/// nothing of the text.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        Error::NoItemsFound => {
            "has no private key in PEM form; one with a password cannot be used".to_owned()
        }
        _ => "is not in PEM form".to_owned(),
    })
}

/// A certificate as text.
#[must_use]
pub fn of_certificate(certificate: &CertificateDer<'_>) -> String {
    let encoded = STANDARD.encode(certificate);
    let mut text = "-----BEGIN CERTIFICATE-----\n".to_owned();
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(LINE));
        text += line;
        text.push('\n');
        rest = more;
    }
    text + "-----END CERTIFICATE-----\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Authority;

    #[test]
    fn a_certificate_is_read_as_it_was_written() {
        let one = Authority::make(7, 1, 1_800_000_000_000).unwrap().certificate().clone();
        let other = Authority::make(7, 2, 1_800_000_000_000).unwrap().certificate().clone();
        let text = of_certificate(&one) + &of_certificate(&other);
        assert!(text.lines().all(|line| line.len() <= LINE), "{text}");
        assert_eq!(certificates(text.as_bytes()), Ok(vec![one, other]));
        assert!(certificates(b"").unwrap_err().contains("no certificate"));
        assert!(certificates(&text.as_bytes()[..200]).is_err());
        assert!(private_key(text.as_bytes()).unwrap_err().contains("no private key"));
    }
}

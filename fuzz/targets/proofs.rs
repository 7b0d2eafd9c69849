//! Proofs that strangers show before anything is known of them: tokens, certificates, the names in
//! certificates and public keys.
#![no_main]

use libfuzzer_sys::fuzz_target;
use mainstay_trust::{ApiToken, CertificateDer, PublicKey, Subject, Token};

fuzz_target!(|data: &[u8]| {
    let _ = PublicKey::read(data);
    let _ = PublicKey::in_certificate(&CertificateDer::from(data));
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(token) = Token::read(text) {
        assert_eq!(token.text().as_str(), text.trim());
    }
    if let Ok(token) = ApiToken::read(text) {
        assert_eq!(token.text().as_str(), text.trim());
    }
    if let Some(subject) = Subject::read(text) {
        assert_eq!(Subject::read(&subject.to_string()), Some(subject));
    }
});

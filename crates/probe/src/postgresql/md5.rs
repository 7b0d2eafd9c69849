//! The login by MD5, which old servers have.

use md5::{Digest, Md5};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Body of the answer to the server's salt.
pub fn answer(user: &str, password: &[u8], salt: &[u8]) -> Vec<u8> {
    let stored = hex(&Md5::new().chain_update(password).chain_update(user).finalize());
    let answer = hex(&Md5::new().chain_update(stored).chain_update(salt).finalize());
    format!("md5{answer}\0").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_the_digest_of_a_digest() {
        // printf %s "$(printf %s secretprobe | md5sum | cut -c-32)abcd" | md5sum
        assert_eq!(answer("probe", b"secret", b"abcd"), b"md52c142f955330906afbb0330b16069be8\0");
    }
}

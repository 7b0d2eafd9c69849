//! The proof that a node which becomes a member is found where it says (R29).

use super::{ASK_TIMEOUT, Agent};
use crate::messages::{Call, CallReply};
use crate::threads::lock;
use crate::transport::{Transport, TransportError};
use mainstay_trust::Expect;
use mainstay_types::{Code, Problem};
use std::net::SocketAddr;

/// How often a joiner is looked for at its address.
const PROOF_ATTEMPTS: usize = 3;

/// Answers [`Call::WhoJoins`] while a node becomes a member.
pub(super) struct Proof<'a>(&'a Agent);

impl<'a> Proof<'a> {
    pub(super) fn begin(agent: &'a Agent, nonce: u64) -> Self {
        *lock(&agent.nonce) = Some(nonce);
        Self(agent)
    }
}

impl Drop for Proof<'_> {
    fn drop(&mut self) {
        *lock(&self.0.nonce) = None;
    }
}

/// The node that is looked for at an address.
#[derive(Clone, Copy)]
pub(super) struct Looked {
    pub(super) expect: Expect,
    pub(super) nonce: u64,
}

/// Sees that a node that joins is found at an address that it states as that of `program`: the
/// machine there has its key, and tells the number of its request.
pub(super) fn prove(
    transport: &Transport,
    address: SocketAddr,
    looked: Looked,
    (program, remedy): (&str, &str),
) -> Result<(), Problem> {
    let elsewhere = || {
        let message =
            format!("another node answers at {address}, which was given as the address of {program}");
        Problem::new(Code::AddressElsewhere, message, remedy)
    };
    let mut attempts = PROOF_ATTEMPTS;
    loop {
        attempts -= 1;
        match transport.call(&address.to_string(), looked.expect, &Call::WhoJoins, ASK_TIMEOUT) {
            Ok(CallReply::Joins { nonce }) if nonce == looked.nonce => return Ok(()),
            Ok(_) | Err(TransportError::Unproven { .. }) => return Err(elsewhere()),
            Err(_) if attempts > 0 => {}
            Err(error) => {
                let why = chain(&error);
                let message = format!(
                    "{address}, which was given as the address of {program}, cannot be reached: {why}"
                );
                return Err(Problem::new(Code::AddressUnreachable, message, remedy));
            }
        }
    }
}

/// The innermost cause of an error, which says most.
fn chain(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

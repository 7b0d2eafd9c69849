//! Rights of a peer that has proven itself: the lanes that it may open, and the questions that it
//! may ask.

use super::invalid;
use crate::messages::{Call, CallReply, Greeting, LaneKind};
use mainstay_trust::Peer;
use mainstay_types::NodeId;
use std::io;

/// Refuses a greeting that says something else than the certificate.
pub(super) fn match_greeting(peer: &Peer, greeting: &Greeting) -> io::Result<()> {
    let (may_speak, node) = match peer {
        Peer::Member { subject, .. } => (true, subject.node),
        Peer::Expired { subject, .. } | Peer::Left { subject, .. } => (false, subject.node),
        Peer::Newcomer { .. } => (false, NodeId(0)),
    };
    if greeting.node != node && greeting.node != NodeId(0) {
        return Err(invalid("the sender is another node than its certificate says"));
    }
    match greeting.lane {
        LaneKind::Call => Ok(()),
        // The sender tries again, and asks why.
        LaneKind::Lease | LaneKind::Log if !may_speak => Err(io::ErrorKind::ConnectionRefused.into()),
        LaneKind::Lease | LaneKind::Log if greeting.node != node => {
            Err(invalid("the sender does not say which node it is"))
        }
        LaneKind::Lease | LaneKind::Log => Ok(()),
    }
}

/// The refusal of a question that only a member may ask; `None` if this peer may ask it.
pub(super) fn refuse_question(peer: &Peer, question: &Call) -> Option<CallReply> {
    match peer {
        Peer::Member { .. } => None,
        Peer::Newcomer { .. } if question.is_for_strangers() => None,
        // A node withdraws its request again if the answer was lost.
        Peer::Left { .. } if matches!(question, Call::Withdraw { .. }) => None,
        Peer::Newcomer { .. } | Peer::Left { .. } => Some(CallReply::other_cluster()),
        Peer::Expired { .. } if matches!(question, Call::Renew) => None,
        Peer::Expired { until_s, .. } => Some(CallReply::expired(*until_s)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_trust::{Key, Subject};

    fn greeting(node: u32, lane: LaneKind) -> Greeting {
        Greeting { cluster: 7, node: NodeId(node), lane, run: 1, address: None, level: 1 }
    }

    #[test]
    fn lanes_are_open_to_members_alone_and_questions_to_the_others_as_far_as_they_need_them() {
        let key = Key::generate().unwrap().public();
        let subject = Subject { cluster: 7, node: NodeId(2) };
        let member = Peer::Member { subject, key };
        let expired = Peer::Expired { subject, key, until_s: 1 };
        let (left, newcomer) = (Peer::Left { subject, key }, Peer::Newcomer { key });
        for lane in [LaneKind::Lease, LaneKind::Log] {
            assert!(match_greeting(&member, &greeting(2, lane)).is_ok());
            for node in [0, 3] {
                assert!(match_greeting(&member, &greeting(node, lane)).is_err(), "it speaks as another node");
            }
            for peer in [&expired, &left, &newcomer] {
                for node in [0, 2] {
                    assert!(match_greeting(peer, &greeting(node, lane)).is_err(), "{peer:?}");
                }
            }
        }
        for peer in [&member, &expired, &left, &newcomer] {
            assert!(match_greeting(peer, &greeting(0, LaneKind::Call)).is_ok());
            assert!(match_greeting(peer, &greeting(3, LaneKind::Call)).is_err());
        }
        let withdraw = Call::Withdraw { nonce: 1 };
        let seal = Call::Seal { authority: 1 };
        for question in [&Call::Waits, &Call::Renew, &Call::WhoJoins, &withdraw, &Call::AmI, &seal] {
            let may = |peer: &Peer| refuse_question(peer, question).is_none();
            assert!(may(&member));
            assert_eq!(may(&expired), matches!(question, Call::Renew));
            assert_eq!(may(&left), matches!(question, Call::Withdraw { .. }));
            assert_eq!(may(&newcomer), matches!(question, Call::WhoJoins | Call::Withdraw { .. }));
        }
    }
}

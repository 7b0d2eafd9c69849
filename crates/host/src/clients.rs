//! Requests of a client, on their way to the replication core and back.
//!
//! [`AttachedClients`] keeps their order. Here they wait for room in the core (R18), and are
//! answered under the lease (R10).

use crate::{AnswerError, Host, Platform};
use mainstay_codec::{ClientAnswer, ClientAsk, Envelope, Message, Pieces, Refusal};
use mainstay_replica::{AttachedClients, Event, RequestError, RequestId};
use mainstay_types::{Incarnation, NodeId, Role, reach};

impl Host {
    pub(crate) fn client_asks(&mut self, from: NodeId, ask: ClientAsk) {
        self.sessions.ask(from, ask);
    }

    /// The node whose requests are taken at present.
    #[must_use]
    pub fn client(&self) -> Option<NodeId> {
        self.sessions.client()
    }

    pub(crate) fn role_for_clients(&mut self, role: Role) {
        if role == Role::Primary {
            self.sessions.serve(self.replica.client_mark(), self.store.config().volumes.clone());
        } else {
            self.sessions.stop();
        }
    }

    /// A volume has another size.
    pub(crate) fn sizes_for_clients(&mut self) {
        self.sessions.sizes(self.store.config().volumes.clone());
    }

    /// Answers a request of a device here, or of a client.
    pub(crate) fn answer(
        &mut self,
        platform: &mut impl Platform,
        id: RequestId,
        answer: Result<Pieces, AnswerError>,
    ) {
        if AttachedClients::owns(id) {
            match answer {
                // It is done, and only the lease is missing to say so.
                Err(AnswerError::NoLease) => self.sessions.unvouched(id),
                answer => self.sessions.completed(id, answer.ok()),
            }
        } else {
            platform.complete(id, answer);
        }
    }

    /// Gives the core what it has room for, and sends answers. Whether there was anything to do.
    pub(crate) fn serve_clients(&mut self, platform: &mut impl Platform) -> bool {
        let mut busy = false;
        if self.role == Role::Primary
            && self.sessions.waits_for_log()
            && let Some(mark) = self.replica.settled_client_mark()
        {
            reach!("host: clients are served again after a change has failed");
            busy = true;
            self.sessions.serve(mark, self.store.config().volumes.clone());
        }
        while let Some((op, mark)) = self.sessions.next() {
            match self.replica.refusal(&op, mark.session) {
                None => {
                    busy = true;
                    let id = self.sessions.admit();
                    self.replica.handle(platform.now(), Event::ClientRequest { id, op, mark });
                }
                Some(RequestError::Busy) => {
                    reach!("host: a client waits for room");
                    break;
                }
                Some(_) => {
                    reach!("host: a client asks for what cannot be");
                    busy = true;
                    self.sessions.close(Refusal::NotServing);
                }
            }
        }
        while let Some((to, answer)) = self.sessions.poll() {
            busy = true;
            if AttachedClients::vouches(&answer) && !platform.may_answer() {
                reach!("host: a client's answer comes after the lease");
                self.sessions.close(Refusal::NotServing);
                continue;
            }
            self.send_to_client(platform, to, answer);
        }
        busy
    }

    fn send_to_client(&self, platform: &mut impl Platform, to: NodeId, answer: ClientAnswer) {
        let envelope = Envelope {
            resource: self.store.config().resource,
            epoch: self.replica.epoch(),
            version: self.replica.record_version(),
            incarnation: Incarnation(0),
            message: Message::ClientAnswer(answer),
        };
        platform.send(to, true, envelope);
    }
}

//! A planned replacement of this node's engine, under the services that run here.
//!
//! The engine says whether it can leave its devices, the state whether the services can stay. The
//! reconciler hears of it before the caller does, who then ends the engine.

use super::Agent;
use crate::clock::boot_now;
use crate::raft::ConsensusLog;
use crate::reconciler_thread::Input;
use mainstay_api::engine::Request;
use mainstay_api::rest::Accepted;
use mainstay_control::reconciler::succession::services_stay;
use mainstay_types::{Code, Problem};
use std::time::Duration;

const ASK_WITHIN: Duration = Duration::from_secs(3);

impl Agent {
    /// Announces that the engine's successor comes; 0 only asks whether that is possible.
    ///
    /// # Errors
    /// When the services here cannot stay while the engine is replaced.
    pub fn announce_successor(&self, within_ms: u64) -> Result<Accepted, Problem> {
        let member = self.member()?;
        let view = member.log.view();
        services_stay(&view.state, member.identity.node).map_err(|why| {
            let remedy = "Move the services away first, with `mainstay node upgrade --drain`.";
            Problem::new(Code::NotInPlace, why, remedy)
        })?;
        let announced = self.engine.request(Request::Successor { within_ms }, ASK_WITHIN);
        announced.map_err(|error| error.into_problem())?;
        let message = if within_ms == 0 {
            "the engine can be replaced in place"
        } else {
            self.engine.awaits_successor(boot_now().plus_ms(within_ms));
            member.node.send(Input::Succession);
            "the engine leaves its devices to its successor"
        };
        Ok(Accepted { revision: view.state.revision, message: message.into() })
    }
}

//! A planned replacement of this node's engine, under the services that run here.
//!
//! The engine says whether it can leave its devices, the state whether the services can stay. The
//! reconciler hears of it before the caller does, who then ends the engine.

use super::Agent;
use crate::clock::boot_now;
use crate::raft::ConsensusLog;
use crate::reconciler_thread::Input;
use mainstay_api::engine::Request;
use mainstay_api::rest::{Accepted, SUCCESSOR_MS_MAX};
use mainstay_control::reconciler::succession::services_stay;
use mainstay_types::{Code, Problem, Time};
use std::time::Duration;

const ASK_WITHIN: Duration = Duration::from_secs(3);

impl Agent {
    /// Tells whether the engine could be replaced while the services here run on.
    ///
    /// # Errors
    /// When that is not possible, with the reason.
    pub fn can_be_replaced_in_place(&self) -> Result<Accepted, Problem> {
        let revision = self.ask_for_successor(None)?;
        Ok(Accepted { revision, message: "the engine can be replaced in place".into() })
    }

    /// Announces that the engine's successor comes within this time; 0 takes that back.
    ///
    /// # Errors
    /// When the services here cannot stay while the engine is replaced, or the time is too long.
    pub fn announce_successor(&self, within_ms: u64) -> Result<Accepted, Problem> {
        if within_ms > SUCCESSOR_MS_MAX {
            let message = format!("{within_ms} ms is too long for a successor to be announced");
            return Err(Problem::new(
                Code::BadRequest,
                message,
                format!("use at most {SUCCESSOR_MS_MAX} ms"),
            ));
        }
        let revision = self.ask_for_successor(Some(within_ms))?;
        let message = if within_ms == 0 {
            self.engine.awaits_successor(Time(0));
            "no successor of the engine is announced any more"
        } else {
            self.engine.awaits_successor(boot_now().plus_ms(within_ms));
            self.member()?.node.send(Input::Succession);
            "the engine leaves its devices to its successor"
        };
        Ok(Accepted { revision, message: message.into() })
    }

    /// Returns the revision of the state that was looked at.
    fn ask_for_successor(&self, within_ms: Option<u64>) -> Result<u64, Problem> {
        let member = self.member()?;
        let view = member.log.view();
        if within_ms != Some(0) {
            services_stay(&view.state, member.identity.node).map_err(|why| {
                let remedy = "Move the services away first, with `mainstay node upgrade --drain`.";
                Problem::new(Code::NotInPlace, why, remedy)
            })?;
        }
        let answered = self.engine.request(Request::Successor { within_ms }, ASK_WITHIN);
        answered.map_err(|error| error.into_problem())?;
        Ok(view.state.revision)
    }
}

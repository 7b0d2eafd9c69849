//! Feed of the log oracle from the cores: the world hands over every effect and every output as it
//! passes.

use super::{Check, LogOracle};
use mainstay_replica::Effect;
use mainstay_store::Output;
use mainstay_types::{Epoch, Incarnation, Index, NodeId};

impl LogOracle {
    /// The replica core wants this; it is carried out now.
    ///
    /// # Errors
    /// Those of `appended`, `committed`, `cut` and `restart`.
    pub fn effect(&mut self, node: NodeId, incarnation: Incarnation, effect: &Effect) -> Check {
        match effect {
            Effect::Append(batch) => self.appended(node, incarnation, batch),
            Effect::Commit(index) => self.committed(node, incarnation, *index),
            Effect::Cut(to) => self.cut(node, incarnation, *to),
            Effect::Restart { at, chain, .. } => self.restart(node, incarnation, *at, *chain),
            _ => Ok(()),
        }
    }

    /// The store says this.
    ///
    /// # Errors
    /// Those of `durable`, `promised`, `cut_done` and `restarted`.
    pub fn output(&mut self, node: NodeId, incarnation: Incarnation, output: &Output) -> Check {
        match output {
            Output::Durable { index } => self.durable(node, incarnation, *index),
            Output::Promised { epoch } => self.promised(node, incarnation, *epoch),
            Output::CutDone { end, chain } => self.cut_done(node, incarnation, *end, *chain),
            Output::Restarted { at } => self.restarted(node, incarnation, *at),
            Output::CopyFinished => {
                self.copy_finished(node, incarnation);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// This primary completed a write or a flush to its client as done, right after the commit that
    /// allowed it. So everything that is committed there is acknowledged, or is about to be.
    ///
    /// # Errors
    /// Those of `acknowledged`.
    pub fn acknowledged_now(&mut self, node: NodeId, incarnation: Incarnation, epoch: Epoch) -> Check {
        let commit = self.commit_of(node, incarnation);
        self.acknowledged(node, epoch, false, commit)
    }

    /// The commit index of that replica, as far as it was told.
    #[must_use]
    pub fn commit_of(&self, node: NodeId, incarnation: Incarnation) -> Index {
        self.replicas.get(&(node, incarnation)).map_or(Index(0), |replica| replica.commit)
    }
}

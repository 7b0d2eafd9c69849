//! `mainstay operation …`: its verbs.

use super::WatchArgs;
use clap::Subcommand;
use mainstay_cli::list::form_arg;

#[derive(Subcommand, Debug)]
pub enum OperationCommand {
    /// List the operations of the node that is asked: long work that was begun there and that goes
    /// on, and the last that has ended.
    #[command(arg = form_arg())]
    List(WatchArgs),
    /// Show how far an operation is: what it does, since when, who asked for it, and how it ended.
    Show {
        /// Id of the operation, as `operation list` shows it.
        #[arg(value_name = "ID")]
        id: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// End a drain, a comparison of replicas or the replacement of the authority midway. What was
    /// done until then stays. Other work cannot end midway, and the refusal says what to do
    /// instead.
    Cancel {
        /// Id of the operation, as `operation list` shows it.
        #[arg(value_name = "ID")]
        id: String,
    },
}

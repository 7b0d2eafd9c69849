//! Who says what: a primary speaks on the connection that it opened, a replica answers on it.

use mainstay_codec::Message;

/// Whether a replica says this to its primary, rather than the other way round.
pub fn is_answer(message: &Message) -> bool {
    match message {
        Message::AttachReply(_)
        | Message::CutReply { .. }
        | Message::Ack { .. }
        | Message::Received { .. }
        | Message::CopyBeginReply { .. }
        | Message::CopyExtentAck { .. }
        | Message::CopyEndReply
        | Message::ScrubSums { .. }
        | Message::BlocksRead { .. }
        | Message::Rejected(_) => true,
        Message::Hello { .. }
        | Message::Ping
        | Message::Pong
        | Message::Attach
        | Message::Cut { .. }
        | Message::Append(_)
        | Message::Commit { .. }
        | Message::CopyBegin { .. }
        | Message::CopyExtent { .. }
        | Message::CopyEnd { .. }
        | Message::ReadBlocks { .. } => false,
    }
}

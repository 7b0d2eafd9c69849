//! Direction of messages: a primary speaks on the connection that it opened, and a replica answers
//! on it. So does a client, and the primary answers it.

use mainstay_codec::Message;

/// Whether this is said on the connection that the other one opened: by a replica to its primary,
/// by a primary to its client.
pub fn is_answer(message: &Message) -> bool {
    match message {
        Message::AttachReply(_)
        | Message::CutReply { .. }
        | Message::Ack { .. }
        | Message::Received { .. }
        | Message::CopyBeginReply { .. }
        | Message::CopyHeld { .. }
        | Message::CopyExtentAck { .. }
        | Message::CopyEndReply
        | Message::ScrubSums { .. }
        | Message::BlocksRead { .. }
        | Message::Rejected(_)
        | Message::ClientAnswer(_) => true,
        Message::Hello { .. }
        | Message::Ping
        | Message::Pong
        | Message::Attach
        | Message::Cut { .. }
        | Message::Append(_)
        | Message::Commit { .. }
        | Message::CopyBegin { .. }
        | Message::CopyAsk { .. }
        | Message::CopyExtent { .. }
        | Message::CopyEnd { .. }
        | Message::ReadBlocks { .. }
        | Message::ClientAsk(_) => false,
    }
}

//! Answers processes that would share a host copy of bytes with others of their user.
//!
//! The kernel says whose process a peer is. One whose container the kernel did not tell shares nothing: it may be in
//! another container than the next such process with its user id.

use gpushare_proto::RequestId;
use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::tenant::TenantReply;

use crate::connections::ConnectionId;
use crate::copies::{Asked, Key};
use crate::engine::Engine;
use crate::identity::PeerProcess;

/// Asks the table for a copy of what a process has in some chunks, and sends the answer with its file.
pub(super) fn ask_for_copy(
    engine: &mut Engine,
    connection: ConnectionId,
    peer: &PeerProcess,
    request: RequestId,
    (key, chunks): (Key, u32),
) {
    let asked = match peer.principal.is_located() {
        true => engine.copies.ask(&peer.principal.user(), connection, key, chunks),
        false => Asked::Refused,
    };
    let (answer, file) = match asked {
        Asked::Fill(file) => (CopyAnswer::Fill, Some(file)),
        Asked::Made(file) => (CopyAnswer::Made, Some(file)),
        Asked::Alone => (CopyAnswer::Alone, None),
        Asked::Busy => (CopyAnswer::Busy, None),
        Asked::Refused => (CopyAnswer::Refused, None),
    };
    let answered = |answer| TenantReply::CopyAnswered { request, answer };
    match file {
        Some(file) if engine.peers.may_get_descriptor(connection) => {
            engine
                .peers
                .send(connection, |outbox| outbox.send_with(&answered(answer), file));
        }
        Some(_) => engine.peers.reply(connection, &answered(CopyAnswer::Busy)),
        None => engine.peers.reply(connection, &answered(answer)),
    }
}

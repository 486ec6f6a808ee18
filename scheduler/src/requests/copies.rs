//! Answers processes that would share a host copy of bytes with others of their user.
//!
//! The kernel says whose process a peer is. One whose container the kernel did not tell shares nothing: it
//! may be in another container than the next such process with its user id.

use gpushare_proto::RequestId;
use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::tenant::TenantReply;

use crate::connections::ConnectionId;
use crate::copies::{Asked, Key};
use crate::engine::Engine;
use crate::identity::{PeerProcess, User};

/// Asks the table for a copy of what a process has in some chunks, and sends the answer with its file.
pub(super) fn ask_for_copy(
    engine: &mut Engine,
    connection: ConnectionId,
    peer: &PeerProcess,
    request: RequestId,
    (key, chunks): (Key, u32),
) {
    let asked = match user_of(peer) {
        Some(user) => engine.copies.ask(&user, connection, key, chunks),
        None => Asked::Refused,
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

/// Returns the user with whose processes a process may share copies: the user of its sessions.
fn user_of(peer: &PeerProcess) -> Option<User> {
    peer.principal.is_located().then(|| peer.owner())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::identity::Principal;

    #[test]
    fn processes_of_one_user_id_share_only_within_their_user_groups() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let mut peer = PeerProcess::of(&ours).unwrap();
        peer.principal = Principal::seen_from(Some("/"), 1000, Some("/system.slice/x.service"));
        let of = |name: &str| peer.clone().in_user_group(format!("/system.slice/jupyter-{name}.service"));
        let users = [peer.clone(), of("ana"), of("bob")].map(|peer| user_of(&peer).unwrap());
        assert_eq!(users[0], User::Uid(1000));
        assert_eq!(Some(users[1].clone()), User::named("/system.slice/jupyter-ana.service"));
        assert_ne!(users[1], users[2]);
        assert_eq!(user_of(&of("ana")), user_of(&of("ana")));
        peer.principal = Principal::seen_from(None, 1000, None);
        assert_eq!(user_of(&peer), None);
    }
}

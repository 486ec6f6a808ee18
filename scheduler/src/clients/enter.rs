//! Entering a session with its token, without using a GPU yet.

use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_proto::{SessionId, Token};

use super::joined::JoinedProcess;
use crate::engine::Engine;
use crate::identity::{PeerProcess, ProcessId};
use crate::input::Watched;
use crate::operation::{Operation, failure};
use crate::requests::memory_report::memory_report;

/// Puts a process into the session of its token, or into the one that it is bound to by user or control
/// group.
///
/// A process without a pid in our namespace is not put in, since its children could not be recognised.
pub(crate) fn enter(engine: &mut Engine, peer: &PeerProcess, token: &Token) -> Result<TenantReply, Failure> {
    let sessions = &engine.sessions;
    let Some(session) = sessions.bound(peer).or_else(|| sessions.by_token(token)) else {
        return Ok(TenantReply::SessionMemory(None));
    };
    if let Some(process) = peer.id {
        check_limit(engine, peer, process)?;
        let watch = engine.watch(peer.pidfd.clone(), Watched::Joined(process));
        let joined = JoinedProcess { process, principal: peer.principal.clone() };
        engine.joined.enter(joined, session, watch);
        engine.persistence.changed();
        let name = engine.sessions.name(session);
        Operation::done("session.enter")
            .of(session, &name)
            .peer(peer)
            .debug(format_args!("pid {} and all that it starts are of {name}", peer.pid));
    }
    Ok(TenantReply::SessionMemory(memory_report(engine, session, peer)))
}

fn check_limit(engine: &Engine, peer: &PeerProcess, process: ProcessId) -> Result<(), Failure> {
    let principal = &peer.principal;
    let is_in = engine.joined.session_of(process).is_some();
    if is_in || engine.limit.allows(principal, engine.joined.count_of(principal)) {
        return Ok(());
    }
    let most = engine.limit.most();
    Err(failure(
        FailureCode::Unavailable,
        format!("{principal} has {most} processes already that entered a session; end one first"),
    ))
}

/// Restores a process that entered a session under the last daemon, if it still lives.
pub(crate) fn restore(engine: &mut Engine, joined: JoinedProcess, session: SessionId) {
    if let Some(pidfd) = joined.process.open() {
        let watch = engine.watch(pidfd.into(), Watched::Joined(joined.process));
        engine.joined.enter(joined, session, watch);
    }
}

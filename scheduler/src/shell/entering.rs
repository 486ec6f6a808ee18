//! Processes that enter a session with its token, for themselves and for all that they start.

use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_proto::{SessionId, Token};

use super::{Shell, failure};
use crate::entrants::Entrant;
use crate::identity::{PeerProcess, ProcessId};
use crate::input::Watched;
use crate::operation::Operation;

impl Shell {
    /// Who has a token belongs to its session from now on, unless the kernel's word is another one. Of whom the kernel tells no
    /// start nobody could tell the children.
    pub(super) fn enter(&mut self, peer: &PeerProcess, token: &Token) -> Result<TenantReply, Failure> {
        let bound = self.bound_session(peer);
        let Some(session) = bound.or_else(|| self.sessions.by_token(token)) else {
            return Ok(TenantReply::SessionMemory(None));
        };
        if let Some(process) = peer.id {
            self.may_enter(peer, process)?;
            let watch = self.watch(peer.pidfd.clone(), Watched::Entrant(process));
            let principal = peer.principal.clone();
            self.entrants.enter(Entrant { process, principal }, session, watch);
            self.keeping.changed();
            let name = self.sessions.name(session);
            Operation::done("session.enter")
                .of(session, &name)
                .process(peer.pid)
                .user(peer.uid)
                .debug(format_args!("pid {} and all that it starts are of {name}", peer.pid));
        }
        Ok(TenantReply::SessionMemory(self.account(session, peer)))
    }

    fn may_enter(&self, peer: &PeerProcess, process: ProcessId) -> Result<(), Failure> {
        let principal = &peer.principal;
        let is_in = self.entrants.session_of(process).is_some();
        if is_in || self.limit.allows(principal, self.entrants.of(principal)) {
            return Ok(());
        }
        Err(failure(
            FailureCode::Unavailable,
            format!(
                "{principal} has {} processes already that entered a session; end one first",
                self.limit.most()
            ),
        ))
    }

    /// One that entered a session under the last daemon.
    pub(super) fn enter_again(&mut self, entrant: Entrant, session: SessionId) {
        if let Some(pidfd) = entrant.process.open() {
            let watch = self.watch(pidfd.into(), Watched::Entrant(entrant.process));
            self.entrants.enter(entrant, session, watch);
        }
    }

    pub(super) fn entrant_gone(&mut self, process: ProcessId) {
        self.entrants.gone(process);
        self.keeping.changed();
    }
}

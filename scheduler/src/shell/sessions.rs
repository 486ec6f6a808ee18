//! What an administrator does with sessions: makes, changes, pauses, renews, ends and deletes them.

use gpushare_core::Standing;
use gpushare_proto::admin::{AdminReply, Change, SessionRequest};
use gpushare_proto::audit::Outcome;
use gpushare_proto::session::{Binding, Quota, SessionPhase, Terms};
use gpushare_proto::tenant::{Failure, FailureCode, NewSession};
use gpushare_proto::{ClientId, Nanos, SessionId, Token};
use gpushare_sys::clock;

use super::checks::{bad, check_change, check_compute, check_new, check_quota, check_ttl};
use super::orphans::LONG;
use super::tenant::plain;
use super::{Shell, failure};
use crate::identity::PeerProcess;
use crate::operation::Operation;
use crate::registry::Origin;
use crate::secret::TokenHash;
use crate::sessions::Session;

/// When a session's time is to be over.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Never,
    In(Nanos),
    /// From now on as long as it was given.
    AsBefore,
}

impl Shell {
    pub(super) fn session_request(
        &mut self,
        peer: &PeerProcess,
        request: &SessionRequest,
    ) -> Result<AdminReply, Failure> {
        match request {
            SessionRequest::Create { new, binding } => {
                self.create_session(peer, new.clone(), binding.clone())
            }
            SessionRequest::Change { which, change } => {
                check_change(change)?;
                if let Change::Memory(quota) | Change::Compute(quota) = change {
                    self.check_cards(quota)?;
                }
                let done = self.administer(which, |session, _| session.change(change))?;
                match change {
                    Change::Memory(_) => self.said_of_use(which, done),
                    _ => Ok(done),
                }
            }
            &SessionRequest::Renew { ref which, ttl } => {
                let ends = ttl.map_or(Ends::AsBefore, Ends::In);
                self.administer(which, |session, now| session.renew(ends, now))
            }
            SessionRequest::Revoke { which } => self
                .administer(which, |session, now| Ok(session.stand(now, |session| session.revoked = true))),
            SessionRequest::Pause { which } => {
                self.administer(which, |session, now| Ok(session.stand(now, |session| session.paused = true)))
            }
            SessionRequest::Resume { which } => self
                .administer(which, |session, now| Ok(session.stand(now, |session| session.paused = false))),
            SessionRequest::Endless { which } => {
                self.administer(which, |session, now| session.renew(Ends::Never, now))
            }
            SessionRequest::Token { which } => self.reissue(which),
            SessionRequest::Delete { which } => self.delete_session(which),
        }
    }

    fn create_session(
        &mut self,
        peer: &PeerProcess,
        new: NewSession,
        binding: Binding,
    ) -> Result<AdminReply, Failure> {
        check_new(&new)?;
        self.check_cards(&new.terms.memory)?;
        self.check_cards(&new.terms.compute)?;
        let binding = match binding {
            // As the kernel writes it.
            Binding::Cgroup(path) if path.starts_with('/') => {
                Binding::Cgroup(path.trim_end_matches('/').to_owned())
            }
            other => other,
        };
        self.check_binding(&binding)?;
        let taken =
            |name: &&String| self.sessions.iter().any(|(_, known)| known.is_kept() && known.name == **name);
        if let Some(name) = new.name.as_ref().filter(taken) {
            return Err(bad(format!(
                "there is a session {name} already; choose another name, or delete that one"
            )));
        }
        let card = self.place(&new.gpu)?;
        let token = match binding {
            Binding::Token => Some(fresh_token()?),
            Binding::Uid(_) | Binding::Cgroup(_) => None,
        };
        let origin = Origin::Created { token: token.as_ref().map(TokenHash::of), binding, uid: peer.uid };
        if let Some(name) = &new.name {
            self.displace(peer, name);
        }
        let now = clock::monotonic();
        let session = self.open_session(
            |id| new.name.unwrap_or_else(|| format!("session-{}", id.0)),
            |name| Session {
                expires: new.terms.ttl.map(|ttl| now + ttl),
                ..Session::new(name, new.terms, origin, new.oversubscribe, card)
            },
        );
        let name = self.sessions.name(session);
        Ok(AdminReply::Created { session, name, token, gpu: card })
    }

    /// Takes a name from the sessions that programs gave it to.
    fn displace(&mut self, peer: &PeerProcess, name: &str) {
        for (session, other) in self.sessions.displace(name) {
            self.renamed(peer, session, name, &other);
        }
    }

    /// Does something to one session, tells the core, and says what it was and is.
    fn administer(
        &mut self,
        which: &str,
        act: impl FnOnce(&mut Session, Nanos) -> Result<(String, String), Failure>,
    ) -> Result<AdminReply, Failure> {
        let id = self.named(which)?;
        let now = clock::monotonic();
        let Some(session) = self.sessions.get_mut(id) else {
            return Err(not_found(which));
        };
        let (old, new) = act(session, now)?;
        self.keeping.changed();
        self.tell_terms(id);
        self.tell_standing(id);
        Ok(AdminReply::Changed { old, new })
    }

    fn delete_session(&mut self, which: &str) -> Result<AdminReply, Failure> {
        let id = self.named(which)?;
        let Some(session) = self.sessions.get(id) else {
            return Err(not_found(which));
        };
        let name = session.name.clone();
        if let Some(orphan) = self.orphaned(id, clock::monotonic()).first() {
            let pid = orphan.pid;
            return Err(bad(match orphan.ago_ns < LONG {
                true => format!(
                    "pid {pid} of session {name} has just ended, and the driver takes its memory back; try again in a second"
                ),
                false => format!(
                    "a card keeps memory of session {name}'s dead process, pid {pid}, whose forked child has the card's files open; end \
                     that one (`fuser -v /dev/nvidia*` names it), or revoke the session"
                ),
            }));
        }
        if session.clients > 0 || session.bound {
            return Err(bad(format!(
                "session {name} has {} processes; stop them first (`gpushare-ctl session show {name}` lists them), or revoke it",
                session.clients
            )));
        }
        if let Some(session) = self.sessions.remove(id) {
            self.ended(id, &session);
        }
        Ok(AdminReply::Changed { old: name, new: "deleted".to_owned() })
    }

    /// Gives a session another token. Its processes are known without it; who reads the file from now on reads the new one.
    fn reissue(&mut self, which: &str) -> Result<AdminReply, Failure> {
        let id = self.named(which)?;
        let fresh = fresh_token()?;
        let Some(session) = self.sessions.get_mut(id) else {
            return Err(not_found(which));
        };
        let name = session.name.clone();
        match &mut session.origin {
            _ if session.revoked => {
                Err(bad(format!("session {name} was revoked, which is for good; create another one")))
            }
            Origin::Created { token: Some(token), .. } => {
                *token = TokenHash::of(&fresh);
                self.keeping.changed();
                Ok(AdminReply::Token { session: id, name, token: fresh })
            }
            Origin::Created { binding, .. } => Err(bad(format!(
                "session {name} has no token: it is for {binding}, and whoever that is needs none"
            ))),
            Origin::Registered { .. } | Origin::Implicit(_) => Err(bad(format!(
                "session {name} lasts as long as its program, which has its token; make one that lasts with `gpushare-ctl session create`"
            ))),
        }
    }

    /// What an administrator is told who sets less than is used already.
    fn said_of_use(&mut self, which: &str, done: AdminReply) -> Result<AdminReply, Failure> {
        let id = self.named(which)?;
        self.look_at_pages_of(id);
        let uses: Vec<String> = self
            .core
            .memory_figures(id)
            .unwrap_or_default()
            .into_iter()
            .filter_map(|account| {
                let limit = self.limit_on(id, account.gpu)?;
                (account.used > limit).then(|| format!("{} on {}", account.used, account.gpu))
            })
            .collect();
        match done {
            AdminReply::Changed { old, new } if !uses.is_empty() => Ok(AdminReply::Changed {
                old,
                new: format!(
                    "{new}; it uses {} already, which it keeps: it gets nothing more until it is below",
                    uses.join(", ")
                ),
            }),
            done => Ok(done),
        }
    }

    pub(super) fn named(&self, which: &str) -> Result<SessionId, Failure> {
        self.sessions
            .named(&plain(which))
            .map_err(|message| failure(FailureCode::NotFound, message))
    }

    /// A process without a token says what its session may have. The first word stands: a later process must not lift it.
    pub(super) fn limit_implicit(
        &mut self,
        client: ClientId,
        memory: Quota,
        compute: Quota,
    ) -> Result<(), String> {
        check_quota(&memory)
            .and_then(|()| check_compute(&compute))
            .map_err(|failure| failure.message)?;
        // What the session of a restored process may have is known, and an administrator may have changed it.
        let Some(process) = self.clients.get(&client).filter(|client| !client.restored) else {
            return Ok(());
        };
        let id = process.session;
        let Some(session) = self.sessions.get_mut(id).filter(|session| session.is_implicit()) else {
            return Ok(());
        };
        if (&session.terms.memory, &session.terms.compute) == (&memory, &compute) {
            return Ok(());
        }
        let record = Operation::done("session.limit").of(id, &session.name);
        if session.terms != Terms::default() {
            record.failed(Outcome::Refused, "permission").info(format_args!(
                "session {} ({id}) keeps its {} of memory; a later process asked for {memory}",
                session.name, session.terms.memory
            ));
            return Ok(());
        }
        record.info(format_args!(
            "session {} ({id}) is limited by its environment: {memory} of memory",
            session.name
        ));
        (session.terms.memory, session.terms.compute) = (memory, compute);
        self.keeping.changed();
        self.tell_terms(id);
        Ok(())
    }

    /// Those whose time is over by now.
    pub(super) fn end_sessions(&mut self, now: Nanos) {
        let is_over = |session: &Session| {
            let over = matches!(session.standing(now), SessionPhase::Expired | SessionPhase::Revoked);
            over && session.told != Standing::Over
        };
        let over: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|(_, session)| is_over(session))
            .map(|(id, _)| id)
            .collect();
        for id in over {
            let name = self.sessions.name(id);
            Operation::done("session.expire")
                .of(id, &name)
                .info(format_args!("the time of session {name} ({id}) is over"));
            let paused = self.sessions.get(id).is_some_and(|session| session.paused);
            self.expired(id, if paused { "paused" } else { "running" });
            self.tell_standing(id);
        }
    }
}

impl Session {
    /// Changes one of its terms; what it was and is.
    fn change(&mut self, change: &Change) -> Result<(String, String), Failure> {
        let words = |terms: &Terms, change: &Change| match change {
            Change::Memory(_) => terms.memory.to_string(),
            Change::Compute(_) => terms.compute.to_string(),
            Change::Weight(_) => terms.weight.to_string(),
            Change::Priority(_) => terms.priority.to_string(),
        };
        let old = words(&self.terms, change);
        match change {
            Change::Memory(quota) => self.terms.memory.clone_from(quota),
            Change::Compute(quota) => self.terms.compute.clone_from(quota),
            Change::Weight(weight) => self.terms.weight = *weight,
            Change::Priority(priority) => self.terms.priority = *priority,
        }
        Ok((old, words(&self.terms, change)))
    }

    fn renew(&mut self, ends: Ends, now: Nanos) -> Result<(String, String), Failure> {
        if self.revoked {
            return Err(bad(format!(
                "session {} was revoked, which is for good; create another one",
                self.name
            )));
        }
        let ttl =
            match ends {
                Ends::Never => None,
                Ends::In(ttl) => Some(ttl),
                Ends::AsBefore => Some(self.terms.ttl.ok_or_else(|| {
                    bad(format!("session {} has no end; give it one with --ttl", self.name))
                })?),
            };
        ttl.map_or(Ok(()), check_ttl)?;
        let words = |session: &Self| match session.expires.map(|end| end - now) {
            None => "no end".to_owned(),
            Some(left) if left.is_zero() => "expired".to_owned(),
            Some(left) => format!("{left} left"),
        };
        let old = words(self);
        self.terms.ttl = ttl;
        self.expires = ttl.map(|ttl| now + ttl);
        Ok((old, words(self)))
    }

    /// Changes what it may do; what it was and is.
    fn stand(&mut self, now: Nanos, act: impl FnOnce(&mut Self)) -> (String, String) {
        let words = |session: &Self| {
            match session.standing(now) {
                SessionPhase::Good => "running",
                SessionPhase::Paused => "paused",
                SessionPhase::Expired => "expired",
                SessionPhase::Revoked => "revoked",
            }
            .to_owned()
        };
        let old = words(self);
        act(self);
        (old, words(self))
    }
}

/// 256 random bits.
pub(super) fn fresh_token() -> Result<Token, Failure> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|cause| {
        failure(
            FailureCode::Unavailable,
            format!("the system has no random bytes for a token ({cause}); try again"),
        )
    })?;
    Ok(Token(secret))
}

fn not_found(which: &str) -> Failure {
    failure(FailureCode::NotFound, format!("there is no session {which}"))
}

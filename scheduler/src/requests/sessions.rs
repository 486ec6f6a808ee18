//! Acts of administrators on sessions: create, change, pause, renew, end and delete.

use gpushare_proto::admin::{AdminReply, Change, SessionRequest};
use gpushare_proto::audit::Outcome;
use gpushare_proto::session::{Binding, Quota, SessionPhase, Terms};
use gpushare_proto::tenant::{Failure, FailureCode, NewSession};
use gpushare_proto::{ClientId, Nanos, SessionId, Token};
use gpushare_sys::clock;

use super::checks::{
    check_binding, check_cards, check_change, check_compute, check_new, check_quota, check_quota_cards,
    check_ttl, place,
};
use super::frost;
use crate::clients::leave::forget_session;
use crate::clients::orphans::LONG;
use crate::clients::pods;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::operation::{Operation, bad_request, failure, plain};
use crate::registry::Origin;
use crate::secret::TokenHash;
use crate::sessions::{Clocks, Session, Sessions};

pub(super) fn named(sessions: &Sessions, which: &str) -> Result<SessionId, Failure> {
    let found = sessions.named(&plain(which));
    found.map_err(|message| failure(FailureCode::NotFound, message))
}

fn found<'a>(sessions: &'a Sessions, which: &str) -> Result<(SessionId, &'a Session), Failure> {
    let id = named(sessions, which)?;
    Ok((id, sessions.get(id).ok_or_else(|| gone(which))?))
}

fn gone(which: &str) -> Failure {
    failure(FailureCode::NotFound, format!("there is no session {which}"))
}

pub(super) fn session_request(
    engine: &mut Engine,
    peer: &PeerProcess,
    request: &SessionRequest,
) -> Result<AdminReply, Failure> {
    match request {
        SessionRequest::Create { new, binding } => create(engine, peer, new.clone(), normal_binding(binding)),
        SessionRequest::Change { which, change } => {
            check_change(change)?;
            if let Change::Memory(quota) | Change::Compute(quota) = change {
                check_quota_cards(&engine.cards, quota)?;
            }
            let (id, old, new) = act_on(engine, which, |session, _| Ok(apply_change(session, change)))?;
            let remark = match change {
                Change::Memory(_) => use_above_limit(engine, id),
                _ => String::new(),
            };
            Ok(AdminReply::Changed { old, new: new + &remark })
        }
        &SessionRequest::Renew { ref which, ttl } => {
            changed(act_on(engine, which, |session, now| match ttl.or(session.terms.ttl) {
                None if !session.revoked => {
                    let name = &session.name;
                    Err(bad_request(format!("session {name} has no end; give it one with --ttl")))
                }
                ttl => renew(session, ttl, now),
            }))
        }
        SessionRequest::Endless { which } => {
            changed(act_on(engine, which, |session, now| renew(session, None, now)))
        }
        SessionRequest::Revoke { which } => set_standing(engine, which, |session| session.revoked = true),
        SessionRequest::Pause { which } => set_standing(engine, which, |session| session.paused = true),
        SessionRequest::Resume { which } => {
            let id = named(&engine.sessions, which)?;
            let resumed = set_standing(engine, which, |session| session.paused = false)?;
            // Whoever paused it may have freed its memory.
            frost::thaw(engine, id);
            Ok(resumed)
        }
        SessionRequest::Token { which } => replace_token(engine, which),
        SessionRequest::Delete { which } => delete(engine, which),
        SessionRequest::Freeze { which } => {
            let id = named(&engine.sessions, which)?;
            frost::freeze(engine, id).map(|(old, new)| AdminReply::Changed { old, new })
        }
        SessionRequest::Thaw { which } => {
            let id = named(&engine.sessions, which)?;
            let (old, new) = frost::thaw(engine, id);
            Ok(AdminReply::Changed { old, new })
        }
    }
}

/// Returns a binding whose control group is written as the kernel does, without a slash at the end.
fn normal_binding(binding: &Binding) -> Binding {
    match binding {
        Binding::Cgroup(path) if path.starts_with('/') => {
            Binding::Cgroup(path.trim_end_matches('/').to_owned())
        }
        other => other.clone(),
    }
}

fn create(
    engine: &mut Engine,
    peer: &PeerProcess,
    new: NewSession,
    binding: Binding,
) -> Result<AdminReply, Failure> {
    check_new(&new)?;
    check_cards(&engine.cards, &new.terms)?;
    check_binding(&engine.sessions, &binding)?;
    if let Some(name) = new.name.as_ref().filter(|name| engine.sessions.is_kept_name(name)) {
        return Err(bad_request(format!(
            "there is a session {name} already; choose another name, or delete that one"
        )));
    }
    let card = place(engine, &new.gpu)?;
    let token = match binding {
        Binding::Token => Some(new_token()?),
        Binding::Uid(_) | Binding::Cgroup(_) | Binding::Pod(_) => None,
    };
    let bound = binding.clone();
    let origin = Origin::Created { token: token.as_ref().map(TokenHash::of), binding, uid: peer.uid };
    if let Some(name) = &new.name {
        for (session, other) in engine.sessions.displace(name) {
            engine.audit.renamed(peer, session, name, &other);
            engine.watchers.note_changes(&[session]);
            engine.persistence.session_changed(session);
        }
    }
    let session = engine.open_session(
        |id| new.name.unwrap_or_else(|| format!("session-{}", id.0)),
        |name| {
            let expires = new.terms.ttl.map(|ttl| Clocks::now().end_after(ttl));
            Session { expires, ..Session::new(name, new.terms, origin, new.oversubscribe, card) }
        },
    );
    pods::look_again(engine, Some(&bound));
    let name = engine.sessions.name(session);
    Ok(AdminReply::Created { session, name, token, gpu: card })
}

/// Changes one session and reports it to the decision machine. Returns the old and the new value as text.
fn act_on(
    engine: &mut Engine,
    which: &str,
    act: impl FnOnce(&mut Session, Clocks) -> Result<(String, String), Failure>,
) -> Result<(SessionId, String, String), Failure> {
    let id = named(&engine.sessions, which)?;
    let done = engine.sessions.change(id, |session| act(session, Clocks::now()));
    let (old, new) = done.ok_or_else(|| gone(which))??;
    engine.persistence.session_changed(id);
    engine.send_terms(id);
    engine.send_standing(id);
    Ok((id, old, new))
}

fn changed(done: Result<(SessionId, String, String), Failure>) -> Result<AdminReply, Failure> {
    done.map(|(_, old, new)| AdminReply::Changed { old, new })
}

fn apply_change(session: &mut Session, change: &Change) -> (String, String) {
    let words = |terms: &Terms| match change {
        Change::Memory(_) => terms.memory.to_string(),
        Change::Compute(_) => terms.compute.to_string(),
        Change::Weight(_) => terms.weight.to_string(),
        Change::Priority(_) => terms.priority.to_string(),
        Change::FreezeAfter(_) => terms.freeze_after.to_string(),
    };
    let old = words(&session.terms);
    match change {
        Change::Memory(quota) => {
            session.terms.memory.clone_from(quota);
            session.ceiling = Some(quota.clone());
        }
        Change::Compute(quota) => session.terms.compute.clone_from(quota),
        Change::Weight(weight) => session.terms.weight = *weight,
        Change::Priority(priority) => session.terms.priority = *priority,
        Change::FreezeAfter(after) => session.terms.freeze_after = *after,
    }
    (old, words(&session.terms))
}

fn set_standing(
    engine: &mut Engine,
    which: &str,
    act: impl FnOnce(&mut Session),
) -> Result<AdminReply, Failure> {
    let words = |session: &Session, now: Clocks| match session.phase(now.boot) {
        SessionPhase::Good => "running".to_owned(),
        SessionPhase::Paused => "paused".to_owned(),
        SessionPhase::Expired => "expired".to_owned(),
        SessionPhase::Revoked => "revoked".to_owned(),
    };
    changed(act_on(engine, which, |session, now| {
        let old = words(session, now);
        act(session);
        Ok((old, words(session, now)))
    }))
}

/// Gives a session a new time to live from now on; none for no end.
fn renew(session: &mut Session, ttl: Option<Nanos>, now: Clocks) -> Result<(String, String), Failure> {
    if session.revoked {
        return Err(revoked(&session.name));
    }
    ttl.map_or(Ok(()), check_ttl)?;
    let words = |session: &Session| match session.expires.map(|end| end.boot - now.boot) {
        None => "no end".to_owned(),
        Some(left) if left.is_zero() => "expired".to_owned(),
        Some(left) => format!("{left} left"),
    };
    let old = words(session);
    session.terms.ttl = ttl;
    session.expires = ttl.map(|ttl| now.end_after(ttl));
    Ok((old, words(session)))
}

fn delete(engine: &mut Engine, which: &str) -> Result<AdminReply, Failure> {
    let (id, session) = found(&engine.sessions, which)?;
    let name = session.name.clone();
    if let Some(orphan) = engine.orphans.views(id, clock::monotonic(), &engine.cards).first() {
        let pid = orphan.pid;
        return Err(bad_request(match orphan.ago_ns < LONG {
            true => format!(
                "pid {pid} of session {name} has just ended, and the driver takes its memory back; try again in a \
                 second"
            ),
            false => format!(
                "a card keeps memory of session {name}'s dead process, pid {pid}, whose forked child has the card's \
                 files open; end that one (`fuser -v /dev/nvidia*` names it), or revoke the session"
            ),
        }));
    }
    if session.clients > 0 || session.bound {
        return Err(bad_request(format!(
            "session {name} has {} processes; stop them first (`gpushare-ctl session show {name}` lists them), or \
             revoke it",
            session.clients
        )));
    }
    if let Some(session) = engine.sessions.remove(id) {
        forget_session(engine, id, &session);
    }
    Ok(AdminReply::Changed { old: name, new: "deleted".to_owned() })
}

/// Gives a session a new token. Its processes stay in the session; new processes need the new token.
fn replace_token(engine: &mut Engine, which: &str) -> Result<AdminReply, Failure> {
    let (id, session) = found(&engine.sessions, which)?;
    let name = session.name.clone();
    match &session.origin {
        _ if session.revoked => return Err(revoked(&name)),
        Origin::Created { token: Some(_), .. } => {}
        Origin::Created { binding, .. } => {
            let message = format!("session {name} has no token: it is for {binding}, which needs none");
            return Err(bad_request(message));
        }
        Origin::Registered { .. } | Origin::Implicit(_) => {
            return Err(bad_request(format!(
                "session {name} lasts as long as its program, which has its token; make one that lasts with \
                 `gpushare-ctl session create`"
            )));
        }
    }
    let new = new_token()?;
    engine.sessions.change(id, |session| {
        if let Origin::Created { token: Some(hash), .. } = &mut session.origin {
            *hash = TokenHash::of(&new);
        }
    });
    engine.persistence.session_changed(id);
    Ok(AdminReply::Token { session: id, name, token: new })
}

/// Returns a remark about the cards on which a session uses more than its new limit.
pub(super) fn use_above_limit(engine: &mut Engine, id: SessionId) -> String {
    engine.read_pages(Some(id));
    let accounts = engine.machine.memory_figures(id).unwrap_or_default().into_iter();
    let above = accounts.filter(|account| {
        let limit = engine.limit_on(id, account.gpu);
        limit.is_some_and(|limit| account.used > limit)
    });
    let words: Vec<String> = above.map(|account| format!("{} on {}", account.used, account.gpu)).collect();
    if words.is_empty() {
        return String::new();
    }
    format!("; it uses {} already, which it keeps: it gets nothing more until it is below", words.join(", "))
}

/// Sets the limits of an implicit session as its first process requests. Later processes cannot change them.
pub(super) fn limit_implicit(
    engine: &mut Engine,
    client: ClientId,
    memory: &Quota,
    compute: &Quota,
) -> Result<(), String> {
    let checked = check_quota(memory).and_then(|()| check_compute(compute));
    checked.map_err(|failure| failure.message)?;
    // A restored process's session has its limits from before, perhaps changed by an administrator.
    let Some(process) = engine.clients.get(client).filter(|client| !client.restored) else {
        return Ok(());
    };
    let id = process.session;
    let Some(session) = engine.sessions.get_mut(id).filter(|session| session.is_implicit()) else {
        return Ok(());
    };
    if (&session.terms.memory, &session.terms.compute) == (memory, compute) {
        return Ok(());
    }
    let name = &session.name;
    let record = Operation::of("session.limit", id, name).user(session.uid());
    if session.terms != Terms::default() {
        record.failed(Outcome::Refused, "permission").info(format_args!(
            "session {name} ({id}) keeps its {} of memory; a later process asked for {memory}",
            session.terms.memory
        ));
        return Ok(());
    }
    record.info(format_args!("session {name} ({id}) is limited by its environment: {memory} of memory"));
    session.terms.memory.clone_from(memory);
    session.terms.compute.clone_from(compute);
    engine.persistence.session_changed(id);
    engine.send_terms(id);
    Ok(())
}

/// Reports expired sessions to the decision machine.
pub(crate) fn end_expired(engine: &mut Engine) {
    for id in engine.sessions.expired(clock::boot()) {
        let paused = engine.sessions.get(id).is_some_and(|session| session.paused);
        let name = engine.sessions.name(id);
        engine.audit.expired(id, &name, if paused { "paused" } else { "running" });
        engine.send_standing(id);
    }
}

pub(super) fn new_token() -> Result<Token, Failure> {
    let mut secret = [0; 32];
    getrandom::fill(&mut secret).map_err(|cause| {
        failure(
            FailureCode::Unavailable,
            format!("the system has no random bytes for a token ({cause}); try again"),
        )
    })?;
    Ok(Token(secret))
}

fn revoked(name: &str) -> Failure {
    bad_request(format!("session {name} was revoked, which is for good; create another one"))
}

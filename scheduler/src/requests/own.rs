//! What a user may ask and change about their own session without being an administrator.

use gpushare_proto::session::{Amount, Quota};
use gpushare_proto::tenant::{Failure, FailureCode, OwnWait, TenantReply};
use gpushare_proto::{Bytes, SessionId};
use gpushare_sys::clock;

use super::checks::{check_quota, check_quota_cards, largest_card};
use super::sessions::use_above_limit;
use crate::config::Owner;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::operation::{failure, plain};
use crate::registry::Origin;
use crate::sessions::Session;
use crate::sessions::terms::memory_on;

/// Returns the wait of a session, with the names of the asking user's sessions only.
pub(super) fn wait_of(engine: &mut Engine, peer: &PeerProcess, id: SessionId) -> Option<OwnWait> {
    engine.read_pages(Some(id));
    let waiting = engine.machine.waiting(clock::monotonic(), id)?;
    let user = peer.owner();
    let is_own = |other: &SessionId| {
        let other = engine.sessions.get(*other);
        other.and_then(Session::user).as_ref() == Some(&user)
    };
    let holders = waiting.holders.iter().map(|&(session, _)| session);
    let first = holders.chain(waiting.ahead.iter().map(|&(session, _)| session));
    Some(OwnWait {
        ahead: u32::try_from(waiting.ahead.len()).unwrap_or(u32::MAX),
        own: first.filter(is_own).map(|session| engine.sessions.name(session)).collect(),
        about_ns: waiting.about(),
    })
}

/// Returns the session of the asking user that has a number or name. Other users' sessions are not found.
pub(super) fn of_own_user(engine: &Engine, peer: &PeerProcess, which: &str) -> Result<SessionId, Failure> {
    let found = engine.sessions.named_of(&peer.owner(), &plain(which));
    found.map_err(|message| failure(FailureCode::NotFound, message))
}

/// Changes the memory limit of a session that its own user registered, within what the user may register.
pub(super) fn resize(
    engine: &mut Engine,
    peer: &PeerProcess,
    own: Option<SessionId>,
    quota: &Quota,
) -> Result<TenantReply, Failure> {
    let none = || {
        let message = "this process has no session; start it by `gpushare-ctl run`";
        failure(FailureCode::NotFound, message)
    };
    let id = own.ok_or_else(none)?;
    check_quota(quota)?;
    check_quota_cards(&engine.cards, quota)?;
    let quota = permitted(engine, peer, id, quota)?;
    let is_owner = engine.settings.owner == Owner::User;
    let old = engine.sessions.change(id, |session| {
        if is_owner {
            session.ceiling = None;
        }
        std::mem::replace(&mut session.terms.memory, quota.clone()).to_string()
    });
    let old = old.ok_or_else(none)?;
    engine.persistence.session_changed(id);
    engine.send_terms(id);
    engine.watchers.note_changes(&[id]);
    let remark = use_above_limit(engine, id);
    Ok(TenantReply::Resized { old, new: quota.to_string() + &remark })
}

/// Returns the limit, if the user may have it.
fn permitted(engine: &Engine, peer: &PeerProcess, id: SessionId, quota: &Quota) -> Result<Quota, Failure> {
    let denied = |message: String| Err(failure(FailureCode::Permission, message));
    let user = peer.owner();
    let registered = |session: &&Session| matches!(session.origin, Origin::Registered { .. });
    let session = engine
        .sessions
        .get(id)
        .filter(registered)
        .filter(|session| session.is_of(&user));
    let Some(session) = session else {
        let name = plain(&engine.sessions.name(id));
        return denied(format!(
            "the limit of session {name} is its administrator's to change; ask for `gpushare-ctl set memory {quota} \
             --session {name}`"
        ));
    };
    if engine.settings.owner == Owner::User {
        return Ok(quota.clone());
    }
    let Some(service) = &engine.settings.self_service else {
        return denied(
            "users cannot change sessions of this daemon; ask its administrator, or for [self_service] in \
             /etc/gpushare/config.toml"
                .to_owned(),
        );
    };
    let largest = largest_card(&engine.cards);
    let promised = |quota: &Quota| quota.amounts().map(|amount| amount.of(largest)).max();
    let all: Bytes = engine
        .sessions
        .registered_by(&user)
        .map(|session| promised(&session.terms.memory).unwrap_or(service.max_memory))
        .sum();
    let others = all - promised(&session.terms.memory).unwrap_or(service.max_memory);
    let left = service.max_memory - others;
    if promised(quota).is_some_and(|asked| asked > left) {
        return denied(format!(
            "the sessions of {user} get at most {} together here, and the others have all but {left}; ask for less, \
             or end one of them first",
            service.max_memory
        ));
    }
    if let Some(ceiling) = &session.ceiling {
        let on = |quota, gpu| memory_on(quota, &engine.cards, gpu);
        let exceeds =
            |gpu| on(ceiling, gpu).is_some_and(|most| on(quota, gpu).is_some_and(|asked| asked > most));
        if engine.cards.iter().any(|(gpu, _)| exceeds(gpu)) {
            return denied(format!(
                "an administrator set the limit of session {} to {ceiling}; ask for no more than that",
                plain(&session.name)
            ));
        }
    }
    // What the user leaves open is what both limits leave.
    let ceiling = session.ceiling.as_ref().and_then(|ceiling| ceiling.every);
    let open = ceiling
        .into_iter()
        .chain([Amount::Bytes(left)])
        .min_by_key(|amount| amount.of(largest));
    Ok(Quota { every: quota.every.or(open), ..quota.clone() })
}

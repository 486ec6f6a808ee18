//! Sessions that processes register for themselves, within the limits for self-registered sessions.

use gpushare_proto::admin::MIN_MEMORY;
use gpushare_proto::session::{Amount, Priority};
use gpushare_proto::tenant::{Failure, FailureCode, NewSession, TenantReply};

use super::checks::{check_cards, check_new, largest_card, place};
use super::sessions::new_token;
use crate::config::Owner;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::input::Watched;
use crate::operation::failure;
use crate::registry::Origin;
use crate::secret::TokenHash;
use crate::sessions::{Clocks, Session};

/// Creates a session that lasts as long as the process that registers it, or any of its clients.
pub(super) fn register(
    engine: &mut Engine,
    peer: &PeerProcess,
    wish: NewSession,
) -> Result<TenantReply, Failure> {
    let wish = permitted(engine, peer, wish)?;
    check_new(&wish)?;
    check_cards(&engine.cards, &wish.terms)?;
    let by = peer.id.ok_or_else(|| {
        failure(
            FailureCode::Permission,
            "the process is in a pid namespace that the daemon does not see; register the session outside",
        )
    })?;
    let card = place(engine, &wish.gpu)?;
    let token = new_token()?;
    let session = engine.open_session(
        |id| wish.name.unwrap_or_else(|| format!("session-{}", id.0)),
        |name| {
            let expires = wish.terms.ttl.map(|ttl| Clocks::now().end_after(ttl));
            let user = Some(peer.owner());
            let origin = Origin::Registered { token: TokenHash::of(&token), uid: peer.user, by, user };
            let session = Session::new(name, wish.terms, origin, wish.oversubscribe, card);
            Session { bound: true, expires, ..session }
        },
    );
    engine.watch(peer.pidfd.clone(), Watched::Registrar(session)).until_death();
    if let Some(left) = engine.joined.session_of(by) {
        engine.joined.move_to(by, session);
        engine.persistence.session_changed(left);
    }
    let name = engine.sessions.name(session);
    Ok(TenantReply::Session { session, name, token, gpu: card })
}

/// Returns the request with the memory that the peer may have. Refuses what only an administrator gives: more memory,
/// sessions or priority, and sessions larger than a card.
pub(super) fn permitted(
    engine: &Engine,
    peer: &PeerProcess,
    mut wish: NewSession,
) -> Result<NewSession, Failure> {
    let denied = |message: String| Err(failure(FailureCode::Permission, message));
    if engine.settings.owner == Owner::User {
        return Ok(wish);
    }
    let Some(service) = &engine.settings.self_service else {
        return denied(
            "users cannot register sessions with this daemon; ask its administrator for a session, or for \
             [self_service] in /etc/gpushare/config.toml"
                .to_owned(),
        );
    };
    let most = service.max_memory;
    let largest = largest_card(&engine.cards);
    let user = peer.owner();
    let promised = |session: &Session| session.terms.memory.amounts().map(|amount| amount.of(largest)).max();
    let own = || engine.sessions.registered_by(&user);
    if own().count() >= service.max_sessions {
        return denied(format!("{user} has {} sessions here already; end one first", service.max_sessions));
    }
    let left = most - own().map(|session| promised(session).unwrap_or(most)).sum();
    let asked = wish.terms.memory.amounts().map(|amount| amount.of(largest)).max();
    if asked.unwrap_or(MIN_MEMORY) > left {
        return denied(match own().count() {
            0 => format!("sessions get at most {most} here; ask for --memory {most}"),
            number => format!(
                "the sessions of {user} get at most {most} together here, and {number} of them have all but \
                 {left}; ask for less with --memory, or end one first"
            ),
        });
    }
    if wish.oversubscribe && !service.oversubscribe {
        return denied("sessions may not be larger than a card here; run without --oversubscribe".to_owned());
    }
    // A weight changes no other user's share, so any is permitted.
    if wish.terms.priority > Priority::Normal {
        return denied(format!(
            "only an administrator gives the priority {} here; start without --priority, then ask an administrator for \
             `sudo gpushare-ctl set priority {0} --session NAME`",
            wish.terms.priority
        ));
    }
    wish.terms.memory.every = wish.terms.memory.every.or(Some(Amount::Bytes(left)));
    Ok(wish)
}

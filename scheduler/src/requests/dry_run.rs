//! Answer to `gpushare-ctl run --dry-run`: the cards and limits that a program would get. Creates nothing.
//!
//! Each answer copies the decision machine. So each user may ask [`DRY_RUNS`] times a second, and all
//! answers together take at most a hundredth of the daemon's time.

use gpushare_core::forecast::{DryRunSession as Newcomer, Forecast as CoreForecast};
use gpushare_proto::dry_run::{CardForecast, DryRunSession, Forecast};
use gpushare_proto::explain::AheadView;
use gpushare_proto::session::{SessionPhase, Terms};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{GpuId, SessionId};
use gpushare_sys::clock;

use super::checks::{check_new, place};
use super::register::permitted;
use crate::config::Owner;
use crate::engine::{DRY_RUNS, Engine};
use crate::identity::{PeerProcess, User};
use crate::operation::failure;
use crate::sessions::terms::{compute_on, memory_on};

/// Session number that is never given to a session.
const NO_SESSION: SessionId = SessionId(u64::MAX);

/// Returns the resources that a program would get on each card that it may use.
pub(super) fn dry_run(
    engine: &mut Engine,
    peer: &PeerProcess,
    prospect: DryRunSession,
) -> Result<Forecast, Failure> {
    if engine.dry_runs.admit(peer.user, clock::monotonic()).is_none() {
        let message = format!("user {} asks more than {DRY_RUNS} times a second; wait a second", peer.user);
        return Err(failure(FailureCode::Unavailable, message));
    }
    let began = clock::monotonic();
    if !engine.dry_run_budget.wait(began).is_zero() {
        return Err(failure(FailureCode::Unavailable, "others ask too; ask again in a second"));
    }
    let forecast = answer(engine, peer, prospect);
    let ended = clock::monotonic();
    engine.dry_run_budget.charge(ended - began, ended);
    forecast
}

fn answer(engine: &mut Engine, peer: &PeerProcess, prospect: DryRunSession) -> Result<Forecast, Failure> {
    engine.read_pages(None);
    let (session, name, placed, terms, oversubscribe) = match prospect {
        DryRunSession::New(wish) => {
            let wish = permitted(engine, peer, wish)?;
            check_new(&wish)?;
            let placed = place(engine, &wish.gpu)?;
            (None, wish.name, placed, wish.terms, wish.oversubscribe)
        }
        DryRunSession::Existing(token) => {
            let id = engine.sessions.by_token(&token, false);
            let Some((id, session)) = id.and_then(|id| Some((id, engine.sessions.get(id)?))) else {
                let message = "the daemon knows no session with that token; see `gpushare-ctl session list`";
                return Err(failure(FailureCode::NotFound, message));
            };
            if session.phase(clock::boot()) != SessionPhase::Good {
                let message = format!(
                    "session {0} is granted nothing: it is paused or over; `gpushare-ctl explain {0}` says more",
                    session.name
                );
                return Err(failure(FailureCode::Permission, message));
            }
            let name = Some(session.name.clone());
            (Some(id), name, session.card, session.terms.clone(), session.oversubscribe)
        }
    };
    let cards = engine.cards.iter();
    let allowed = cards.filter(|(_, card)| placed.is_none_or(|placed| placed == card.info.uuid));
    let new = (&peer.owner(), oversubscribe);
    let forecasts = allowed.filter_map(|(gpu, _)| forecast_on(engine, gpu, session, &terms, new));
    Ok(Forecast { session, name, placed, cards: forecasts.collect() })
}

fn forecast_on(
    engine: &Engine,
    gpu: GpuId,
    session: Option<SessionId>,
    terms: &Terms,
    (user, oversubscribe): (&User, bool),
) -> Option<CardForecast> {
    let info = &engine.cards.get(gpu)?.info;
    let limit = memory_on(&terms.memory, &engine.cards, gpu);
    let newcomer = Newcomer {
        session: session.unwrap_or(NO_SESSION),
        limit,
        compute: compute_on(&terms.compute, &engine.cards, gpu),
        weight: terms.weight,
        priority: terms.priority,
        user: engine.users.get(user),
        oversubscribe,
    };
    let CoreForecast { capacity, promised, used, fits, mode, then, ahead, quantum, switch, bound } =
        engine.machine.foresee(clock::monotonic(), gpu, newcomer)?;
    // On the system's daemon the sessions ahead may be other users', whose names are not told.
    let is_own = engine.settings.owner == Owner::User;
    let ahead = ahead.into_iter().map(|(session, turn_ns)| AheadView {
        session,
        name: if is_own { engine.sessions.name(session) } else { String::new() },
        turn_ns,
    });
    Some(CardForecast {
        gpu,
        uuid: info.uuid,
        total_bytes: info.total,
        capacity_bytes: capacity,
        promised_bytes: promised,
        used_bytes: used,
        free_bytes: capacity - used,
        asked_bytes: limit,
        fits,
        mode,
        mode_then: then,
        ahead: ahead.collect(),
        quantum_ns: quantum,
        switch_ns: switch,
        bound_ns: bound,
    })
}

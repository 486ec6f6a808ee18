//! Increments for followers, made in slices between the inputs of the daemon's task, and the answer to a user
//! who asks for the own sessions.
//!
//! The shared pages are only read: no free bytes are reported to the decision machine.

use std::collections::BTreeSet;

use gpushare_core::snapshot::{RemappedSnapshot, SessionSnapshot};
use gpushare_core::summary::CardSummary;
use gpushare_proto::admin::LockView;
use gpushare_proto::follow::{
    CardFacts, CardFigures, CardHandoff, CardResidence, CardUse, DaemonFacts, Increment, Increments,
    LockState, MAX_QUEUE, SessionFacts, SessionFigures,
};
use gpushare_proto::handoff::CardHandoffs;
use gpushare_proto::{Bytes, GateState, GpuId, SessionId};
use gpushare_sys::clock;

use super::follow::Pass;
use crate::engine::Engine;
use crate::identity::{PeerProcess, User};
use crate::sessions::terms::memory_in_force;

/// Number of sessions in one slice. Each takes a few microseconds.
const SLICE: usize = 16;

/// Compares a slice of sessions with what followers know. Sends the increments once the pass is complete.
pub(crate) fn compare_slice(engine: &mut Engine) {
    let Some(mut pass) = engine.followers.take_pass() else { return };
    let ids: Vec<SessionId> = engine.sessions.ids_from(pass.next).take(SLICE).collect();
    for &id in &ids {
        pass.next = SessionId(id.0.saturating_add(1));
        let Some((facts, figures)) = session(engine, id) else { continue };
        for on in &figures.memory {
            *pass.allocated.entry(on.gpu).or_default() += on.allocated_bytes;
        }
        engine.followers.compare_session(&mut pass, facts, figures);
    }
    if ids.len() < SLICE {
        finish(engine, pass);
    } else {
        engine.followers.go_on(pass);
    }
}

fn finish(engine: &mut Engine, mut pass: Pass) {
    let at = clock::monotonic() - engine.started;
    let daemon = daemon(engine);
    let summaries: Vec<CardSummary> = engine.machine.card_summaries(MAX_QUEUE).collect();
    for mut summary in summaries {
        summary.allocated_bytes = pass.allocated.get(&summary.gpu).copied().unwrap_or(Bytes::ZERO);
        let residence = residence(&summary);
        if let Some((facts, figures)) = card(engine, summary) {
            let gpu = facts.gpu;
            engine.followers.compare_card(&mut pass, facts, figures);
            engine.followers.compare_residence(&mut pass, gpu, residence);
        }
    }
    for handoff in handoffs(engine) {
        engine.followers.compare_handoff(&mut pass, handoff);
    }
    let places = engine.machine.residences();
    engine.followers.compare_places(&mut pass, places);
    let Engine { followers, sessions, peers, .. } = engine;
    followers.finish(pass, daemon, |id| sessions.get(id).is_some(), (at, peers));
}

/// Returns all cards and the sessions of the peer's user. Other sessions appear only as numbers of those that
/// hold a card or wait for it.
pub(crate) fn own_sessions(
    engine: &Engine,
    peer: &PeerProcess,
    session_of_peer: Option<SessionId>,
) -> Increments {
    let mut changes = vec![Increment::Daemon(daemon(engine))];
    for summary in engine.machine.card_summaries(MAX_QUEUE) {
        let residence = residence(&summary);
        if let Some((facts, figures)) = card(engine, summary) {
            changes.extend([Increment::Card(facts), Increment::CardFigures(figures)]);
            changes.extend(residence.map(Increment::CardResidence));
        }
    }
    changes.extend(handoffs(engine).into_iter().map(Increment::CardHandoff));
    let user = peer.owner();
    let own: BTreeSet<SessionId> = engine.sessions.of_user(&user).chain(session_of_peer).collect();
    let residences = engine.machine.residences();
    for id in own {
        let Some((facts, figures)) = session(engine, id) else { continue };
        changes.extend([Increment::Session(facts), Increment::SessionFigures(figures)]);
        changes.extend(engine.followers.grants_of(id));
        let places: Vec<_> = residences.iter().filter(|place| place.session == id).cloned().collect();
        if !places.is_empty() {
            changes.push(Increment::Residence { session: id, places });
        }
    }
    let at_ns = clock::monotonic() - engine.started;
    Increments { at_ns, whole: true, changes }
}

fn daemon(engine: &Engine) -> DaemonFacts {
    DaemonFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        recovering: engine.machine.recovering(),
    }
}

fn card(engine: &Engine, summary: CardSummary) -> Option<(CardFacts, CardFigures)> {
    let gpu: GpuId = summary.gpu;
    let info = &engine.cards.get(gpu)?.info;
    let facts = CardFacts { gpu, uuid: info.uuid, name: info.name.clone(), total_bytes: info.total };
    let number = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let figures = CardFigures {
        gpu,
        capacity_bytes: summary.capacity_bytes,
        allocated_bytes: summary.allocated_bytes,
        mode: summary.mode,
        reason: summary.reason,
        holding: number(summary.holding),
        holders: summary.holders,
        waiting: number(summary.waiting),
        queue: summary.queue,
        quantum_ns: summary.quantum,
        turn_ends_ns: summary.turn_ends.map(|ends| ends - engine.started),
        handoffs: summary.handoffs,
    };
    Some((facts, figures))
}

fn residence(summary: &CardSummary) -> Option<CardResidence> {
    let RemappedSnapshot { resident_bytes, hosted_bytes, moving_bytes, .. } = summary.remapped?;
    Some(CardResidence { gpu: summary.gpu, resident_bytes, hosted_bytes, moving_bytes })
}

/// Returns the running handoff of each card, or else its last one.
fn handoffs(engine: &Engine) -> Vec<CardHandoff> {
    let of_card = |card: &CardHandoffs| match (&card.running, &card.last) {
        (Some(running), _) => Some(CardHandoff::of(running, true)),
        (None, last) => last.as_ref().map(|last| CardHandoff::of(&last.handoff, false)),
    };
    let cards = engine.machine.handoffs(clock::monotonic());
    cards.iter().filter_map(of_card).collect()
}

fn session(engine: &Engine, id: SessionId) -> Option<(SessionFacts, SessionFigures)> {
    let known = engine.sessions.get(id)?;
    let mut state = engine.machine.session_snapshot(clock::monotonic(), id)?;
    engine.clients.update_allocated(&mut state);
    let processes = || engine.clients.of(id).map(|client| &client.peer);
    let user = known.user().or_else(|| Some(processes().next()?.owner()));
    let facts = SessionFacts {
        session: id,
        name: known.name.clone(),
        user: user.as_ref().map(User::given),
        memory: memory_in_force(known, &engine.cards),
        weight: known.terms.weight,
        priority: known.terms.priority,
        phase: known.phase(clock::boot()),
        pids: processes().map(|peer| peer.pid).collect(),
    };
    let on_card = |on: &gpushare_proto::admin::SessionGpuView| CardUse {
        gpu: on.gpu,
        allocated_bytes: on.allocated_bytes,
        limit_bytes: on.limit_bytes,
    };
    let figures = SessionFigures {
        session: id,
        lock: lock(&state),
        memory: state.gpus.iter().map(on_card).collect(),
        gpu_time_ns: state.gpu_time_ns,
        refusals: state.refusals.saturating_add(known.before.refusals),
    };
    Some((facts, figures))
}

fn lock(session: &SessionSnapshot) -> LockState {
    match session.lock {
        LockView::Idle => LockState::Idle,
        LockView::Waiting { .. } => LockState::Waiting,
        LockView::Holding { .. } if session.clients.iter().any(|client| client.gate == GateState::Moving) => {
            LockState::Moving
        }
        LockView::Holding { .. } => LockState::Holding,
        LockView::Dropping { stuck: true, .. } => LockState::Stuck,
        LockView::Dropping { .. } => LockState::Dropping,
        LockView::Frozen => LockState::Frozen,
    }
}

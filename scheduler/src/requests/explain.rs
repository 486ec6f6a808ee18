//! Answer to `gpushare-ctl explain`: a session's refusals, its limits, and the reasons for which it waits.

use gpushare_core::waiting::Waiting;
use gpushare_core::{WaitsFor, snapshot::GpuSnapshot};
use gpushare_proto::explain::{AheadView, CardLimitsView, Explanation, HolderView, WaitReason, WaitView};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{Bytes, SessionId};
use gpushare_sys::clock;

use super::sessions::named;
use crate::engine::Engine;
use crate::operation::failure;
use crate::report::status::session_view;
use crate::sessions::Sessions;

pub(super) fn explain(engine: &mut Engine, which: &str) -> Result<Explanation, Failure> {
    let id = named(&engine.sessions, which)?;
    engine.read_pages(None);
    let session = session_view(engine, id).ok_or_else(|| {
        let name = engine.sessions.name(id);
        failure(FailureCode::NotFound, format!("session {name} is just ending"))
    })?;
    let now = clock::monotonic();
    let uses = |card: &GpuSnapshot| session.gpus.iter().any(|gpu| gpu.gpu == card.gpu);
    let all = session.gpus.is_empty();
    let snapshots = engine.machine.card_snapshots();
    let cards = snapshots.iter().filter(|card| all || uses(card));
    let limits = cards.filter_map(|card| {
        let here = session.gpus.iter().find(|gpu| gpu.gpu == card.gpu);
        Some(CardLimitsView {
            gpu: card.gpu,
            uuid: engine.cards.get(card.gpu)?.info.uuid,
            limit_bytes: engine.limit_on(id, card.gpu),
            used_bytes: here.map_or(Bytes::ZERO, |here| here.allocated_bytes),
            capacity_bytes: card.capacity_bytes,
            managed_limit_bytes: card.managed_limit_bytes,
            all_used_bytes: card.allocated_bytes,
        })
    });
    let waiting = engine.machine.waiting(now, id);
    Ok(Explanation {
        refusals: engine.refusals.views(id, now),
        cards: limits.collect(),
        wait: waiting.map(|waiting| wait_view(waiting, &engine.sessions)),
        session,
    })
}

fn wait_view(waiting: Waiting, sessions: &Sessions) -> WaitView {
    let name = |session: SessionId| sessions.name(session);
    let about_ns = waiting.about();
    let holder = |(session, rest_ns)| HolderView { session, name: name(session), rest_ns };
    let ahead = |(session, turn_ns)| AheadView { session, name: name(session), turn_ns };
    WaitView {
        reason: match waiting.reason {
            WaitsFor::Turn => WaitReason::Turn,
            WaitsFor::Holders(_) => WaitReason::Holders,
            WaitsFor::Stuck { session, reason } => WaitReason::Stuck { session, name: name(session), reason },
            WaitsFor::Return(processes) => WaitReason::Recovering { processes },
            WaitsFor::Pardon(_) => WaitReason::Standing,
            WaitsFor::Limit(limit) => WaitReason::Limit { limit },
            WaitsFor::Thaw(_) => WaitReason::Thaw { reason: waiting.reason.to_string() },
            WaitsFor::Memory { missing, .. } => {
                WaitReason::Memory { missing_bytes: missing, reason: waiting.reason.to_string() }
            }
        },
        holders: waiting.holders.into_iter().map(holder).collect(),
        ahead: waiting.ahead.into_iter().map(ahead).collect(),
        handoff_ns: waiting.handoff,
        about_ns,
    }
}

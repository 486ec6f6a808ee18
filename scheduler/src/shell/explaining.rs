//! What `gpushare-ctl explain` is told of a session: its refusals, its limits, and for what it waits.

use gpushare_core::waiting::Waiting;
use gpushare_core::{WaitsFor, snapshot::GpuSnapshot};
use gpushare_proto::explain::{
    AheadView, CardLimitsView, Explanation, HolderView, OrphanView, RefusalView, WaitReason, WaitView,
};
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{Bytes, SessionId};
use gpushare_sys::clock;

use super::{Shell, failure};

impl Shell {
    pub(super) fn explain(&mut self, which: &str) -> Result<Explanation, Failure> {
        let id = self.named(which)?;
        self.look_at_all_pages();
        let session = self.session_view(id).ok_or_else(|| {
            failure(FailureCode::NotFound, format!("session {} is just ending", self.sessions.name(id)))
        })?;
        let now = clock::monotonic();
        let refusals = self.refusals_of(id).map(|refused| RefusalView {
            ago_ns: now - refused.at,
            client: refused.client,
            pid: refused.pid,
            gpu: refused.gpu,
            refusal: refused.refusal,
        });
        let uses = |card: &GpuSnapshot| session.gpus.iter().any(|gpu| gpu.gpu == card.gpu);
        let all = session.gpus.is_empty();
        let snapshot = self.core.snapshot(now);
        let cards = snapshot.gpus.iter().filter(|card| all || uses(card));
        let limits = cards.filter_map(|card| {
            let here = session.gpus.iter().find(|gpu| gpu.gpu == card.gpu);
            Some(CardLimitsView {
                gpu: card.gpu,
                uuid: self.cards.get(card.gpu)?.info.uuid,
                limit_bytes: self.limit_on(id, card.gpu),
                used_bytes: here.map_or(Bytes::ZERO, |here| here.allocated_bytes),
                capacity_bytes: card.capacity_bytes,
                managed_limit_bytes: card.managed_limit_bytes,
                all_used_bytes: card.allocated_bytes,
            })
        });
        Ok(Explanation {
            refusals: refusals.collect(),
            cards: limits.collect(),
            wait: self.core.waiting(now, id).map(|waiting| self.wait_view(waiting)),
            session,
        })
    }

    /// What dead processes of a session have on cards still.
    pub(super) fn orphaned_of(&self, which: &str) -> Result<Vec<OrphanView>, Failure> {
        let id = self.named(which)?;
        Ok(self.orphaned(id, clock::monotonic()))
    }

    fn wait_view(&self, waiting: Waiting) -> WaitView {
        let name = |session: SessionId| self.sessions.name(session);
        let about_ns = waiting.about();
        let holder = |(session, rest_ns)| HolderView { session, name: name(session), rest_ns };
        let ahead = |(session, turn_ns)| AheadView { session, name: name(session), turn_ns };
        WaitView {
            reason: match waiting.reason {
                WaitsFor::Turn => WaitReason::Turn,
                WaitsFor::Holders(_) => WaitReason::Holders,
                WaitsFor::Stuck { session, reason } => {
                    WaitReason::Stuck { session, name: name(session), reason }
                }
                WaitsFor::Return(processes) => WaitReason::Recovering { processes },
                WaitsFor::Pardon(_) => WaitReason::Standing,
                WaitsFor::Limit(limit) => WaitReason::Limit { limit },
            },
            holders: waiting.holders.into_iter().map(holder).collect(),
            ahead: waiting.ahead.into_iter().map(ahead).collect(),
            handoff_ns: waiting.handoff,
            about_ns,
        }
    }
}

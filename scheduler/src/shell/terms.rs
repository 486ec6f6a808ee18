//! What the core hears of a session: its terms, what they come to on each card, and what it may do.

use gpushare_core::{Event, Standing};
use gpushare_proto::session::{Amount, CardQuota, Quota, SessionPhase};
use gpushare_proto::tenant::GpuChoice;
use gpushare_proto::{Bytes, GpuId, GpuUuid, Percent, SessionId};
use gpushare_sys::clock;

use super::Shell;

/// Whether a card that somebody names is this one.
pub(super) fn is_card(named: &GpuChoice, gpu: GpuId, uuid: GpuUuid) -> bool {
    match named {
        GpuChoice::Auto => false,
        GpuChoice::Index(index) => GpuId(*index) == gpu,
        GpuChoice::Uuid(named) => *named == uuid,
        GpuChoice::Prefix(prefix) => uuid.begins_with(prefix),
    }
}

impl Shell {
    /// Tells the core what a session may have.
    pub(super) fn tell_terms(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let limit = match session.terms.memory.every {
            Some(Amount::Bytes(bytes)) => Some(bytes),
            // Of which card, is said card by card.
            Some(Amount::Share(_)) | None => None,
        };
        let oversubscribe = session.oversubscribe;
        let share =
            Event::Share { session: id, weight: session.terms.weight, priority: session.terms.priority };
        let gpus: Vec<GpuId> = self.cards.iter().map(|(gpu, _)| gpu).collect();
        // Nothing comes between these: a share of a card is no limit to the core for no event of anybody's.
        self.feed(Event::SessionOpened { session: id, limit, oversubscribe });
        self.feed(share);
        gpus.into_iter().for_each(|gpu| self.tell_quota(id, gpu));
    }

    /// Tells the core what a session may have on one card.
    pub(super) fn tell_quota(&mut self, session: SessionId, gpu: GpuId) {
        let limit = self.limit_on(session, gpu);
        self.feed(Event::Quota { session, gpu, limit });
        let limit = self.compute_on(session, gpu);
        self.feed(Event::Compute { session, gpu, limit });
    }

    /// A session's compute limit on a card; none for no limit.
    fn compute_on(&self, session: SessionId, gpu: GpuId) -> Option<Percent> {
        let compute = &self.sessions.get(session)?.terms.compute;
        match self.amount_on(compute, gpu)? {
            Amount::Share(share) => Some(share),
            // Nobody gets one in: a limit of time in bytes is refused.
            Amount::Bytes(_) => None,
        }
    }

    /// A session's quota on a card; none for no limit.
    pub(super) fn limit_on(&self, session: SessionId, gpu: GpuId) -> Option<Bytes> {
        let amount = self.amount_on(&self.sessions.get(session)?.terms.memory, gpu)?;
        Some(amount.of(self.cards.get(gpu)?.info.total))
    }

    pub(super) fn amount_on(&self, quota: &Quota, gpu: GpuId) -> Option<Amount> {
        let info = &self.cards.get(gpu)?.info;
        let is_this = |own: &&CardQuota| is_card(&own.card, gpu, info.uuid);
        let own = quota.cards.iter().find(is_this);
        own.map(|card| card.amount).or(quota.every)
    }

    /// Tells the core what a session may do, if that is new.
    pub(super) fn tell_standing(&mut self, id: SessionId) {
        let now = clock::monotonic();
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let standing = match session.standing(now) {
            SessionPhase::Good => Standing::Good,
            SessionPhase::Paused => Standing::Paused,
            SessionPhase::Expired | SessionPhase::Revoked => Standing::Over,
        };
        if std::mem::replace(&mut session.told, standing) != standing {
            self.feed(Event::Standing { session: id, standing });
        }
    }
}

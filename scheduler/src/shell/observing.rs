//! What metrics are made of: notices as they come, the figures of sessions that end, and a picture when one is
//! asked for.

use gpushare_core::Notice;
use gpushare_proto::{Bytes, GpuId, SessionId};
use gpushare_sys::clock;

use super::Shell;
use crate::metrics::{AuditPicture, CardPicture, Observer, Picture, SessionPicture};

impl Shell {
    /// Reports to `observer` from now on.
    pub(crate) fn observe(&mut self, observer: Observer) {
        self.observer = Some(observer);
    }

    pub(super) fn measure(&mut self, notice: &Notice) {
        self.name_cards();
        if let Some(observer) = &self.observer {
            observer.events.note(notice);
        }
    }

    /// Every card is counted from when it is known, not from when something happens on it.
    fn name_cards(&mut self) {
        if let Some(observer) = &mut self.observer {
            let cards = self.cards.iter();
            cards.for_each(|(gpu, card)| observer.events.card(gpu, card.info.uuid));
        }
    }

    /// A session ends: its last figures are kept for a while.
    pub(super) fn keep_figures(&mut self, session: SessionId, name: &str) {
        let now = clock::monotonic();
        if let (Some(observer), Some(state)) = (&mut self.observer, self.core.session_snapshot(now, session))
        {
            let name = name.to_owned();
            observer.ended.add(now, SessionPicture { name, state });
        }
    }

    /// The daemon as it is. The pages are only read: what lies free in them is news to the core at its own time.
    pub(super) fn picture(&mut self) -> Picture {
        let now = clock::monotonic();
        let snapshot = self.core.snapshot(now);
        let mut sessions: Vec<SessionPicture> = snapshot
            .sessions
            .into_iter()
            .map(|state| SessionPicture { name: self.sessions.name(state.session), state })
            .collect();
        sessions.iter_mut().for_each(|session| self.look_closer(session));
        let living = sessions.len();
        let mut cards: Vec<CardPicture> = snapshot
            .gpus
            .into_iter()
            .filter_map(|state| {
                let info = self.cards.get(state.gpu)?.info.clone();
                Some(CardPicture { info, state })
            })
            .collect();
        for card in &mut cards {
            card.state.allocated_bytes = allocated(&sessions, card.state.gpu);
        }
        self.name_cards();
        if let Some(observer) = &mut self.observer {
            sessions.extend(observer.ended.at(now).cloned());
        }
        Picture {
            uptime: now - self.started,
            ready: !self.core.is_recovering(),
            recovering: snapshot.recovering,
            cards,
            sessions,
            audit: AuditPicture { written: self.audit().written(), lost: self.audit().lost() },
            living,
        }
    }

    /// What a session has allocated, by what its processes' pages say now.
    pub(super) fn look_closer(&self, session: &mut SessionPicture) {
        for usage in &mut session.state.gpus {
            let ids = session.state.clients.iter().map(|client| client.client);
            let free: Bytes = ids.filter_map(|id| Some(self.clients.get(&id)?.page.free(usage.gpu))).sum();
            usage.allocated_bytes = usage.leased_bytes - free;
            usage.peak_bytes = usage.peak_bytes.max(usage.allocated_bytes);
        }
    }
}

fn allocated(sessions: &[SessionPicture], gpu: GpuId) -> Bytes {
    let usages = sessions.iter().flat_map(|session| &session.state.gpus);
    usages.filter(|usage| usage.gpu == gpu).map(|usage| usage.allocated_bytes).sum()
}

//! Who needs how much of which card: derived from the books, once per event.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, GpuId, SessionId};

use crate::session::Session;

/// Working sets by session and by card. A session appears with the cards that its processes attached.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    sessions: BTreeMap<SessionId, BTreeMap<GpuId, Bytes>>,
    cards: BTreeMap<GpuId, Bytes>,
}

impl Demand {
    pub(crate) fn new(sessions: &BTreeMap<SessionId, Session>) -> Self {
        let mut demand = Self::default();
        for (&id, session) in sessions {
            for client in session.clients.values() {
                for (&gpu, book) in &client.books {
                    let needs = demand.sessions.entry(id).or_default();
                    *needs.entry(gpu).or_default() += book.movable();
                    *demand.cards.entry(gpu).or_default() += book.movable();
                }
            }
        }
        demand
    }

    /// All working sets on a card together.
    pub(crate) fn total(&self, gpu: GpuId) -> Bytes {
        self.cards.get(&gpu).copied().unwrap_or_default()
    }

    /// The cards of a session with its working set on each.
    pub(crate) fn of_session(&self, session: SessionId) -> impl Iterator<Item = (GpuId, Bytes)> {
        let needs = self.sessions.get(&session);
        needs.into_iter().flatten().map(|(&gpu, &bytes)| (gpu, bytes))
    }
}

//! Who needs how much of which card: derived from the books, once per event. Asked for by every step of settling, so it is two
//! lists and no tree.

use std::collections::BTreeMap;
use std::ops::Range;

use gpushare_proto::{Bytes, GpuId, SessionId};

use crate::session::Session;

/// Working sets by session and by card. A session appears with the cards that its processes attached.
#[derive(Debug, Default)]
pub(crate) struct Demand {
    /// By number of the session: where its part of `needs` is.
    sessions: Vec<(SessionId, Range<usize>)>,
    /// By card within a session.
    needs: Vec<(GpuId, Bytes)>,
    cards: BTreeMap<GpuId, Bytes>,
}

impl Demand {
    pub(crate) fn new(sessions: &BTreeMap<SessionId, Session>) -> Self {
        // Most have one card.
        let mut demand = Self {
            sessions: Vec::with_capacity(sessions.len()),
            needs: Vec::with_capacity(sessions.len()),
            cards: BTreeMap::new(),
        };
        for (&id, session) in sessions {
            let begin = demand.needs.len();
            for client in session.clients.values() {
                for (&gpu, book) in &client.books {
                    demand.add(begin, gpu, book.movable());
                }
            }
            if demand.needs.len() > begin {
                demand.sessions.push((id, begin..demand.needs.len()));
            }
        }
        for (gpu, bytes) in &demand.needs {
            *demand.cards.entry(*gpu).or_default() += *bytes;
        }
        demand
    }

    /// To the session whose needs begin there.
    fn add(&mut self, begin: usize, gpu: GpuId, bytes: Bytes) {
        match self.needs[begin..].binary_search_by_key(&gpu, |(known, _)| *known) {
            Ok(at) => self.needs[begin + at].1 += bytes,
            Err(at) => self.needs.insert(begin + at, (gpu, bytes)),
        }
    }

    /// All working sets on a card together.
    pub(crate) fn total(&self, gpu: GpuId) -> Bytes {
        self.cards.get(&gpu).copied().unwrap_or_default()
    }

    /// The cards of a session with its working set on each.
    pub(crate) fn of_session(&self, session: SessionId) -> impl Iterator<Item = (GpuId, Bytes)> {
        let found = self.sessions.binary_search_by_key(&session, |(id, _)| *id);
        let range = found.map_or(0..0, |at| self.sessions[at].1.clone());
        self.needs[range].iter().copied()
    }
}

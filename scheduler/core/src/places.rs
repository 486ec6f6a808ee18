//! Where a waiting session stands, and for what it waits: for its one line on stderr, and for `status`.

use std::collections::BTreeSet;

use gpushare_proto::{ClientId, SessionId};

use crate::core::Core;
use crate::event::WaitsFor;
use crate::gpu_set::GpuSet;
use crate::session::lock::Lock;

/// A place in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Waiting sessions that come first on any of its cards.
    pub(crate) ahead: u32,
    /// For whom or what it waits.
    pub(crate) reason: WaitsFor,
}

impl Core {
    /// Where a session stands; `None` for one that does not wait.
    pub(crate) fn place(&self, id: SessionId) -> Option<Place> {
        let session = self.sessions.get(id)?;
        session.lock.ticket()?;
        if !session.may_run() {
            return Some(Place {
                // Nobody stands behind those who are not let in, nor they behind anybody.
                ahead: 0,
                reason: WaitsFor::Pardon(session.standing),
            });
        }
        if let Some(limit) = session.compute.in_force().filter(|_| session.is_throttled()) {
            return Some(Place { ahead: 0, reason: WaitsFor::Limit(limit) });
        }
        Some(Place { ahead: self.ahead(id), reason: self.reason(id) })
    }

    /// How many wait before a session on the cards that it takes turns on.
    fn ahead(&self, id: SessionId) -> u32 {
        let mut cards = self.cards.among(self.turn_cards(id)).map(|(_, card)| card);
        let ahead = match (cards.next(), cards.next()) {
            (None, _) => 0,
            (Some(card), None) => card.census.ahead_of(id).count(),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(cards);
                let all: BTreeSet<SessionId> = all.flat_map(|card| card.census.ahead_of(id)).collect();
                all.len()
            }
        };
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// Who is awaited that keeps a session from its cards, or from a part of them.
    #[must_use]
    pub fn awaited_by(&self, id: SessionId) -> Vec<ClientId> {
        self.recovery.away_from(self.cards_of(id)).collect()
    }

    /// What a session waits for that needs its turn.
    fn reason(&self, id: SessionId) -> WaitsFor {
        let away = |cards: GpuSet| u32::try_from(self.recovery.away_from(cards).count()).unwrap_or(u32::MAX);
        if self.is_held_up(id) {
            return WaitsFor::Return(away(self.cards_of(id)));
        }
        let cards = self.turn_cards(id);
        let mut holders = BTreeSet::new();
        for gpu in cards {
            holders.extend(self.cards.get(gpu).into_iter().flat_map(|card| &card.census.holders));
        }
        let stuck = holders.iter().find_map(|&session| {
            let Lock::Dropping(_, drop) = &self.sessions.get(session)?.lock else {
                return None;
            };
            let reason = drop.stuck()?.to_owned();
            Some(WaitsFor::Stuck { session, reason })
        });
        let alone = holders.is_empty() || self.waits_for_the_lost(id);
        stuck.unwrap_or_else(|| match holders.is_empty() {
            _ if alone && !cards.is_empty() && away(cards) > 0 => WaitsFor::Return(away(cards)),
            true => WaitsFor::Turn,
            false => WaitsFor::Holders(holders.into_iter().collect()),
        })
    }
}

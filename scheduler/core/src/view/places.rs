//! Place of a waiting session in the queue and the reason for its wait. Processes print both on stderr, and
//! `status` shows them.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{ClientId, SessionId};

use crate::events::{Place, Standing, ThawWait, WaitsFor};
use crate::machine::Core;
use crate::session::frost::Frost;
use crate::session::lock::Lock;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Returns a session's place in the queue; `None` if the session does not wait.
    pub(crate) fn place(&self, id: SessionId) -> Option<Place> {
        let reason = self.waits_for(id)?;
        let ahead = match reason {
            // Such a session is in no queue.
            WaitsFor::Pardon(_) | WaitsFor::Limit(_) | WaitsFor::Thaw(_) => 0,
            _ => self.ahead(id),
        };
        Some(Place { ahead, reason })
    }

    /// Reason for which a session waits; `None` if the session does not wait.
    fn waits_for(&self, id: SessionId) -> Option<WaitsFor> {
        let session = self.sessions.get(id)?;
        let comes_back = session.frosts().any(Frost::returns);
        if comes_back && session.standing == Standing::Good {
            let wait = session.frosts().filter_map(Frost::waits_for).max();
            return Some(WaitsFor::Thaw(wait.unwrap_or(ThawWait::Driver)));
        }
        session.lock.ticket()?;
        if !session.may_run() {
            return Some(match session.standing {
                // It is being frozen, and comes back at once.
                Standing::Good => WaitsFor::Thaw(ThawWait::Driver),
                standing => WaitsFor::Pardon(standing),
            });
        }
        if let Some(limit) = session.compute.in_force().filter(|_| session.is_throttled()) {
            return Some(WaitsFor::Limit(limit));
        }
        Some(self.reason(id))
    }

    /// Returns the places of all waiting sessions. Takes each queue once, however long it is.
    pub(crate) fn places(&self) -> BTreeMap<SessionId, Place> {
        let mut places = BTreeMap::new();
        for (_, card) in self.cards.iter() {
            for (ahead, id) in card.groups.in_order(|_| true).enumerate() {
                // A gang is in several queues, and its place is computed by itself.
                if self.turn_cards(id).len() == 1
                    && let Some(reason) = self.waits_for(id)
                {
                    let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
                    places.insert(id, Place { ahead, reason });
                }
            }
        }
        places
    }

    /// Number of sessions that come first on the cards on which a session takes turns.
    fn ahead(&self, id: SessionId) -> u32 {
        let mut cards = self.cards.among(self.turn_cards(id)).map(|(_, card)| card);
        let ahead = match (cards.next(), cards.next()) {
            (None, _) => 0,
            (Some(card), None) => card.groups.ahead_of(id).count(),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(cards);
                let all: BTreeSet<SessionId> = all.flat_map(|card| card.groups.ahead_of(id)).collect();
                all.len()
            }
        };
        u32::try_from(ahead).unwrap_or(u32::MAX)
    }

    /// Reason for the wait of a session that needs a turn.
    fn reason(&self, id: SessionId) -> WaitsFor {
        let away = |cards: GpuSet| u32::try_from(self.recovery.away_from(cards).count()).unwrap_or(u32::MAX);
        if self.is_held_up(id) {
            return WaitsFor::Return(away(self.cards_of(id)));
        }
        let cards = self.turn_cards(id);
        let here = self.cards.among(cards).flat_map(|(_, card)| &card.index.holders);
        let mut holders: Vec<SessionId> = here.copied().collect();
        holders.sort_unstable();
        holders.dedup();
        let stuck = holders.iter().find_map(|&session| {
            let Lock::Dropping(_, drop) = &self.sessions.get(session)?.lock else {
                return None;
            };
            let reason = drop.stuck()?.to_owned();
            Some(WaitsFor::Stuck { session, reason })
        });
        let alone = holders.is_empty() || self.waits_for_absent_memory(id);
        stuck.unwrap_or_else(|| match holders.is_empty() {
            _ if alone && !cards.is_empty() && away(cards) > 0 => WaitsFor::Return(away(cards)),
            true => WaitsFor::Turn,
            false => WaitsFor::Holders(holders),
        })
    }
}

impl Core {
    /// Returns the reason for which a session waits; `None` if the session does not wait.
    #[must_use]
    pub fn waits_for(&self, id: SessionId) -> Option<WaitsFor> {
        self.view.waits_for(id)
    }

    /// Number of missing processes of the last daemon that keep a session from any of its cards.
    #[must_use]
    pub fn awaited_by(&self, id: SessionId) -> Vec<ClientId> {
        self.view.recovery.away_from(self.view.cards_of(id)).collect()
    }
}

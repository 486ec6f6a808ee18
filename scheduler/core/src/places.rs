//! Where a waiting session stands, and for what it waits: for its one line on stderr, and for `status`.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::{GpuId, SessionId};

use crate::core::Core;
use crate::demand::Demand;
use crate::event::WaitsFor;

/// A place in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// Waiting sessions that come first on any of its cards.
    pub(crate) ahead: u32,
    /// For whom or what it waits.
    pub(crate) reason: WaitsFor,
}

/// Of every waiting session.
pub(crate) type Places = BTreeMap<SessionId, Place>;

/// Sessions that wait for the same cards wait for the same things.
struct Line {
    cards: BTreeSet<GpuId>,
    reason: WaitsFor,
    length: u32,
}

impl Core {
    /// Where the waiting sessions stand.
    pub(crate) fn places(&self, demand: &Demand) -> Places {
        let mut lines: Vec<Line> = Vec::new();
        let mut places = Places::new();
        for id in self.queue() {
            if let Some(session) = self.sessions.get(&id).filter(|session| !session.may_run()) {
                let reason = WaitsFor::Pardon(session.standing);
                places.insert(id, Place { ahead: 0, reason });
                continue;
            }
            let cards: BTreeSet<GpuId> = self.turn_needs(id, demand).into_keys().collect();
            let ahead = lines
                .iter()
                .filter(|line| !line.cards.is_disjoint(&cards))
                .map(|line| line.length)
                .sum();
            let reason = match lines.iter_mut().find(|line| line.cards == cards) {
                Some(line) => {
                    line.length += 1;
                    line.reason.clone()
                }
                None => {
                    let reason = self.reason(&cards, demand);
                    lines.push(Line {
                        cards,
                        reason: reason.clone(),
                        length: 1,
                    });
                    reason
                }
            };
            places.insert(id, Place { ahead, reason });
        }
        places
    }

    /// What a session waits for that needs its turn on `cards`.
    fn reason(&self, cards: &BTreeSet<GpuId>, demand: &Demand) -> WaitsFor {
        if self.recovery.is_running() {
            return WaitsFor::Return(self.recovery.awaited());
        }
        let on_cards = |id: SessionId| demand.of_session(id).any(|(gpu, _)| cards.contains(&gpu));
        let holders = self
            .sessions
            .iter()
            .filter(|(_, session)| session.lock.grant().is_some());
        let holders: Vec<_> = holders.filter(|(id, _)| on_cards(**id)).collect();
        let stuck = holders.iter().find_map(|&(&session, holder)| {
            let reason = holder.lock.dropping()?.stuck()?.to_owned();
            Some(WaitsFor::Stuck { session, reason })
        });
        stuck.unwrap_or_else(|| match holders.is_empty() {
            true => WaitsFor::Turn,
            false => WaitsFor::Holders(holders.into_iter().map(|(&id, _)| id).collect()),
        })
    }
}

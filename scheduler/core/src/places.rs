//! Where a waiting session stands, and for what it waits: for its one line on stderr, and for `status`.

use gpushare_proto::{ClientId, GpuId, SessionId};

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

/// Of every waiting session. A long queue is looked at after every event, so nothing is copied for it.
#[derive(Debug, Default)]
pub(crate) struct Places {
    lines: Vec<Line>,
    /// By number of the session: how many are ahead, and its line.
    sessions: Vec<(SessionId, u32, usize)>,
}

/// Sessions that wait for the same cards wait for the same things.
#[derive(Debug)]
struct Line {
    /// In order.
    cards: Vec<GpuId>,
    reason: WaitsFor,
    length: u32,
}

impl Places {
    /// How many sessions wait.
    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Where a session stands; `None` for one that does not wait.
    pub(crate) fn get(&self, id: SessionId) -> Option<Place> {
        let (ahead, reason) = self.find(id)?;
        Some(Place {
            ahead,
            reason: reason.clone(),
        })
    }

    /// Whether a session stands there.
    pub(crate) fn is(&self, id: SessionId, place: Option<&Place>) -> bool {
        self.find(id) == place.map(|place| (place.ahead, &place.reason))
    }

    fn find(&self, id: SessionId) -> Option<(u32, &WaitsFor)> {
        let at = self.sessions.binary_search_by_key(&id, |(id, ..)| *id).ok()?;
        let (_, ahead, line) = self.sessions[at];
        Some((ahead, &self.lines[line].reason))
    }
}

impl Core {
    /// Where the waiting sessions stand.
    pub(crate) fn places(&self, demand: &Demand) -> Places {
        let mut places = Places::default();
        for id in self.queue() {
            let lines = &mut places.lines;
            if let Some(session) = self.sessions.get(&id).filter(|session| !session.may_run()) {
                let reason = WaitsFor::Pardon(session.standing);
                let same = lines.iter().position(|line| line.reason == reason);
                let line = same.unwrap_or_else(|| {
                    // Nobody stands behind those who are not let in.
                    lines.push(Line {
                        cards: Vec::new(),
                        reason,
                        length: 0,
                    });
                    lines.len() - 1
                });
                places.sessions.push((id, 0, line));
                continue;
            }
            let waits_on = |gpu: &GpuId| self.turn_cards(id, demand).any(|card| card == *gpu);
            let before = lines.iter().filter(|line| line.cards.iter().any(waits_on));
            let ahead = before.map(|line| line.length).sum();
            let same =
                |line: &Line| line.length > 0 && line.cards.iter().copied().eq(self.turn_cards(id, demand));
            let line = lines.iter().position(same).unwrap_or_else(|| {
                let cards: Vec<GpuId> = self.turn_cards(id, demand).collect();
                let reason = self.reason(id, &cards, demand);
                lines.push(Line {
                    cards,
                    reason,
                    length: 0,
                });
                lines.len() - 1
            });
            lines[line].length += 1;
            places.sessions.push((id, ahead, line));
        }
        places.sessions.sort_unstable();
        places
    }

    /// Who is awaited that keeps a session from its cards, or from a part of them.
    #[must_use]
    pub fn awaited_by(&self, id: SessionId) -> Vec<ClientId> {
        let cards: Vec<GpuId> = Demand::new(&self.sessions)
            .of_session(id)
            .map(|(gpu, _)| gpu)
            .collect();
        self.recovery.away_from(&cards).collect()
    }

    /// What a session waits for that needs its turn on `cards`.
    fn reason(&self, id: SessionId, cards: &[GpuId], demand: &Demand) -> WaitsFor {
        let away =
            |cards: &[GpuId]| u32::try_from(self.recovery.away_from(cards).count()).unwrap_or(u32::MAX);
        if self.is_held_up(id, demand) {
            let all: Vec<GpuId> = demand.of_session(id).map(|(gpu, _)| gpu).collect();
            return WaitsFor::Return(away(&all));
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
            _ if !cards.is_empty() && away(cards) > 0 => WaitsFor::Return(away(cards)),
            true => WaitsFor::Turn,
            false => WaitsFor::Holders(holders.into_iter().map(|(&id, _)| id).collect()),
        })
    }
}

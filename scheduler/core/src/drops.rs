//! Who must let go, and who has: holders that no longer fit together, quanta that are over, drops that are late.

use std::collections::BTreeSet;

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::demand::Demand;
use crate::event::{Effect, Notice};
use crate::gpu::queue;
use crate::session::Session;
use crate::session::drop::{PendingDrop, Step};
use crate::session::lock::Lock;

impl Core {
    /// The locks of those who let go are free.
    pub(crate) fn collect(&mut self, demand: &Demand) {
        for id in self.who_let_go(demand) {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            let Some(epoch) = session.lock.grant().map(|grant| grant.epoch) else {
                continue;
            };
            let drop = session.lock.dropping();
            let drain = drop.map(PendingDrop::drain);
            let vacated = drop.map_or(self.now, PendingDrop::since);
            session.shut();
            for (gpu, _) in demand.of_session(id) {
                if let Some(card) = self.cards.get_mut(&gpu) {
                    card.vacated = card.vacated.max(vacated);
                    if let Some(drain) = drain {
                        card.drained(drain);
                    }
                }
            }
            self.notice(Notice::Dropped {
                session: id,
                epoch,
                gpus: self.turn_cards(id, demand).collect(),
                drain,
            });
        }
    }

    /// Who has let go of the lock.
    pub(crate) fn who_let_go(&self, demand: &Demand) -> Vec<SessionId> {
        let sessions = self.sessions.iter();
        sessions
            .filter(|&(&id, session)| session.has_let_go(|| self.takes_turns(id, demand)))
            .map(|(&id, _)| id)
            .collect()
    }

    /// Holders that no longer fit together: the one that grew stays, then those who came first.
    pub(crate) fn fit_holders(&mut self, demand: &Demand) {
        let mut rooms = self.empty_rooms();
        if rooms.is_empty() {
            return;
        }
        let holders = self.sessions.iter();
        let mut holders: Vec<_> = holders
            .filter_map(|(&id, session)| match session.lock {
                Lock::Holding(grant) => Some((self.grown != Some(id), grant.epoch, id)),
                _ => None,
            })
            .collect();
        holders.sort_unstable();
        let holders: Vec<_> = holders
            .into_iter()
            .map(|(_, _, id)| (id, self.turn_needs(id, demand)))
            .collect();
        for id in queue::surplus(&holders, &mut rooms) {
            self.begin_drop(id);
        }
    }

    /// Who may not run lets go, whether or not anybody waits.
    pub(crate) fn stop_barred(&mut self) {
        let barred = self.sessions.iter().filter(|(_, session)| !session.may_run());
        let barred: Vec<SessionId> = barred.map(|(&id, _)| id).collect();
        barred.into_iter().for_each(|id| self.begin_drop(id));
    }

    /// Quanta end where somebody needs the room.
    pub(crate) fn expire_quanta(&mut self, demand: &Demand) {
        let over = |session: &Session| match session.lock {
            Lock::Holding(grant) => self.now >= grant.clock.end(),
            _ => false,
        };
        let over = self.sessions.iter().filter(|(_, session)| over(session));
        let wanted = |id| demand.of_session(id).any(|(gpu, _)| self.is_wanted(gpu));
        let over: Vec<SessionId> = over.map(|(&id, _)| id).filter(|&id| wanted(id)).collect();
        over.into_iter().for_each(|id| self.begin_drop(id));
    }

    /// Whether somebody waits for room on a card.
    pub(crate) fn is_wanted(&self, gpu: GpuId) -> bool {
        self.cards.get(&gpu).is_some_and(|card| card.wanted)
    }

    /// Tells a holder to let go.
    pub(crate) fn begin_drop(&mut self, id: SessionId) {
        let expected_drain = self.expected_drain(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Lock::Holding(grant) = session.lock {
            let drop = PendingDrop::new(self.now, expected_drain, &self.config);
            session.lock = Lock::Dropping(grant, drop);
            session.close(grant.epoch, &mut self.effects);
        }
    }

    pub(crate) fn expected_drain(&self, id: SessionId) -> Nanos {
        let cards = self.sessions.get(&id).into_iter().flat_map(Session::attached);
        let cards: BTreeSet<GpuId> = cards
            .flat_map(|(_, client)| client.books.keys().copied())
            .collect();
        let drains = cards
            .iter()
            .filter_map(|gpu| Some(self.cards.get(gpu)?.expected_drain()));
        drains.max().unwrap_or_default()
    }

    /// Late drops go on as `session/drop.rs` says. Whether one became stuck, which may let others pass.
    pub(crate) fn push_drops(&mut self, demand: &Demand) -> bool {
        let mut stuck = false;
        let dropping = self
            .sessions
            .iter()
            .filter(|(_, session)| session.lock.dropping().is_some());
        let dropping: Vec<SessionId> = dropping.map(|(&id, _)| id).collect();
        for id in dropping {
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            let sleeper = session.has_sleeper();
            let Lock::Dropping(_, drop) = &mut session.lock else {
                continue;
            };
            for step in drop.advance(self.now, sleeper, &self.config) {
                stuck |= matches!(step, Step::Report(_));
                self.push_drop(id, step, demand);
            }
        }
        stuck
    }

    fn push_drop(&mut self, id: SessionId, step: Step, demand: &Demand) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Lock::Dropping(grant, drop) = &session.lock else {
            return;
        };
        let (epoch, tries) = (grant.epoch, drop.tries());
        match step {
            Step::Close => session.close(epoch, &mut self.effects),
            Step::Reopen => {
                session.open(epoch, false, &mut self.effects);
                self.notice(Notice::DropReopened { session: id, tries });
                for (gpu, _) in demand.of_session(id) {
                    if let Some(card) = self.cards.get_mut(&gpu) {
                        card.aborted_drops += 1;
                    }
                }
            }
            Step::Report(reason) => self.notice(Notice::Stuck { session: id, reason }),
            Step::Kill => {
                let doomed = session.in_flight().map(|client| Effect::Kill { client });
                self.effects.extend(doomed);
            }
        }
    }
}

//! Order of turns by virtual time: charged time ÷ effective weight.
//!
//! A session has a virtual time on each card: the time that it was charged for turns there ÷ its effective
//! weight, of which its class is a factor (session/share.rs). The waiter with the least virtual time goes
//! next.
//!
//! ```text
//!              floor: the least of those who wait or hold
//!                │         ┌ waits: its time stands still
//!   ─────────────┼─────────●───────────────○────────────▶ virtual time
//!     ▲          │                         └ holds: its time grows with the card's clock ÷ holders ÷ weight
//!     └ slept: wakes half a quantum before the floor at best
//! ```
//!
//! A session on several cards (a gang) is ordered by the greatest of its distances from the floors. So its
//! place is the same on each card. At the end of a quantum, a holder goes on only if the first waiter's
//! virtual time exceeds the holder's by more than half a quantum. Where the first waiter is a gang that
//! also waits for another card, others use the time until then (turns/backfill.rs). A waiting gang keeps
//! the floors of all its cards down, so that it becomes first at some time. Before its turn it gives up the
//! lead that waiting for another card gave it. A new session begins at the least virtual time of the
//! others.
//!
//! After a restart, a session begins where it was: at the distance from the floor that the last daemon
//! recorded. While processes of the last daemon are about to return to a card, its floor stays, so that the
//! distances do not depend on the order of their return.
//!
//! **Bound.** For a fixed set of sessions that always have work, session i waits at most Σ over j≠i of
//! [(wⱼ/wᵢ)(qᵢ+sᵢ) + (3/2)qⱼ + sⱼ], plus the switch budget. Here q is the quantum, s the cost of a switch
//! ([`Card::switch_cost`]) and w the effective weight. The three terms: j catches up with i, ends its
//! present quantum, and may be renewed half a quantum early. A gang also waits for the drain of backfilled
//! turns. A session that waits for memory of stuck or absent processes (turns/grants.rs) has no bound.

use std::collections::BTreeSet;

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::memory::absent::Absent;
use crate::session::Session;
use crate::session::lock::{Lock, Ticket, Turn};
use crate::session::on_card::OnCard;
use crate::session::share::{Class, Share, Virtual, part};
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;
use crate::view::View;

/// Sort key in the order over several cards: not urgent, distance from the floor, class, ticket, session.
type Order = (bool, i128, Class, Ticket, SessionId);

impl View {
    /// Returns the waiting sessions on `cards` that may be granted a turn, in the order of turns.
    pub(crate) fn in_line(&self, cards: GpuSet) -> impl Iterator<Item = SessionId> {
        let mut here = cards.into_iter();
        let (first, second) = (here.next(), here.next());
        let one = first.filter(|_| second.is_none()).and_then(|gpu| self.cards.get(gpu));
        let one = one.into_iter().flat_map(|card| card.index.queue.iter().map(|&(_, id)| id));
        let many = second.map(|_| self.in_common_line(cards));
        one.chain(many.into_iter().flatten())
    }

    /// Returns the queued sessions of several cards in one common order of turns.
    fn in_common_line(&self, cards: GpuSet) -> Vec<SessionId> {
        let waiters = self.cards.among(cards).flat_map(|(_, card)| &card.index.queue);
        let waiters: BTreeSet<Order> = waiters.map(|&(turn, id)| self.order(turn, id)).collect();
        let mut seen = BTreeSet::new();
        let ids = waiters.into_iter().map(|(.., id)| id);
        ids.filter(|id| seen.insert(*id)).collect()
    }

    fn order(&self, turn: Turn, id: SessionId) -> Order {
        (turn.regular, self.lag(id), turn.class, turn.ticket, id)
    }

    /// Least virtual time of the holding and waiting sessions of a card, at least the last such value.
    fn floor(&self, now: Nanos, gpu: GpuId) -> Virtual {
        let Some(card) = self.cards.get(gpu) else {
            return Virtual::default();
        };
        let pays = card.index.first_payers().filter_map(|id| {
            let session = self.sessions.get(id)?;
            let on = session.cards.get(gpu)?;
            Some(on.standing().plus(owed(now, session, card, on)))
        });
        let least = card.index.least_waiting().into_iter().chain(pays).min();
        least.map_or(card.floor, |least| card.floor.max(least))
    }

    /// Virtual time of a session on a card, including the charge of its present turn.
    fn had(&self, session: &Session, card: &Card, on: &OnCard) -> Virtual {
        on.standing().plus(owed(self.now, session, card, on))
    }

    /// Greatest distance of a session's virtual time from the floors of its cards with turns.
    fn lag(&self, id: SessionId) -> i128 {
        let Some(session) = self.sessions.get(id) else {
            return 0;
        };
        let lags = session.turn_cards(self.in_turns).into_iter().filter_map(|gpu| {
            let (card, on) = (self.cards.get(gpu)?, session.cards.get(gpu)?);
            Some(self.had(session, card, on).lag(card.floor))
        });
        lags.max().unwrap_or_default()
    }

    /// Least virtual time of the other sessions on a card: of payers and of waiters for this card alone. If
    /// there are none, of waiting gangs.
    fn least_beside(&self, id: SessionId, gpu: GpuId, card: &Card) -> Option<Virtual> {
        let line = || {
            let others = card.index.queue.iter().filter(|&&(_, other)| other != id);
            others.filter(|&&(_, other)| self.is_admissible(other))
        };
        let is_alone = |&&(_, other): &&(Turn, SessionId)| self.turn_cards(other).len() < 2;
        let waits = line().find(is_alone).map(|(turn, _)| turn.had);
        let pays = card.index.payers().filter(|&other| other != id).filter_map(|other| {
            let session = self.sessions.get(other)?;
            Some(self.had(session, card, session.cards.get(gpu)?))
        });
        let least = waits.into_iter().chain(pays).min();
        least.or_else(|| line().next().map(|(turn, _)| turn.had))
    }

    /// Largest virtual time by which a session may be behind a card's floor.
    fn credit(&self, id: SessionId) -> Virtual {
        let share = self.sessions.get(id).map(|session| session.share).unwrap_or_default();
        let quantum = self.quantum(id, self.expected_move(id));
        share.virtual_time(part(quantum, self.config.credit))
    }

    /// Returns a card on which a holder whose quantum is over releases the lock for the first waiter.
    pub(crate) fn makes_way(&self, id: SessionId) -> Option<GpuId> {
        let mut cards = self.turn_cards(id).and(self.wanted).into_iter();
        cards.find(|&gpu| self.first_on(gpu).is_none_or(|first| self.yields_to(id, first, gpu)))
    }

    /// Whether a holder whose quantum is over releases the lock for a waiter on a card.
    pub(crate) fn yields_to(&self, id: SessionId, first: SessionId, gpu: GpuId) -> bool {
        let (holder, waiter) = (self.sessions.get(id), self.sessions.get(first));
        let (Some(holder), Some(waiter), Some(card)) = (holder, waiter, self.cards.get(gpu)) else {
            return true;
        };
        // Charge that the holder will have added by the end of its drain.
        let enough = card.expected_drain() + Nanos(self.quantum(id, Nanos::ZERO).0 / 2);
        waiter.urgent || self.lag(first) - self.lag(id) < distance(holder.share, enough)
    }

    /// Returns the first session in the order of turns that waits for a turn on a card.
    pub(crate) fn first_on(&self, gpu: GpuId) -> Option<SessionId> {
        let mut line = self.admissible(self.tied(gpu.into()));
        line.find(|&first| self.turn_cards(first).contains(gpu))
    }

    /// Whether a waiter goes before or level with a holder in an early switch. Class decides first, then the
    /// distance of virtual time from the floors.
    pub(crate) fn is_behind(&self, waiter: SessionId, holder: SessionId) -> bool {
        self.standing_in_line(waiter) <= self.standing_in_line(holder)
    }

    /// Class of a session and its distance from the floors in virtual time: the sort key of early switches.
    pub(crate) fn standing_in_line(&self, id: SessionId) -> (Option<Class>, i128) {
        let class = self.sessions.get(id).map(|session| session.share.class);
        (class, self.lag(id))
    }
}

impl Core {
    /// Raises the floor of a card and returns it. The floor stays while processes of the last daemon are
    /// about to return.
    pub(crate) fn raise_floor(&mut self, gpu: GpuId) -> Virtual {
        let floor = self.view.floor(self.view.now, gpu);
        if let Some(card) = self.view.cards.get_mut(gpu)
            && !self.returning.contains(gpu)
        {
            card.floor = floor;
        }
        floor
    }

    /// Returns how far a session's virtual time is beyond the floor of each card, for the next daemon. The
    /// unit is nanoseconds of a session of weight 100 and normal priority.
    ///
    /// A card on which the session takes no turns is left out. A session that sleeps behind the floor counts
    /// as level with it: the floor passes it again.
    #[must_use]
    pub fn leads(&self, now: Nanos, id: SessionId) -> Vec<(GpuId, i64)> {
        let Some(session) = self.view.sessions.get(id) else {
            return Vec::new();
        };
        let now = now.max(self.view.now);
        let lead = |(gpu, card): (GpuId, &Card)| {
            let returning = self.returning.contains(gpu);
            let (had, counts) = match session.cards.get(gpu) {
                Some(on) => (on.had?.plus(owed(now, session, card, on)), on.listed.shares()),
                None => (*session.resumes_at.get(gpu)?, returning),
            };
            let floor = match returning {
                true => card.floor,
                false if session.is_limited() || self.view.in_turns.contains(gpu) => {
                    self.view.floor(now, gpu)
                }
                false => return None,
            };
            let lead = had.lead(floor);
            Some((gpu, if counts { lead } else { lead.max(0) }))
        };
        self.view.cards.iter().filter_map(lead).collect()
    }

    /// Virtual time at which a session begins on a card: the least of the other sessions there. The card's
    /// floor would be too low where a gang, or a waiter for memory that does not come back, keeps it down.
    fn level(&mut self, id: SessionId, gpu: GpuId) -> Virtual {
        let floor = self.raise_floor(gpu);
        let held_down = |card: &&Card| card.index.has_gangs() || self.view.absent(gpu) != Absent::NONE;
        let card = self.view.cards.get(gpu).filter(held_down);
        let beside = card.and_then(|card| self.view.least_beside(id, gpu, card));
        beside.unwrap_or(floor).max(floor)
    }

    /// Raises a gang's virtual time before its turn, on cards where it could not run because another card
    /// held it up. Otherwise its lead there would keep other sessions off the card for as long.
    pub(crate) fn forgive(&mut self, id: SessionId) {
        let cards = self.view.turn_cards(id);
        if cards.len() < 2 {
            return;
        }
        let leads = self.view.cards.among(cards).filter_map(|(gpu, card)| {
            let session = self.view.sessions.get(id)?;
            let least = self.view.least_beside(id, gpu, card)?;
            Some((gpu, session.cards.get(gpu)?.standing().lag(least)))
        });
        let leads: ByGpu<i128> = leads.collect();
        let most = leads.values().copied().max();
        for (gpu, lead) in leads.iter() {
            if Some(*lead) < most {
                self.lift(id, gpu);
            }
        }
    }

    /// Raises the virtual time of a session that joins the waiters and holders of a card. Its lead over the
    /// others is at most its credit; a new session starts level.
    pub(crate) fn lift(&mut self, id: SessionId, gpu: GpuId) {
        let had = self.view.sessions.get(id).and_then(|session| Some(session.cards.get(gpu)?.had));
        let returning = self.view.cards.get(gpu).filter(|_| self.returning.contains(gpu));
        let level = match returning.filter(|_| had != Some(None)) {
            Some(card) => card.floor,
            None => self.level(id, gpu),
        };
        let lifted = match had {
            Some(Some(had)) if had < level => had.max(level.minus(self.view.credit(id))),
            Some(None) => level,
            _ => return,
        };
        if let Some(on) = self.view.sessions.get_mut(id).and_then(|session| session.cards.get_mut(gpu)) {
            on.had = Some(lifted);
        }
    }

    /// Sets the virtual time of all sessions on a card to the card's floor, when turns begin there. While
    /// processes of the last daemon are about to return, turns go on instead, and all keep their distances.
    pub(crate) fn start_level(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        let (floor, members) = (card.floor, card.index.members.clone());
        for id in members {
            self.charge_so_far(id);
            if let Some(on) = self.view.sessions.get_mut(id).and_then(|session| session.cards.get_mut(gpu))
                && !self.returning.contains(gpu)
            {
                (on.had, on.behind) = (Some(floor), None);
            }
            self.recount(id);
        }
    }

    /// Charges a session for its present turns so far, at its present weight.
    pub(crate) fn charge_so_far(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let share = session.share;
        for (gpu, on) in session.cards.iter_mut() {
            if let (Some(entered), Some(card)) = (on.entered, self.view.cards.get_mut(gpu)) {
                let (charged, entered) = card.charge.pay_so_far(self.view.now, entered);
                on.pay(charged, share);
                on.entered = Some(entered);
            }
        }
    }

    /// Asks a holder for its lock on behalf of the first waiter on a card. Until its next turn the holder is
    /// queued behind that waiter.
    pub(crate) fn make_way(&mut self, id: SessionId, gpu: GpuId) {
        let first = self.view.first_on(gpu).and_then(|first| self.view.sessions.get(first));
        let standing = first.and_then(|first| Some(first.cards.get(gpu)?.standing()));
        let holder = self.view.sessions.get_mut(id).and_then(|holder| holder.cards.get_mut(gpu));
        if let (Some(standing), Some(on)) = (standing, holder) {
            on.behind = Some(standing);
        }
        self.begin_drop(id);
    }

    /// Clears the queue positions behind other waiters that a session got when it last released the lock.
    pub(crate) fn stand_up(&mut self, id: SessionId) {
        let cards = self.view.sessions.get_mut(id).map(|session| session.cards.values_mut());
        cards.into_iter().flatten().for_each(|on| on.behind = None);
    }

    /// Starts another quantum for a holder, which ends by the `limit` of a backfilled turn.
    pub(crate) fn renew(&mut self, id: SessionId, limit: Option<Nanos>) {
        let clock = self.view.clock(id, Nanos::ZERO, limit);
        if let Some(session) = self.view.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock = clock;
        }
        // Gangs wait longer for this holder than expected, which leaves others more time on their other cards.
        for gpu in self.view.turn_cards(id) {
            if self.view.cards.get(gpu).is_some_and(|card| !card.index.gangs.is_empty()) {
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }
}

/// Virtual time that a session gains by the charge of its present turn on a card.
fn owed(now: Nanos, session: &Session, card: &Card, on: &OnCard) -> Virtual {
    let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(now, entered));
    session.share.virtual_time(owed)
}

/// Virtual time that a session of this share gains in `real` time, as a signed number.
fn distance(share: Share, real: Nanos) -> i128 {
    share.virtual_time(real).lag(Virtual::default())
}

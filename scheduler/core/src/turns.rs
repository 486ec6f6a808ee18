//! Order of turns by weighted virtual time.
//!
//! A session has a virtual time on each card: the time that it was charged for turns there ÷ its weight.
//! Within a class, the waiter with the least virtual time goes next. Classes go in their order, and a class
//! that a higher one passes over is owed a small share of the time.
//!
//! ```text
//!              floor: the least of those who wait or hold
//!                │         ┌ waits: its time stands still
//!   ─────────────┼─────────●───────────────○────────────▶ virtual time
//!     ▲          │                         └ holds: its time grows with the card's clock ÷ holders ÷ weight
//!     └ slept: wakes half a quantum before the floor at best
//! ```
//!
//! A session on several cards (a gang) is ordered by the greatest of its distances from the floors, so its
//! place is the same on each of them. At the end of a quantum, a holder goes on only if the first waiter's
//! virtual time exceeds its own by more than half a quantum. While the first waiter is a gang that waits for
//! another card as well, the card is lent, to the holder or to sessions behind the gang (lending.rs). A
//! waiting gang keeps the floors of all its cards down, so that it becomes first at some time. Before its
//! turn it gives up the lead that waiting for another card gave it. A new session begins at the least virtual
//! time of the others.
//!
//! **Bound.** For a fixed set of sessions of one class that always have work, session i waits at most Σ over
//! j≠i of [(wⱼ/wᵢ)(qᵢ+sᵢ) + (3/2)qⱼ + sⱼ], plus the switch budget. Here q is the quantum, s the cost of a
//! switch ([`Card::switch_cost`]) and w the weight. The three terms: j catches up with i, ends its present
//! quantum, and may be renewed half a quantum early. A class that is passed over waits (q+s)/trickle more. A
//! gang also waits for the drain of the borrowers of its cards, and for the rest of a borrower's turn that
//! goes before it. A session that waits for memory of stuck or absent processes (grants.rs) has no bound.

use std::collections::BTreeSet;

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::few::ByGpu;
use crate::gpu::Card;
use crate::gpu_set::GpuSet;
use crate::session::Session;
use crate::session::lock::{Lock, Ticket, Turn};
use crate::session::on_card::OnCard;
use crate::session::share::{Class, Share, Virtual, part};

/// Sort key in the order over several cards: class, distance from the floor, ticket, session.
type Order = (Class, i128, Ticket, SessionId);

impl Core {
    /// Returns the waiting sessions on `cards` that may be granted a turn, in order.
    pub(crate) fn in_line(&self, cards: GpuSet) -> impl Iterator<Item = SessionId> {
        let mut here = cards.into_iter();
        let (first, second) = (here.next(), here.next());
        let one = first.filter(|_| second.is_none());
        let one = one.and_then(|gpu| Some((gpu, self.cards.get(gpu)?)));
        let one = one.into_iter().flat_map(|(gpu, card)| {
            let due = self.due(gpu, card);
            let rest = card.census.queue.iter().map(|&(_, id)| id);
            due.into_iter().chain(rest.filter(move |id| Some(*id) != due))
        });
        let many = second.map(|_| self.in_common_line(cards));
        one.chain(many.into_iter().flatten())
    }

    /// Returns the queued sessions of several cards, in one common order.
    fn in_common_line(&self, cards: GpuSet) -> Vec<SessionId> {
        let here = || self.cards.among(cards);
        let due: BTreeSet<SessionId> = here().filter_map(|(gpu, card)| self.due(gpu, card)).collect();
        let waiters = here().flat_map(|(_, card)| &card.census.queue);
        let waiters = waiters.map(|&(turn, id)| (!due.contains(&id), self.order(turn, id)));
        let waiters: BTreeSet<(bool, Order)> = waiters.collect();
        let mut seen = BTreeSet::new();
        let ids = waiters.into_iter().map(|(_, (.., id))| id);
        ids.filter(|id| seen.insert(*id)).collect()
    }

    fn order(&self, turn: Turn, id: SessionId) -> Order {
        (turn.class, self.lag(id), turn.ticket, id)
    }

    /// Raises the floor of a class on a card to the least virtual time of its holders and waiters.
    pub(crate) fn raise_floor(&mut self, gpu: GpuId, class: Class) -> Virtual {
        let Some(card) = self.cards.get(gpu) else {
            return Virtual::default();
        };
        let waits = card.census.first_of(class).map(|(turn, _)| turn.had);
        let pays = card.census.first_payers(class).filter_map(|id| {
            let session = self.sessions.get(id)?;
            Some(self.had(session, card, session.cards.get(gpu)?))
        });
        let least = waits.into_iter().chain(pays).min();
        let floor = card.floors[class as usize].max(least.unwrap_or_default());
        if let Some(card) = self.cards.get_mut(gpu) {
            card.floors[class as usize] = floor;
        }
        floor
    }

    /// Virtual time of a session on a card, with the charge of its present turn.
    fn had(&self, session: &Session, card: &Card, on: &OnCard) -> Virtual {
        let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(self.now, entered));
        on.standing().plus(session.share.virtual_time(owed))
    }

    /// Greatest distance of a session from the floors of the cards on which it takes turns.
    fn lag(&self, id: SessionId) -> i128 {
        let Some(session) = self.sessions.get(id) else {
            return 0;
        };
        let lags = session.turn_cards(self.in_turns).into_iter().filter_map(|gpu| {
            let (card, on) = (self.cards.get(gpu)?, session.cards.get(gpu)?);
            let floor = card.floors[session.share.class as usize];
            Some(self.had(session, card, on).lag(floor))
        });
        lags.max().unwrap_or_default()
    }

    /// Virtual time at which a session begins on a card: the least of the other sessions there. The floor
    /// alone would be too low where a held-up gang, or a waiter for memory that does not come back, keeps it
    /// down.
    fn level(&mut self, id: SessionId, gpu: GpuId, class: Class) -> Virtual {
        let floor = self.raise_floor(gpu, class);
        let held_down = |card: &&Card| card.census.has_gangs() || self.is_anything_lost(gpu.into());
        let card = self.cards.get(gpu).filter(held_down);
        let beside = card.and_then(|card| self.least_beside(id, gpu, card, class));
        beside.unwrap_or(floor).max(floor)
    }

    /// Least virtual time of the other sessions of a class on a card: of payers and of waiters for this card
    /// alone, else of waiting gangs.
    fn least_beside(&self, id: SessionId, gpu: GpuId, card: &Card, class: Class) -> Option<Virtual> {
        let line = || {
            let others = card.census.in_line_of(class).filter(|&(_, other)| other != id);
            others.filter(|&(_, other)| self.is_admissible(other))
        };
        let is_alone = |&(_, other): &(Turn, SessionId)| self.turn_cards(other).len() < 2;
        let waits = line().find(is_alone).map(|(turn, _)| turn.had);
        let payers = card.census.payers(class).filter(|&other| other != id);
        let pays = payers.filter_map(|other| {
            let session = self.sessions.get(other)?;
            Some(self.had(session, card, session.cards.get(gpu)?))
        });
        let least = waits.into_iter().chain(pays).min();
        least.or_else(|| line().next().map(|(turn, _)| turn.had))
    }

    /// Raises a gang's virtual time before its turn, on cards where it could not run because another card
    /// held it up. Otherwise its lead there would keep other sessions off the card for as long.
    pub(crate) fn forgive(&mut self, id: SessionId) {
        let cards = self.turn_cards(id);
        if cards.len() < 2 {
            return;
        }
        let leads = self.cards.among(cards).filter_map(|(gpu, card)| {
            let session = self.sessions.get(id)?;
            let least = self.least_beside(id, gpu, card, session.share.class)?;
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

    /// Raises the virtual time of a session that joins the waiters and holders of a card. It may be ahead of
    /// the others by its credit at most; a new one starts level.
    pub(crate) fn lift(&mut self, id: SessionId, gpu: GpuId) {
        let Some(share) = self.sessions.get(id).map(|session| session.share) else {
            return;
        };
        let level = self.level(id, gpu, share.class);
        let had = self.on_card(id, gpu).map(|on| on.had);
        let lifted = match had {
            Some(Some(had)) if had < level => {
                let quantum = self.quantum(id, self.expected_move(id));
                let credit = share.virtual_time(part(quantum, self.config.credit));
                had.max(level.minus(credit))
            }
            Some(None) => level,
            _ => return,
        };
        if let Some(on) = self.sessions.get_mut(id).and_then(|session| session.cards.get_mut(gpu)) {
            on.had = Some(lifted);
        }
    }

    fn on_card(&self, id: SessionId, gpu: GpuId) -> Option<&OnCard> {
        self.sessions.get(id)?.cards.get(gpu)
    }

    /// Resets the virtual times of a session whose class changed, so that it starts level in the new class.
    pub(crate) fn start_anew(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        for on in session.cards.values_mut() {
            (on.had, on.behind) = (None, Virtual::default());
        }
        let cards = self.turn_cards(id);
        cards.into_iter().for_each(|gpu| self.lift(id, gpu));
    }

    /// Sets all sessions on a card to the floors of their classes, when turns begin there.
    pub(crate) fn start_level(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get(gpu) else { return };
        let (floors, members) = (card.floors, card.census.members.clone());
        for id in members {
            self.charge_so_far(id);
            if let Some(session) = self.sessions.get_mut(id) {
                let floor = floors[session.share.class as usize];
                if let Some(on) = session.cards.get_mut(gpu) {
                    (on.had, on.behind) = (Some(floor), Virtual::default());
                }
            }
            self.recount(id);
        }
    }

    /// Charges a session for its present turns so far, at its present weight.
    pub(crate) fn charge_so_far(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let share = session.share;
        for (gpu, on) in session.cards.iter_mut() {
            if let (Some(entered), Some(card)) = (on.entered, self.cards.get_mut(gpu)) {
                let (charged, entered) = card.charge.pay_so_far(self.now, entered);
                on.pay(charged, share);
                on.entered = Some(entered);
            }
        }
    }

    /// Returns a card on which a holder whose quantum is over lets go for the first waiter.
    pub(crate) fn makes_way(&self, id: SessionId) -> Option<GpuId> {
        let mut cards = self.turn_cards(id).and(self.wanted).into_iter();
        cards.find(|&gpu| self.makes_way_on(id, gpu))
    }

    fn makes_way_on(&self, id: SessionId, gpu: GpuId) -> bool {
        self.first_on(gpu).is_none_or(|first| self.yields_to(id, first, gpu))
    }

    /// Whether a holder whose quantum is over lets go for a waiter on a card.
    pub(crate) fn yields_to(&self, id: SessionId, first: SessionId, gpu: GpuId) -> bool {
        let Some(holder) = self.sessions.get(id) else {
            return true;
        };
        let Some(waiter) = self.sessions.get(first) else {
            return true;
        };
        let due = self.cards.get(gpu).and_then(|card| self.due(gpu, card));
        if waiter.share.class < holder.share.class || due == Some(first) {
            return true;
        }
        if waiter.share.class > holder.share.class {
            return false;
        }
        let Some(card) = self.cards.get(gpu) else {
            return true;
        };
        // Charge that the holder will have added by the end of its drain.
        let drain = card.expected_drain();
        let quantum = self.quantum(id, Nanos::ZERO);
        let enough = drain + Nanos(quantum.0 / 2);
        self.lag(first) - self.lag(id) < distance(holder.share, enough)
    }

    /// Returns the first waiter in line that takes turns on a card.
    pub(crate) fn first_on(&self, gpu: GpuId) -> Option<SessionId> {
        let mut line = self.admissible(self.tied(gpu));
        line.find(|&first| self.turn_cards(first).contains(gpu))
    }

    /// Starts the drop of a holder for the first waiter on a card. If both are of one class, the holder
    /// queues behind that waiter.
    pub(crate) fn make_way(&mut self, id: SessionId, gpu: GpuId) {
        let first = self.first_on(gpu).and_then(|first| self.sessions.get(first));
        let standing = first.and_then(|first| Some((first.share.class, first.cards.get(gpu)?.standing())));
        if let (Some((class, standing)), Some(holder)) = (standing, self.sessions.get_mut(id))
            && holder.share.class == class
            && let Some(on) = holder.cards.get_mut(gpu)
        {
            on.behind = standing;
        }
        self.begin_drop(id);
    }

    /// Whether a waiter goes before or level with a holder: by class, then by distance from the floors.
    pub(crate) fn is_behind(&self, waiter: SessionId, holder: SessionId) -> bool {
        self.standing_in_line(waiter) <= self.standing_in_line(holder)
    }

    /// Class of a session and its distance from the floors, which order it in line, apart from the ticket.
    pub(crate) fn standing_in_line(&self, id: SessionId) -> (Option<Class>, i128) {
        let class = self.sessions.get(id).map(|session| session.share.class);
        (class, self.lag(id))
    }

    /// Clears the positions behind others that a session took when it last made way.
    pub(crate) fn stand_up(&mut self, id: SessionId) {
        let cards = self.sessions.get_mut(id).map(|session| session.cards.values_mut());
        cards.into_iter().flatten().for_each(|on| on.behind = Virtual::default());
    }

    /// Starts another quantum for a holder.
    pub(crate) fn renew(&mut self, id: SessionId) {
        let clock = self.clock(id, Nanos::ZERO);
        if let Some(session) = self.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock = clock;
        }
        self.keeps_gangs(id);
    }

    /// Marks a holder's cards for another look if gangs wait there. Those wait longer for the holder than
    /// expected, so their other cards can be lent.
    pub(crate) fn keeps_gangs(&mut self, id: SessionId) {
        for gpu in self.turn_cards(id) {
            let ties = self.cards.get(gpu).is_some_and(|card| !card.census.gangs.is_empty());
            if ties {
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }
}

/// Virtual time that a session gains in `real` time, as a distance.
fn distance(share: Share, real: Nanos) -> i128 {
    share.virtual_time(real).lag(Virtual::default())
}

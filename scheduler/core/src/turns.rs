//! Whose turn it is: weighted virtual time.
//!
//! A session has a virtual time on each card: what it was charged for turns there ÷ its weight. Of a class,
//! the waiter with the least goes next; classes come one after the other, and one that is passed over is owed
//! a trickle.
//!
//! ```text
//!              floor: the least of those who wait or hold
//!                │         ┌ waits: its time stands still
//!   ─────────────┼─────────●───────────────○────────────▶ virtual time
//!     ▲          │                         └ holds: its time grows with the card's clock ÷ holders ÷ weight
//!     └ slept: wakes half a quantum before the floor at best
//! ```
//!
//! A session on several cards waits with the greatest of its distances from the floors, so that its order is
//! the same on each of them. At the end of a quantum a holder goes on if the first in line is more than half
//! a quantum ahead of it, else it lets go. Where the first in line is a gang that waits for another card in
//! any case, it goes on until then, or those behind the gang have the card in turns (lending.rs). Where it
//! waits, a gang keeps the floors of all its cards down, so that it is first some time; before its turn it
//! gives up what another card kept it from, and whoever is new begins level with the others.
//!
//! **Bound.** For a fixed set of sessions of one class that always have work, session i waits at most Σ over
//! j≠i of [(wⱼ/wᵢ)(qᵢ+sᵢ) + (3/2)qⱼ + sⱼ], plus what the switch budget holds: each j catches up with what i
//! had more, ends the quantum that it is in, and may be renewed half a quantum early. A class that is passed
//! over waits (q+s)/trickle more. q is the quantum and s what a switch costs, as [`Card::switch_cost`] says,
//! `switch_cost` of the configuration included. A gang waits for the drain of those to whom its cards were
//! lent as well, and for the rest of such a turn where somebody wakes on one of its cards who goes before it.
//! Who waits for memory that does not come back (grants.rs) has no bound.

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

/// A place in the order over several cards: class, distance from the floor, who asked first.
type Order = (Class, i128, Ticket, SessionId);

impl Core {
    /// The waiting sessions on some cards that may be granted something, in order.
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

    /// The same over several cards, of which each has its own order.
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

    /// Finds the floor of a class on a card anew.
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

    /// A session's virtual time on a card by now.
    fn had(&self, session: &Session, card: &Card, on: &OnCard) -> Virtual {
        let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(self.now, entered));
        on.standing().plus(session.share.virtual_time(owed))
    }

    /// How far a session is from the floors of the cards that it takes turns on: the greatest distance.
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

    /// Where a session begins on a card: at the least that anybody else has had there. A gang that another
    /// card holds up keeps the floor down, and so does who waits for memory that does not come back: whoever
    /// began there would be far behind all others.
    fn level(&mut self, id: SessionId, gpu: GpuId, class: Class) -> Virtual {
        let floor = self.raise_floor(gpu, class);
        let held_down = |card: &&Card| card.census.has_gangs() || self.is_anything_lost(gpu.into());
        let card = self.cards.get(gpu).filter(held_down);
        let beside = card.and_then(|card| self.least_beside(id, gpu, card, class));
        beside.unwrap_or(floor).max(floor)
    }

    /// The least that anybody else of a class has had on a card: of those who have their turn and of those
    /// who wait for this card alone, else of the gangs that wait.
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

    /// Before its turn a gang gives up what it could not have had of a card, as another one holds it up: it
    /// would keep everybody else from that card for as long some day.
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

    /// A session becomes one of those who share a card's time: it may be ahead of the others by its credit,
    /// and no more. A new one starts level.
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

    /// A session of another class starts level there.
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

    /// Turns begin on a card: everybody starts level.
    pub(crate) fn start_level(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get(gpu) else { return };
        let (floors, members) = (card.floors, card.census.members.clone());
        for id in members {
            self.settle_charges(id);
            if let Some(session) = self.sessions.get_mut(id) {
                let floor = floors[session.share.class as usize];
                if let Some(on) = session.cards.get_mut(gpu) {
                    (on.had, on.behind) = (Some(floor), Virtual::default());
                }
            }
            self.recount(id);
        }
    }

    /// A session pays what it owes by now, at its present weight.
    pub(crate) fn settle_charges(&mut self, id: SessionId) {
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

    /// The card on which a holder whose quantum is over lets go for the first in line.
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
        // What it will have been charged when it has let go.
        let drain = card.expected_drain();
        let quantum = self.quantum(id, Nanos::ZERO);
        let enough = drain + Nanos(quantum.0 / 2);
        self.lag(first) - self.lag(id) < distance(holder.share, enough)
    }

    /// The first in line that takes turns on a card.
    pub(crate) fn first_on(&self, gpu: GpuId) -> Option<SessionId> {
        let mut line = self.admissible(self.tied(gpu));
        line.find(|&first| self.turn_cards(first).contains(gpu))
    }

    /// A holder lets go for the first in line on a card. It stands behind that one then, if it is of its
    /// class.
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

    /// Whether a session's time is at or behind that of another, or its class before the other's.
    pub(crate) fn is_behind(&self, waiter: SessionId, holder: SessionId) -> bool {
        self.standing_in_line(waiter) <= self.standing_in_line(holder)
    }

    /// Where a session would stand in line, whoever asked first.
    pub(crate) fn standing_in_line(&self, id: SessionId) -> (Option<Class>, i128) {
        let class = self.sessions.get(id).map(|session| session.share.class);
        (class, self.lag(id))
    }

    /// A session has its turn: it made way for long enough.
    pub(crate) fn stand_up(&mut self, id: SessionId) {
        let cards = self.sessions.get_mut(id).map(|session| session.cards.values_mut());
        cards.into_iter().flatten().for_each(|on| on.behind = Virtual::default());
    }

    /// Another quantum begins.
    pub(crate) fn renew(&mut self, id: SessionId) {
        let clock = self.clock(id, Nanos::ZERO);
        if let Some(session) = self.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock = clock;
        }
        self.keeps_gangs(id);
    }

    /// A gang waits longer for a holder than it seemed, so that its other cards can be lent.
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

/// The virtual time that a session gains in `real` time, as a distance.
fn distance(share: Share, real: Nanos) -> i128 {
    share.virtual_time(real).lag(Virtual::default())
}

//! The turns that are owed to classes which are passed over: when one is due, and to whom (gpu/trickle.rs
//! counts the debt).
//!
//! The first of the lowest class that is owed a turn and its handoff goes before everybody. A gang must be
//! owed one on each of its cards where its class is passed over. Every turn is taken off the debt, owed or
//! not.

use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::core::Core;
use crate::gpu::Card;
use crate::gpu_set::GpuSet;
use crate::session::share::Class;

impl Core {
    /// The first of a class that was passed over for so long that its turn is due.
    pub(crate) fn due(&self, gpu: GpuId, card: &Card) -> Option<SessionId> {
        // Whoever is owed for longer, is of the lower class.
        [Class::Low, Class::Normal].into_iter().find_map(|class| {
            let trickle = &card.trickles[class as usize];
            let id = trickle.waits().then(|| self.first_admissible(card, class))??;
            let elsewhere = self.turn_cards(id).without(gpu.into()).into_iter();
            let mut elsewhere = elsewhere.filter_map(|other| Some((other, self.cards.get(other)?)));
            // A gang that empties one card long before it is due on another helps nobody.
            let is_due = elsewhere.all(|(other, card)| {
                let trickle = &card.trickles[class as usize];
                !trickle.waits() || trickle.pays(self.turn_cost(id, other, card))
            });
            (is_due && trickle.pays(self.turn_cost(id, gpu, card))).then_some(id)
        })
    }

    /// The first of a class: who waits for others to return, or to let go some time, would have the turns of
    /// all behind it.
    fn first_admissible(&self, card: &Card, class: Class) -> Option<SessionId> {
        let mut line = card.census.in_line_of(class).map(|(_, id)| id);
        line.find(|&id| self.is_admissible(id))
    }

    /// Whether a class was passed over on any of some cards for so long that its turn is due.
    pub(crate) fn owes_somebody(&self, cards: GpuSet) -> bool {
        let mut here = self.cards.among(cards);
        here.any(|(gpu, card)| self.due(gpu, card).is_some())
    }

    /// A turn of a session, and its handoff, as far as this card goes.
    fn turn_cost(&self, id: SessionId, gpu: GpuId, card: &Card) -> Nanos {
        let need = self.sessions.get(id).map(|session| session.sums(gpu).movable.get());
        let expected_move = card.expected_move(need.unwrap_or_default());
        card.quantum(expected_move, &self.config) + card.switch_cost(expected_move, &self.config)
    }

    /// Counts for how long classes have been passed over on a card.
    pub(crate) fn run_trickles(&mut self, gpu: GpuId) {
        let Some(card) = self.cards.get_mut(gpu) else {
            return;
        };
        for class in [Class::Normal, Class::Low] {
            let waits = card.census.is_passed_over(class);
            let trickle = &mut card.trickles[class as usize];
            if waits || trickle.waits() {
                trickle.run(self.now, waits, &self.config);
            }
        }
    }

    /// When a class that is passed over on a card is due; a gang, when it is on each of its cards.
    pub(crate) fn trickle_deadline(&self, gpu: GpuId) -> Option<Nanos> {
        let card = self.cards.get(gpu)?;
        let due = [Class::Normal, Class::Low].into_iter().filter_map(|class| {
            let waits = card.trickles[class as usize].waits();
            let id = waits.then(|| self.first_admissible(card, class))??;
            let cards = self.turn_cards(id).into_iter();
            let due = cards.filter_map(|gpu| {
                let card = self.cards.get(gpu)?;
                let cost = self.turn_cost(id, gpu, card);
                card.trickles[class as usize].due(cost, self.config.trickle)
            });
            due.max()
        });
        due.filter(|&at| at > self.now).min()
    }

    /// A session is granted a turn: its class is owed less.
    pub(crate) fn pay_trickle(&mut self, id: SessionId) {
        let Some(class) = self.sessions.get(id).map(|session| session.share.class) else {
            return;
        };
        let cards = self.turn_cards(id);
        let owed = cards.into_iter().any(|gpu| {
            let card = self.cards.get(gpu);
            card.and_then(|card| self.due(gpu, card)) == Some(id)
        });
        if let Some(session) = self.sessions.get_mut(id) {
            session.owed = owed;
        }
        for gpu in cards {
            let owes = |card: &&Card| card.trickles[class as usize].owes();
            let cost = self.cards.get(gpu).filter(owes).map(|card| self.turn_cost(id, gpu, card));
            if let (Some(card), Some(cost)) = (self.cards.get_mut(gpu), cost) {
                card.trickles[class as usize].granted(cost);
            }
        }
    }
}

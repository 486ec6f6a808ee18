//! Goals for managed memory: the way out of sessions that let go, beside the way in of the next one
//! (residency/hints.rs).

use gpushare_proto::{Bytes, GpuId};

use crate::card::Card;
use crate::events::Effect;
use crate::machine::Core;
use crate::residency::plan;
use crate::view::View;

impl View {
    /// Bytes that a card has for managed memory beside that of holders, remapped memory, and memory of processes
    /// that are dead or have not returned.
    pub(crate) fn room_for_leavers(&self, gpu: GpuId) -> Bytes {
        let Some(card) = self.cards.get(gpu) else { return Bytes::ZERO };
        let remapped = plan::claims(&self.rows(gpu)).get();
        let dead = card.residents.departed() + self.recovery.used(gpu);
        card.capacity() - card.index.held_managed() - remapped - dead
    }
}

impl Core {
    /// Returns the most movable bytes that can be on a card at once.
    #[must_use]
    pub fn capacity(&self, gpu: GpuId) -> Bytes {
        self.view.cards.get(gpu).map_or(Bytes::ZERO, Card::capacity)
    }

    /// Lifts the goals of handoffs that ended, and gives those of handoffs that began.
    pub(crate) fn place_managed(&mut self) {
        if !self.hints_due.is_empty() {
            self.give_hints();
        }
    }

    #[cold]
    #[inline(never)]
    fn give_hints(&mut self) {
        for gpu in std::mem::take(&mut self.hints_due) {
            let room = self.view.room_for_leavers(gpu);
            let Some(card) = self.view.cards.get_mut(gpu) else { continue };
            let (moves, sessions, effects) = (card.moves_memory(), &self.view.sessions, &mut self.effects);
            let managed = |id| sessions.get(id).into_iter().flat_map(move |session| session.managed(gpu));
            let left = |id| {
                let session = sessions.get(id).filter(|session| session.lock.grant().is_none());
                session.into_iter().flat_map(move |session| session.managed(gpu))
            };
            let mut goal = |client, number, bytes| {
                effects.push_back(Effect::Goal { client, gpu, number, bytes });
            };
            card.hints.lift(managed, &mut goal);
            if moves {
                card.hints.give(room, left, goal);
            }
        }
    }
}

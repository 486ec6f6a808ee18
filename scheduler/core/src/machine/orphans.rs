//! Events about memory that dead processes left on their cards.

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::machine::Core;
use crate::memory::book::Book;
use crate::memory::orphans::Orphan;
use crate::memory::sums::Sums;
use crate::view::View;

impl View {
    /// Whether memory that dead processes left counts as this session's.
    pub(crate) fn has_orphans(&self, session: SessionId) -> bool {
        self.orphans.values().any(|orphan| orphan.session == session)
    }
}

impl Core {
    /// Turns the memory books of a dead process into orphans, memory that the driver has not freed yet.
    pub(crate) fn client_ended(&mut self, client: ClientId) {
        self.departs(client, true);
        let Some((session, books)) = self.part_with(client) else {
            return;
        };
        let orphan = Orphan::new(session, books);
        let sums: Vec<(GpuId, Sums)> = orphan.sums(|gpu| self.view.assumed(gpu)).collect();
        for (gpu, sums) in sums {
            self.add_up(session, gpu, Sums::default(), sums);
        }
        self.view.orphans.insert(client, orphan);
        self.recount(session);
    }

    /// Adds memory on one more card to the orphans (memory not freed yet) of a dead process.
    pub(crate) fn add_orphan_book(&mut self, client: ClientId, gpu: GpuId, used: Bytes) {
        let assumed = self.view.assumed(gpu);
        let known = self.view.cards.contains(gpu);
        let Some(orphan) = self.view.orphans.get_mut(&client).filter(|_| known) else {
            return;
        };
        let book = Book { leased: used, ..Book::default() };
        let session = orphan.session;
        let Some(sums) = orphan.add(gpu, book, assumed) else {
            return;
        };
        self.add_up(session, gpu, Sums::default(), sums);
        self.recount(session);
    }

    /// Removes the orphans of a dead process whose memory the driver has taken back.
    pub(crate) fn remove_orphan(&mut self, client: ClientId) {
        let Some(orphan) = self.view.orphans.remove(&client) else {
            return;
        };
        let session = orphan.session;
        let sums: Vec<(GpuId, Sums)> = orphan.sums(|gpu| self.view.assumed(gpu)).collect();
        for (gpu, sums) in sums {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.residents.forget_orphan(client);
            }
            self.add_up(session, gpu, sums, Sums::default());
        }
        self.recount(session);
        self.forget_empty(session);
    }
}

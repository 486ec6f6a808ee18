//! Where remapped memory is: sums for each card, for each session on it, and of the host memory in use.

use std::collections::BTreeMap;

use gpushare_proto::admin::ResidenceView;
use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::machine::Core;
use crate::residency::facts::{Figures, Reported};
use crate::residency::plan::Row;
use crate::view::View;
use crate::view::snapshot::RemappedSnapshot;

impl View {
    /// Sums over the remapped memory on a card.
    pub(crate) fn remapped_snapshot(&self, gpu: GpuId) -> RemappedSnapshot {
        let mut sums = RemappedSnapshot::default();
        self.rows(gpu).iter().for_each(|row| self.add_row(&mut sums, gpu, row));
        sums
    }

    fn add_row(&self, sums: &mut RemappedSnapshot, gpu: GpuId, row: &Row) {
        let Figures { resident, hosted, mapped, prepared, .. } = row.figures;
        sums.resident_bytes += resident;
        sums.hosted_bytes += hosted;
        sums.mapped_bytes += mapped;
        sums.prepared_bytes += prepared;
        let process = self.cards.get(gpu).and_then(|card| card.residents.get(row.client));
        sums.moving_bytes += process.map_or(Bytes::ZERO, |process| process.transfer.rest(resident));
    }
}

impl Core {
    /// Returns the bytes of remapped memory that a process has on a card, as far as its reports are believed.
    #[must_use]
    pub fn resident_bytes(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.view.figures(client, gpu).map_or(Bytes::ZERO, |figures| figures.resident)
    }

    /// Returns the bytes of remapped memory that a process reports on a card; `None` while some of it moves.
    #[must_use]
    pub fn resting_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        let found = self.view.cards.get(gpu).and_then(|card| card.residents.get(client));
        let Some(resident) = found else { return Some(Bytes::ZERO) };
        let bytes = resident.facts.said_resident(self.view.book(client, gpu)?);
        resident.transfer.rest(bytes).is_zero().then_some(bytes)
    }

    /// Returns the remapped memory of a process on a card by its reports and goals alone; `None` if it has none.
    #[must_use]
    pub fn reported(&self, client: ClientId, gpu: GpuId) -> Option<Reported> {
        let resident = self.view.cards.get(gpu)?.residents.get(client)?;
        Some(resident.facts.reported(self.view.book(client, gpu)?))
    }

    /// Returns where the remapped memory of all sessions is, ordered by session and card.
    #[must_use]
    pub fn residences(&self) -> Vec<ResidenceView> {
        let mut sums = BTreeMap::<(SessionId, GpuId), RemappedSnapshot>::new();
        for gpu in self.view.remapped {
            for row in self.view.rows(gpu) {
                if let Some(session) = self.view.session_of(row.client) {
                    self.view.add_row(sums.entry((session, gpu)).or_default(), gpu, &row);
                }
            }
        }
        let view = |((session, gpu), sums): ((SessionId, GpuId), RemappedSnapshot)| {
            let RemappedSnapshot { resident_bytes, hosted_bytes, mapped_bytes, moving_bytes, .. } = sums;
            ResidenceView { session, gpu, resident_bytes, hosted_bytes, mapped_bytes, moving_bytes }
        };
        sums.into_iter().map(view).collect()
    }

    /// Returns the bytes of host memory in which all processes say that they have remapped memory, or have prepared room
    /// for it, and those in which the driver keeps frozen processes. Copies that several processes share count for each
    /// of them.
    #[must_use]
    pub fn host_bytes(&self) -> Bytes {
        let rows = self.view.remapped.into_iter().flat_map(|gpu| self.view.rows(gpu));
        let remapped: Bytes = rows.map(|row| row.figures.reported + row.figures.prepared).sum();
        remapped + self.view.host.frozen()
    }

    /// Returns the bytes of host memory that processes have mapped at addresses of remapped memory. The system does not
    /// charge them to any control group.
    #[must_use]
    pub fn mapped_bytes(&self) -> Bytes {
        let rows = self.view.remapped.into_iter().flat_map(|gpu| self.view.rows(gpu));
        rows.map(|row| row.figures.mapped).sum()
    }
}

//! Memory figures of a session, for requests from outside its pages. They follow the rules of the figures in
//! the pages.
//!
//! ```text
//!   total   min(quota, card)                     never changes while the session lives
//!   used    bytes of the session's own processes
//!   free    min(total, ceiling) − used
//! ```

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::session::Session;

/// Memory figures of a session on one card, whether or not the session ever used the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// Identifier of the card.
    pub gpu: GpuId,
    /// Size of the card as the session sees it.
    pub total: Bytes,
    /// Bytes that the session uses.
    pub used: Bytes,
    /// Bytes that the session may still allocate.
    pub free: Bytes,
    /// Processes of the session on the card, with the bytes that each uses.
    pub processes: Vec<(ClientId, Bytes)>,
}

impl Core {
    /// Memory figures of a session on each card; `None` if there is no such session.
    #[must_use]
    pub fn memory_figures(&self, id: SessionId) -> Option<Vec<MemoryFigures>> {
        let session = self.sessions.get(id)?;
        let figures = |(gpu, card): (GpuId, &Card)| {
            let total = session.quota.on(gpu).min(card.total);
            let used = session.sums(gpu).used.get();
            let ceiling = present_ceiling(session, gpu, card);
            MemoryFigures {
                gpu,
                total,
                used,
                free: total.min(ceiling) - used,
                processes: session.books(gpu).map(|(client, book)| (client, book.used())).collect(),
            }
        };
        Some(self.cards.iter().map(figures).collect())
    }

    /// Whether a process claimed the lock of the last daemon without proof, and was granted nothing since.
    #[must_use]
    pub fn is_unproven(&self, client: ClientId) -> bool {
        self.sessions.client(client).is_some_and(|client| client.unproven)
    }

    /// Bytes of a process on a card that never move, as it reported; `None` if it did not attach the card.
    #[must_use]
    pub fn fixed_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.book(client, gpu)?.fixed())
    }

    /// Bytes that a process uses on a card, as last seen; `None` if it did not attach the card.
    #[must_use]
    pub fn used_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.book(client, gpu)?.used())
    }
}

/// Most bytes that a session may use on a card at present.
///
/// The result is the session's ceiling, within the managed limit beside the other sessions. Driver memory
/// that is charged to the quota is subtracted.
pub(crate) fn present_ceiling(session: &Session, gpu: GpuId, card: &Card) -> Bytes {
    let sums = session.sums(gpu);
    if !session.may_grow() {
        return sums.used.get();
    }
    let fixed = sums.fixed.get();
    let left = match card.managed_limit() {
        Bytes::MAX => Bytes::MAX,
        limit => limit - (card.needed() - sums.movable.get()) + fixed,
    };
    let ceiling = card.ceiling(fixed, session.quota.may_oversubscribe());
    let reach = ceiling.min(card.managed_limit() + fixed).min(left);
    match sums.charged.get() {
        Bytes::ZERO => reach,
        charged => reach.min(session.quota.on(gpu) - charged),
    }
}

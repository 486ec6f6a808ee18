//! What a session is told about its memory when it asks from outside its pages: the same figures, by the same rules,
//! as its processes read in theirs.
//!
//! ```text
//!   total   its quota, or the card where that is less    never changes while the session lives
//!   used    what its own processes have
//!   free    what it may still allocate: the rest of total, within its ceiling
//! ```

use gpushare_proto::{Bytes, ClientId, GpuId, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::session::Session;

/// A session on one card, whether or not it was ever there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// The card.
    pub gpu: GpuId,
    /// How large the card is to the session.
    pub total: Bytes,
    /// What the session uses.
    pub used: Bytes,
    /// What it may still allocate.
    pub free: Bytes,
    /// Its processes that are on the card, with what each uses.
    pub processes: Vec<(ClientId, Bytes)>,
}

impl Core {
    /// The session's account on each card; `None` for a session that is not.
    #[must_use]
    pub fn memory_figures(&self, id: SessionId) -> Option<Vec<MemoryFigures>> {
        let session = self.sessions.get(id)?;
        let figures = |(gpu, card): (GpuId, &Card)| {
            let total = session.limit(gpu).min(card.total);
            let used = session.sums(gpu).used.get();
            let ceiling = backed(session, gpu, card);
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

    /// Whether a process only said that it held the lock of the last daemon, and got nothing of this one since.
    #[must_use]
    pub fn is_unproven(&self, client: ClientId) -> bool {
        self.sessions.client(client).is_some_and(|client| client.unproven)
    }

    /// How many of a process's bytes on a card never move, as far as it told; `None` for one that is not there.
    #[must_use]
    pub fn fixed_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.book(client, gpu)?.fixed())
    }

    /// What a process uses of a card, as last seen; `None` for one that is not there.
    #[must_use]
    pub fn used_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.book(client, gpu)?.used())
    }
}

/// The most that a session may use on a card at present, quota or not: what one session may, and no more than the
/// others leave of what all together may. What the driver keeps for it at the cost of its quota is not there for it either.
pub(crate) fn backed(session: &Session, gpu: GpuId, card: &Card) -> Bytes {
    let sums = session.sums(gpu);
    if !session.may_grow() {
        return sums.used.get();
    }
    let fixed = sums.fixed.get();
    let left = match card.managed_limit() {
        Bytes::MAX => Bytes::MAX,
        limit => limit - (card.needed() - sums.movable.get()) + fixed,
    };
    let ceiling = card.ceiling(fixed, session.oversubscribe);
    let reach = ceiling.min(card.managed_limit() + fixed).min(left);
    match sums.charged.get() {
        Bytes::ZERO => reach,
        charged => reach.min(session.limit(gpu) - charged),
    }
}

//! Invariant of admission (`docs/design/residency.md`, "Host memory"), checked after every event that leases memory.
//!
//! ```text
//!   Σ max(0, leased + rounding − card) + slack ≤ budget      over the cards; slack: a chunk, and one per process
//! ```
//!
//! A budget can shrink, and a returning process brings what it uses. So the sum is compared with what it would be
//! without the leases of this event: no lease makes it too large. Fixed memory that a process takes out of its lease
//! makes the card smaller without a lease, and is not checked here.

use std::collections::BTreeMap;

use gpushare_proto::{Bytes, ClientId, GpuId};

use super::{Broken, hold};
use crate::events::Effect;
use crate::machine::Core;
use crate::memory::book::Book;
use crate::memory::sums::Sums;
use crate::residency::CHUNK;

/// Process on a card.
type Place = (ClientId, GpuId);

/// Checker of admission.
#[derive(Clone, Debug, Default)]
pub(super) struct Admission {
    /// Fixed bytes of the processes after the event before.
    fixed: BTreeMap<Place, Bytes>,
}

/// Bytes that a process was leased by one event.
#[derive(Clone, Copy, Debug, Default)]
struct Leased {
    bytes: Bytes,
    /// Part of `bytes` that lies unused in the page.
    free: Bytes,
}

impl Admission {
    /// Checks the leases that the decision machine gave by `effects`.
    pub(super) fn after(&mut self, core: &Core, effects: &[Effect]) -> Result<(), Broken> {
        let fixed = books(core).map(|(place, book)| (place, book.fixed())).collect();
        let before = std::mem::replace(&mut self.fixed, fixed);
        let leases = leases(effects);
        if leases.is_empty() {
            return Ok(());
        }
        let without = |place: Place, book: &Book| {
            let Leased { bytes, free } = leases.get(&place).copied().unwrap_or_default();
            let was_fixed = before.get(&place).copied().unwrap_or_default();
            // Requests are for movable or for fixed memory, and the unused part is movable.
            let fixed = book.fixed() - (bytes - free).min(book.fixed() - was_fixed);
            Book { leased: book.leased - bytes, free: book.free - free, fixed, ..*book }
        };
        let over = beyond_the_cards(core, |_, book| *book);
        let without = beyond_the_cards(core, without);
        let remapping = books(core).filter(|(_, book)| book.is_remapped).count() as u64;
        let slack = Bytes(CHUNK.0.saturating_mul(remapping + 1));
        let budget = core.view.host.budget();
        let rule = "no lease grows beyond what the cards and the host memory have together";
        hold(rule, over <= without.max(budget - slack), || {
            format!(
                "{over} do not fit the cards, and {without} without the leases, of {budget} less {slack}: {effects:?}"
            )
        })
    }
}

/// Memory of all living processes.
fn books(core: &Core) -> impl Iterator<Item = (Place, &Book)> {
    let clients = core.view.sessions.values().flat_map(|session| session.clients.iter());
    clients.flat_map(|(client, process)| process.books.iter().map(move |(gpu, book)| ((client, gpu), book)))
}

/// Bytes by which leases grew.
fn leases(effects: &[Effect]) -> BTreeMap<Place, Leased> {
    let mut leases = BTreeMap::<Place, Leased>::new();
    for effect in effects {
        let (place, used, free) = match *effect {
            Effect::Lease { client, gpu, bytes, extra, .. } => ((client, gpu), bytes, extra),
            Effect::Extend { client, gpu, bytes } => ((client, gpu), Bytes::ZERO, bytes),
            _ => continue,
        };
        let leased = leases.entry(place).or_default();
        leased.bytes += used + free;
        leased.free += free;
    }
    leases
}

/// Bytes of remapped memory that the cards have no room for, with the books that `book` makes of the present ones.
fn beyond_the_cards(core: &Core, book: impl Fn(Place, &Book) -> Book) -> Bytes {
    let over = core.view.cards.iter().map(|(gpu, card)| {
        let mut sums = Sums::default();
        for (place, now) in books(core).filter(|((_, on), _)| *on == gpu) {
            sums += Sums::of(&book(place, now), card.assumed());
        }
        for orphan in core.view.orphans.values() {
            let here = orphan.sums(|_| card.assumed()).filter(|(on, _)| *on == gpu);
            here.for_each(|(_, part)| sums += part);
        }
        let fixed = sums.fixed.get() - sums.pinned.get();
        sums.remapped.get() - (card.before_fixed() - fixed)
    });
    over.sum()
}

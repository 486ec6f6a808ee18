//! Budget of the node for host memory, in which evicted bytes live.
//!
//! ```text
//!   leased on card 0 ─ what card 0 has ─┐
//!   leased on card 1 ─ what card 1 has ─┼─▶ Σ of what is over  ≤  budget − slack      before a lease grows
//!   hosted or promised, per process ────┴─▶ Σ                  ≤  budget              before a byte moves
//! ```
//!
//! While evictions wait for host memory, processes give back the slots that they have prepared.
//!
//! The slack lets at least one chunk move when everything is full. Else two moves could each wait for the
//! other's room. It contains another chunk for each process on a card, since what is leased is no whole number of
//! chunks.

use gpushare_proto::Bytes;

use crate::residency::CHUNK;
use crate::residency::facts::Figures;

/// Budget for host memory. Without one, nothing leaves a card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Host {
    budget: Bytes,
    /// Bytes that the driver keeps for frozen processes, or is about to.
    frozen: Bytes,
    /// Whether evictions wait for host memory.
    pub(crate) is_full: bool,
}

impl Host {
    /// Sets the budget: the least of the control group's limit, the free memory of the node, and the setting.
    pub(crate) fn set_budget(&mut self, bytes: Bytes) {
        self.budget = bytes;
    }

    /// Sets the bytes of frozen processes. Returns whether they changed.
    pub(crate) fn set_frozen(&mut self, bytes: Bytes) -> bool {
        std::mem::replace(&mut self.frozen, bytes) != bytes
    }

    /// Bytes of frozen processes.
    pub(crate) fn frozen(self) -> Bytes {
        self.frozen
    }

    /// Budget for evicted memory: what frozen processes leave of it.
    pub(crate) fn budget(self) -> Bytes {
        self.budget - self.frozen
    }

    /// Bytes that may be leased in all beyond what the cards have, if so many `books` are of remapped memory.
    pub(crate) fn admitted(self, books: u64) -> Bytes {
        self.budget() - Bytes(CHUNK.0.saturating_mul(books.saturating_add(1)))
    }

    /// Bytes that evictions may still bring beside `claims`, the sum of what processes have or were promised.
    pub(crate) fn room(self, claims: Bytes) -> Bytes {
        self.budget() - claims
    }
}

impl Figures {
    /// Bytes of host memory that the process has, or will have once it has followed `goal`. What leaves the card
    /// goes into prepared slots first.
    pub(crate) fn host_claim(&self, goal: Option<Bytes>) -> Bytes {
        (self.hosted + self.prepared)
            .max(self.whole - goal.map_or(self.resident, |goal| goal.min(self.resident)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promise_counts_before_the_bytes_have_moved() {
        let goal = Some(Bytes::gib(2));
        let figures = Figures { goal, ..Figures::of_used(Bytes::gib(6), Bytes::gib(5)) };
        assert_eq!(figures.host_claim(None), Bytes::gib(1));
        assert_eq!(figures.host_claim(Some(Bytes::gib(2))), Bytes::gib(4));
        assert_eq!(figures.host_claim(Some(Bytes::gib(8))), Bytes::gib(1), "a credit promises nothing");
        let copied = Figures { resident: Bytes::gib(4), hosted: Bytes::gib(3), ..figures };
        assert_eq!(copied.host_claim(copied.goal), Bytes::gib(4), "a chunk with two copies counts once");
        let mapped = Figures { mapped: Bytes::gib(1), ..figures };
        assert_eq!(mapped.host_claim(None), figures.host_claim(None), "mapped memory is hosted memory");
        let prepared = Figures { prepared: Bytes::gib(2), ..figures };
        assert_eq!(prepared.host_claim(None), Bytes::gib(3), "prepared slots count before they are used");
        assert_eq!(prepared.host_claim(Some(Bytes::gib(2))), Bytes::gib(4), "and are used first");
    }

    #[test]
    fn without_a_budget_nothing_is_admitted() {
        let mut host = Host::default();
        assert_eq!((host.admitted(1), host.room(Bytes::ZERO)), (Bytes::ZERO, Bytes::ZERO));
        host.set_budget(Bytes::gib(3));
        assert_eq!(host.admitted(3), Bytes::gib(3) - Bytes::mib(512), "each process may begin another chunk");
        assert_eq!(host.room(Bytes::gib(1)), Bytes::gib(2));
        assert_eq!(host.room(Bytes::gib(4)), Bytes::ZERO);
    }
}

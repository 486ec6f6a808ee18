//! Memory of one process on one card, as the machine books it.
//!
//! ```text
//!   leased ─┬─ free        lies unused in the process's page
//!           └─ used ─┬─ fixed     never moves: pools, arrays, graphs
//!                    └─ movable   managed memory: the working set
//!   overhead               contexts and driver memory that no allocation asked for
//! ```

use gpushare_proto::Bytes;

/// What the driver may take for a process beside what it allocated, without its counting against the quota: contexts,
/// kernels, and what ordinary libraries keep.
const ALLOWANCE: Bytes = Bytes::gib(1);

/// How many contexts of one process are believed to take room that nobody measured. What they take is missing to everybody, so
/// a process must not be able to make the card small by a number.
const MOST_CONTEXTS: u32 = 8;

/// What one process has on one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Book {
    /// Bytes of quota that the process may use without asking.
    pub(crate) leased: Bytes,
    /// Those of them that lay unused in its page when last seen.
    pub(crate) free: Bytes,
    /// Those of them that never move, as the process said: never more than is true, if it is honest.
    pub(crate) fixed: Bytes,
    /// Live contexts.
    pub(crate) contexts: u32,
    /// What its contexts and the rest of the driver's memory take, where that was measured.
    pub(crate) overhead: Option<Bytes>,
}

impl Book {
    /// Bytes allocated, as last seen.
    pub(crate) fn used(&self) -> Bytes {
        self.leased - self.free
    }

    /// Bytes that never move. Whoever claims more than was leased is believed so far.
    pub(crate) fn fixed(&self) -> Bytes {
        self.fixed.min(self.leased)
    }

    /// The most that may be managed memory: all that was leased and is not known to be something else.
    pub(crate) fn managed(&self) -> Bytes {
        self.leased - self.fixed
    }

    /// What moves in and out: the working set.
    pub(crate) fn movable(&self) -> Bytes {
        self.used() - self.fixed
    }

    /// What its contexts take beside what it allocated; `assumed` for each until measured.
    pub(crate) fn overhead(&self, assumed: Bytes) -> Bytes {
        let believed = self.contexts.min(MOST_CONTEXTS);
        let contexts = Bytes(assumed.0.saturating_mul(u64::from(believed)));
        self.overhead.unwrap_or(contexts)
    }

    /// What was measured beyond the allowance (deep stacks, large tables of modules): it counts against the quota.
    pub(crate) fn charged(&self) -> Bytes {
        self.overhead.unwrap_or_default() - ALLOWANCE
    }
}

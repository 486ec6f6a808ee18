//! Memory book: the memory of one process on one card, as the scheduler accounts it.
//!
//! ```text
//!   leased ─┬─ free        lies unused in the process's page
//!           └─ used ─┬─ fixed     never moves: pools, arrays, graphs
//!                    ├─ pinned    remapped memory that must not move now
//!                    └─ movable   managed or remapped memory: the working set
//!   rounding               remapped chunks beyond what is used: part of the working set, not of the quota
//!     scattered            its part beyond what the leased bytes can take: it counts against the quota
//!   overhead               contexts and driver memory that no allocation asked for
//! ```

use gpushare_proto::Bytes;

/// Driver memory of one process that does not count against the quota: CUDA contexts, kernels, and buffers of
/// libraries.
const ALLOWANCE: Bytes = Bytes::gib(1);
/// Bytes that stay on the card while a process is frozen (H100, driver 580).
pub(crate) const LEFT: Bytes = Bytes::mib(4);
/// Part of a remapped block by which it may be rounded up. The smallest block with memory of its own has just over 8
/// MiB, and takes granules of 2 MiB.
const ROUNDING: u64 = 4;
/// Bytes of shared blocks that may be partly free, and the multiple of a small lease.
const SHARED: (Bytes, u64) = (Bytes::mib(128), 16);
/// Largest shared block. A process keeps one that is unused, also when its lease was taken back.
const KEPT: Bytes = Bytes::mib(32);

/// Memory of one process on one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Book {
    /// Leased bytes: bytes of quota that the process may use without asking.
    pub(crate) leased: Bytes,
    /// Leased bytes that the process did not use when its shared page was last read.
    pub(crate) free: Bytes,
    /// Leased bytes that never leave the card, as the process reported. An honest process reports no more
    /// than it has.
    pub(crate) fixed: Bytes,
    /// Whether the process's movable memory is remapped: it moves by goals (residency/mod.rs), and none of it is
    /// managed.
    pub(crate) is_remapped: bool,
    /// Bytes of whole chunks of remapped memory, as the process last reported and was believed.
    pub(crate) chunks: Bytes,
    /// Remapped bytes that must not move now, as the process reported.
    pub(crate) pinned: Bytes,
    /// Whether the driver keeps all that the process has in host memory, but a few bytes.
    pub(crate) is_away: bool,
    /// Number of the process's live CUDA contexts on the card.
    pub(crate) contexts: u32,
    /// Measured bytes of the process's CUDA contexts and of other driver memory; `None` while not measured.
    pub(crate) overhead: Option<Bytes>,
}

impl Book {
    /// Allocated bytes of the process on the card, as its shared page last showed.
    pub(crate) fn used(&self) -> Bytes {
        self.leased - self.free
    }

    /// Number of bytes that never leave the card, at most the leased ones.
    pub(crate) fn fixed(&self) -> Bytes {
        self.fixed.min(self.leased)
    }

    /// Number of bytes that do not leave the card now: `fixed + pinned`.
    pub(crate) fn stays(&self) -> Bytes {
        self.fixed() + self.pinned.min(self.whole())
    }

    /// Largest number of bytes that may be managed memory: `leased − fixed`, and none of a remapping process.
    pub(crate) fn managed(&self) -> Bytes {
        if self.is_remapped { Bytes::ZERO } else { self.leased - self.fixed }
    }

    /// Largest number of bytes that may be remapped memory, pinned bytes included.
    pub(crate) fn remapped(&self) -> Bytes {
        if self.is_remapped { self.leased - self.fixed } else { Bytes::ZERO }
    }

    /// Number of allocated bytes that are remapped memory, pinned bytes included.
    pub(crate) fn remapped_used(&self) -> Bytes {
        if self.is_remapped { self.used() - self.fixed } else { Bytes::ZERO }
    }

    /// Bytes that the remapped memory takes, wherever it is: those of whole chunks, at least the used ones.
    pub(crate) fn whole(&self) -> Bytes {
        match self.is_remapped {
            true => self.remapped_used().max(self.chunks),
            false => Bytes::ZERO,
        }
    }

    /// Bytes that the remapped memory takes beyond the used ones. They count against the card, not against the quota.
    pub(crate) fn rounding(&self) -> Bytes {
        self.whole() - self.remapped_used()
    }

    /// Part of `bytes` more for which the process has chunks already, beyond those of its leased bytes.
    pub(crate) fn has_room_for(&self, bytes: Bytes) -> Bytes {
        (self.rounding() - self.with(bytes).rounding()).min(self.chunks - self.remapped())
    }

    /// Bytes that are scattered no more once `bytes` more are leased.
    pub(crate) fn gathered_by(&self, bytes: Bytes) -> Bytes {
        self.scattered() - self.with(bytes).scattered()
    }

    fn with(&self, bytes: Bytes) -> Self {
        Self { leased: self.leased + bytes, ..*self }
    }

    /// Most bytes of whole chunks that the leased bytes take: all blocks are rounded up as far as can be, and some
    /// shared ones are partly free.
    pub(crate) fn most_chunks(&self) -> Bytes {
        let leased = self.remapped();
        leased + Bytes(leased.0 / ROUNDING) + SHARED.0.min(Bytes(leased.0.saturating_mul(SHARED.1)))
    }

    /// Bytes of chunks beyond what the leased bytes take, since many shared blocks are partly free. They count against
    /// the quota, but for an unused block.
    pub(crate) fn scattered(&self) -> Bytes {
        if self.is_remapped {
            self.chunks - self.most_chunks().max(KEPT)
        } else {
            Bytes::ZERO
        }
    }

    /// Working set, the bytes that move on and off the card: `used + rounding − fixed − pinned`.
    pub(crate) fn movable(&self) -> Bytes {
        match self.is_remapped {
            true => self.whole() - self.pinned,
            false => self.used() - self.fixed,
        }
    }

    /// Number of bytes that take room on the card and do not leave it now.
    pub(crate) fn stays_here(&self) -> Bytes {
        if self.is_away { Bytes::ZERO } else { self.stays() }
    }

    /// Measured driver memory that takes room on the card.
    pub(crate) fn overhead_here(&self) -> Bytes {
        match self.is_away {
            true => LEFT,
            false => self.overhead.unwrap_or_default(),
        }
    }

    /// Whether the process claims contexts whose bytes are not measured.
    pub(crate) fn claims(&self) -> bool {
        self.overhead.is_none() && self.contexts > 0 && !self.is_away
    }

    /// Driver memory beyond the free allowance, such as deep stacks. It counts against the quota. Until it is
    /// measured, it is `assumed` for each context that the process claims.
    pub(crate) fn charged(&self, assumed: Bytes) -> Bytes {
        let claimed = || Bytes(assumed.0.saturating_mul(u64::from(self.contexts)));
        self.overhead.unwrap_or_else(claimed) - ALLOWANCE
    }
}

//! Capacity of one card, and the bytes that count against it.
//!
//! ```text
//!   total ─┬─ contexts and other driver memory
//!          ├─ headroom and spare chunks, where memory moves by goals
//!          ├─ fixed and pinned memory
//!          └─ capacity ◀── working sets: hot ones count for the mode, cold ones may leave
//! ```

use gpushare_proto::Bytes;

use crate::card::Card;
use crate::memory::sums::Sums;
use crate::residency::{clear, spare};

/// Number of unmeasured contexts for which every card has room.
const CONTEXTS: u64 = 8;

impl Card {
    /// Bytes that CUDA contexts take on the card, including those of dead processes not yet freed.
    pub(crate) fn reserve(&self) -> Bytes {
        self.index.sums.overhead.get() + self.index.claimed()
    }

    /// Number of bytes that one context takes until it is measured. A small card has room for some in any case.
    pub(crate) fn assumed(&self) -> Bytes {
        self.knobs.context_reserve.min(Bytes(self.total.0 / CONTEXTS))
    }

    /// Sum of the fixed memory (which cannot leave the card) of all sessions.
    pub(crate) fn fixed(&self) -> Bytes {
        self.index.sums.fixed.get()
    }

    /// Sum of the working sets (movable bytes) of all sessions.
    pub(crate) fn needed(&self) -> Bytes {
        self.index.sums.movable.get()
    }

    /// Sum of the managed working sets of all sessions.
    pub(crate) fn managed(&self) -> Bytes {
        self.needed() - self.index.sums.swappable.get()
    }

    /// Largest sum of movable bytes that can be on the card at once.
    pub(crate) fn capacity(&self) -> Bytes {
        self.capacity_beside(Bytes::ZERO)
    }

    /// Returns the card's capacity for a session, from which the session's own `fixed` bytes are not
    /// subtracted.
    pub(crate) fn capacity_beside(&self, fixed: Bytes) -> Bytes {
        self.before_fixed() - (self.fixed() - fixed)
    }

    /// Largest number of bytes that one session with the sums `own` may use on the card, apart from its quota: the
    /// capacity less the fixed bytes of the other sessions, and less what its own chunks are rounded up by.
    pub(crate) fn ceiling(&self, own: &Sums, oversubscribe: bool) -> Bytes {
        match oversubscribe {
            true => Bytes::MAX,
            false => self.capacity_beside(own.fixed.get()) - own.rounding.get(),
        }
    }

    /// Largest sum of bytes that can be on the card at once, before fixed memory is subtracted. Where memory moves
    /// by goals, headroom and spare chunks are no part of it, whatever the setting, nor is a shortage.
    pub(crate) fn before_fixed(&self) -> Bytes {
        let whole = self.total - self.reserve();
        match self.residents.is_empty() {
            true => self.knobs.capacity.unwrap_or(whole),
            false => {
                let capacity = self.knobs.capacity.unwrap_or(Bytes::MAX).min(whole - clear(self.total));
                capacity - self.residents.shortage()
            }
        }
    }

    /// Bytes that the card has for remapped memory, without memory of dead processes and managed memory of
    /// sessions that hold the lock.
    pub(crate) fn for_remapped(&self) -> Bytes {
        let others = self.residents.departed() + self.index.held_managed();
        self.admits_remapped() + spare(self.total) - others
    }

    /// Whether room on the card is about to become free for a holder before anybody moves memory: that of the dead, and
    /// that of other holders whose turns end.
    pub(crate) fn awaits_room(&self) -> bool {
        let turns = self.index.in_turn(true);
        self.residents.awaits_dead() || (self.takes_turns() && turns.all() - turns.stuck > 1)
    }

    /// Bytes of the card that remapped memory may take in all, as far as leases are concerned.
    pub(crate) fn admits_remapped(&self) -> Bytes {
        self.before_fixed() - (self.fixed() - self.index.sums.pinned.get())
    }

    /// Sum of the working sets that count for the mode: all but the remapped ones of sessions that do not want to
    /// run.
    pub(crate) fn hot(&self) -> Bytes {
        self.needed() - self.index.cold()
    }

    /// Whether idle sessions must keep their gates closed, since their memory may have to leave.
    pub(super) fn is_crowded(&self) -> bool {
        !self.index.cold().is_zero() && self.needed() > self.capacity()
    }

    /// Bytes left for the driver's own memory once all movable memory is off the card.
    pub(crate) fn room_left(&self) -> Bytes {
        self.total - self.reserve() - self.fixed()
    }

    /// Largest sum of managed memory of all sessions together; [`Bytes::MAX`] for no limit.
    pub(crate) fn managed_limit(&self) -> Bytes {
        self.knobs.managed_limit.unwrap_or(Bytes::MAX)
    }
}

//! Room in the control groups of the process for what the driver moves out of the cards when it freezes the process.
//! The driver takes that memory inside the process. Above the limit of a control group, the kernel kills a process
//! of the group.
//!
//! ```text
//!   needed = memory that never leaves its card by goals + a context on each card ≤ room of the tightest group
//! ```
//!
//! Remapped memory does not count: before the process parks, it has moved into host memory that is charged already.

use std::time::{Duration, Instant};

use gpushare_proto::Bytes;

use crate::memory::lease::Lease;

/// Bytes that a context takes on a card, as the daemon assumes before it has measured them.
const CONTEXT: Bytes = Bytes::mib(700);
/// Time for which room that was found is not looked for again.
const HOLDS: Duration = Duration::from_secs(1);

/// Room that a process found in its control groups when it looked beforehand.
#[derive(Debug, Default)]
pub(super) struct Found(Option<(Instant, Bytes)>);

impl Found {
    /// Returns whether the control groups lack room for `needed` bytes, by `room`. Room that was found a moment ago
    /// counts as there: a process looks again whenever it rests. Lack of room is looked at anew each time.
    pub(super) fn lacks(&mut self, needed: Bytes, room: impl FnOnce() -> Option<Bytes>) -> bool {
        let is_known = |(at, bytes): (Instant, Bytes)| needed <= bytes && at.elapsed() < HOLDS;
        if self.0.is_some_and(is_known) {
            return false;
        }
        let is_lacking = lacks(needed, room);
        self.0 = (!is_lacking).then(|| (Instant::now(), needed));
        is_lacking
    }
}

/// Returns whether the control groups lack room for `needed` bytes, by `room`, which returns `None` without a limit.
pub(super) fn lacks(needed: Bytes, room: impl FnOnce() -> Option<Bytes>) -> bool {
    !needed.is_zero() && room().is_some_and(|room| room < needed)
}

/// Returns the number of bytes that the driver moves into host memory when it freezes the process. It is an upper
/// bound for a process with at most one context on each card.
pub(super) fn needed(lease: &Lease) -> Bytes {
    let contexts = lease.devices().into_iter().map(|_| CONTEXT).sum::<Bytes>();
    lease.fixed() + contexts
}

#[cfg(test)]
mod tests {
    use gpushare_proto::page::Page;
    use gpushare_proto::{GateState, GpuId};

    use super::*;
    use crate::memory::lease::MemoryKind;

    const NEEDED: Bytes = Bytes::gib(2);

    #[test]
    fn the_driver_moves_fixed_memory_and_a_context_of_each_card() {
        let lease = Lease::default();
        assert_eq!(needed(&lease), Bytes::ZERO);
        lease.use_page(Box::leak(Box::new(Page::new(GateState::Open))));
        lease.attach(0, GpuId(3));
        lease.attach(1, GpuId(5));
        lease.add_granted(0, Bytes::gib(3), MemoryKind::Fixed);
        lease.add_granted(0, Bytes::gib(7), MemoryKind::Movable);
        lease.add_debt(1, Bytes::gib(1), MemoryKind::Fixed);
        assert_eq!(needed(&lease), Bytes::gib(4) + CONTEXT + CONTEXT);
    }

    #[test]
    fn only_less_room_than_is_needed_is_lacking() {
        assert!(lacks(NEEDED, || Some(NEEDED - Bytes(1))));
        assert!(!lacks(NEEDED, || Some(NEEDED)) && !lacks(NEEDED, || None));
        assert!(!lacks(Bytes::ZERO, || panic!("nothing is needed")));
    }

    #[test]
    fn lack_of_room_is_looked_at_anew_each_time() {
        let mut found = Found::default();
        assert!(found.lacks(NEEDED, || Some(Bytes::ZERO)));
        assert!(!found.lacks(NEEDED, || Some(NEEDED)), "there is room now");
        assert!(!found.lacks(NEEDED, || panic!("there was room a moment ago")));
        assert!(found.lacks(NEEDED + Bytes(1), || Some(NEEDED)), "more is needed");
        assert!(found.lacks(NEEDED, || Some(Bytes::ZERO)));
    }
}

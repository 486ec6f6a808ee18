//! Whether bytes may be leased: three limits, each with what is charged to it.
//!
//! ```text
//!   session's quota on the card    Σ leased of the session    recall free lease from: its processes
//!   one session's ceiling          Σ leased of the session                            its processes
//!   the card's managed limit       Σ leased and not fixed of everybody                everybody
//! ```
//!
//! To the quota is also charged what the driver keeps for the session's processes beyond an allowance; the card's capacity is
//! without it already.
//!
//! Leased counts, not used: a process takes what was leased to it without asking. So a lease that lies unused in somebody's
//! page is taken back before anybody is refused.

use gpushare_proto::Bytes;
use gpushare_proto::page::LimitKind;

use crate::memory::recalls::Kind;

/// Whose free lease counts against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The processes of the asker's session.
    Session,
    /// Everybody on the card.
    Card,
}

/// The limits that a request meets, and what is charged to them before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The session's quota.
    pub(crate) quota: Bytes,
    /// What one session may use on this card.
    pub(crate) ceiling: Bytes,
    /// What all may use on this card.
    pub(crate) managed: Bytes,
    /// Leased to the session.
    pub(crate) session_leased: Bytes,
    /// What counts against the quota besides.
    pub(crate) session_charged: Bytes,
    /// Leased to everybody and not known to be fixed.
    pub(crate) card_managed: Bytes,
    /// What the bytes that are asked for will be.
    pub(crate) kind: Kind,
}

/// A limit that a request would pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) by: LimitKind,
    pub(crate) limit: Bytes,
    /// By how much.
    pub(crate) bytes: Bytes,
}

/// What meets a process that asks for memory on a card that it did not attach.
pub(crate) const NOT_ATTACHED: Excess =
    Excess { by: LimitKind::Session, limit: Bytes::ZERO, bytes: Bytes::MAX };

impl Excess {
    pub(crate) fn scope(&self) -> Scope {
        match self.by {
            LimitKind::Session | LimitKind::Capacity => Scope::Session,
            LimitKind::ManagedLimit => Scope::Card,
        }
    }
}

impl Limits {
    /// The first limit that `bytes` more would pass.
    pub(crate) fn excess(&self, bytes: Bytes) -> Option<Excess> {
        let managed = match self.kind {
            Kind::Movable => bytes,
            Kind::Fixed => Bytes::ZERO,
        };
        let session = self.session_leased + self.session_charged;
        [
            (LimitKind::Session, self.quota, session, bytes),
            (LimitKind::Capacity, self.ceiling, self.session_leased, bytes),
            (LimitKind::ManagedLimit, self.managed, self.card_managed, managed),
        ]
        .into_iter()
        .filter(|(.., bytes)| !bytes.is_zero())
        .find_map(|(by, limit, leased, bytes)| {
            let over = match leased.checked_add(bytes) {
                Some(sum) => sum - limit,
                None => Bytes::MAX,
            };
            (!over.is_zero()).then_some(Excess { by, limit, bytes: over })
        })
    }

    /// What may be leased beyond `bytes`, so that the next allocations need no question: at most `chunk`, and at most half
    /// of a fair part of what is left. `packing` is what may be leased before unused leases alone would fill the card.
    pub(crate) fn extra(
        &self,
        bytes: Bytes,
        chunk: Bytes,
        packing: Bytes,
        session_processes: u64,
        card_processes: u64,
    ) -> Bytes {
        let quota = self.quota - self.session_charged;
        let session = quota.min(self.ceiling) - (self.session_leased + bytes);
        let managed = match self.kind {
            Kind::Movable => self.managed - (self.card_managed + bytes),
            Kind::Fixed => self.managed - self.card_managed,
        };
        let card = managed.min(packing - (self.card_managed + bytes));
        let part = |room: Bytes, processes: u64| Bytes(room.0 / (2 * processes.max(1)));
        chunk.min(part(session, session_processes)).min(part(card, card_processes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            quota: Bytes(100),
            ceiling: Bytes(200),
            managed: Bytes(300),
            session_leased: Bytes(90),
            session_charged: Bytes(0),
            card_managed: Bytes(250),
            kind: Kind::Movable,
        }
    }

    #[test]
    fn the_last_byte_is_granted_and_the_next_is_not() {
        assert_eq!(limits().excess(Bytes(10)), None);
        let excess = limits().excess(Bytes(11)).unwrap();
        assert_eq!((excess.by, excess.limit, excess.bytes), (LimitKind::Session, Bytes(100), Bytes(1)));
    }

    #[test]
    fn each_limit_says_its_name() {
        let unlimited = Limits { quota: Bytes::MAX, ..limits() };
        assert_eq!(unlimited.excess(Bytes(51)).unwrap().by, LimitKind::ManagedLimit);
        assert_eq!(unlimited.excess(Bytes(111)).unwrap().by, LimitKind::Capacity);
    }

    #[test]
    fn what_the_driver_keeps_counts_against_the_quota_and_not_twice_against_the_ceiling() {
        let charged = Limits { session_charged: Bytes(4), ..limits() };
        assert_eq!(charged.excess(Bytes(6)), None);
        assert_eq!(charged.excess(Bytes(7)).unwrap().bytes, Bytes(1));
        assert_eq!(charged.extra(Bytes(2), Bytes(64), Bytes::MAX, 1, 1), Bytes(2));
        let unlimited = Limits { quota: Bytes::MAX, managed: Bytes::MAX, ..charged };
        assert_eq!(unlimited.excess(Bytes(110)), None);
        let over = Limits { session_charged: Bytes::MAX, ..limits() };
        assert_eq!(over.excess(Bytes::ZERO), None);
        assert!(over.excess(Bytes(1)).is_some());
    }

    #[test]
    fn no_sum_overflows_into_a_grant() {
        let unlimited = Limits { quota: Bytes::MAX, ceiling: Bytes::MAX, managed: Bytes::MAX, ..limits() };
        assert!(unlimited.excess(Bytes::MAX).is_some());
    }

    #[test]
    fn the_extra_leaves_room_for_the_others() {
        let chunk = Bytes(64);
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes::MAX, 1, 1), Bytes(4), "half of the quota's last 8");
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes::MAX, 2, 2), Bytes(2));
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes(252), 1, 1), Bytes(0), "the card is full of leases");
        let wide = Limits { quota: Bytes(1 << 40), ceiling: Bytes::MAX, managed: Bytes::MAX, ..limits() };
        assert_eq!(wide.extra(Bytes(2), chunk, Bytes::MAX, 1, 1), chunk);
    }
}

//! Limits of leases: each limit with the bytes that are charged to it, and the leases that can be asked back.
//!
//! ```text
//!   limit                          charged                              free lease is asked back from
//!   session's quota on the card    Σ leased of the session              its processes
//!   one session's ceiling          Σ leased of the session              its processes
//!   the card's managed limit       Σ (leased − fixed) of all sessions   all processes on the card
//!   card and host memory           the same of remapped memory          all processes on the card
//!                                  and a request for fixed memory, which takes room from remapped memory
//! ```
//!
//! A piece of a shared block needs no room but that of its chunks, as far as the process has chunks beyond its leased
//! bytes. They are a part of its rounding, by which the ceiling is lower. What a process says of its chunks never
//! lets it lease more than it could without any rounding.
//!
//! Driver memory beyond an allowance is charged to the quota too. The card's capacity does not contain it. So are
//! chunks of remapped memory beyond what the leased bytes can take.
//!
//! Leased bytes count, not used ones: a process uses leased bytes without asking. So unused lease is asked
//! back before a request is refused.

use gpushare_proto::Bytes;
use gpushare_proto::page::LimitKind;

use crate::memory::book::Book;
use crate::memory::recalls::Kind;

/// Group of processes whose free lease counts against a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Processes of the session that asks for memory.
    Session,
    /// Processes of all sessions on the card.
    Card,
}

/// Limits that apply to a memory request, and the bytes that already count against them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Memory quota of the session on the card.
    pub(crate) quota: Bytes,
    /// Largest number of bytes that one session may use on the card.
    pub(crate) ceiling: Bytes,
    /// Largest sum of managed memory of all sessions on the card.
    pub(crate) managed: Bytes,
    /// Largest sum of remapped memory of all sessions on the card.
    pub(crate) host: Bytes,
    /// Number of bytes leased to the session.
    pub(crate) session_leased: Bytes,
    /// Driver memory and scattered chunks of the session, which count against its quota.
    pub(crate) session_charged: Bytes,
    /// Number of bytes leased to all sessions that may be managed memory.
    pub(crate) card_managed: Bytes,
    /// Number of bytes leased to all sessions that may be remapped memory.
    pub(crate) card_remapped: Bytes,
    /// Memory of the process that asks.
    pub(crate) book: Book,
    /// The ceiling as if the process had no rounding.
    pub(crate) bare_ceiling: Bytes,
    /// Kind of memory that the request asks for.
    pub(crate) kind: Kind,
}

/// Limit that a memory request would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    pub(crate) by: LimitKind,
    pub(crate) limit: Bytes,
    /// Number of bytes by which the request exceeds the limit.
    pub(crate) bytes: Bytes,
}

/// Refusal of a process that asks for memory on a card that it did not announce.
pub(crate) const NOT_ATTACHED: Excess =
    Excess { by: LimitKind::Session, limit: Bytes::ZERO, bytes: Bytes::MAX };

impl Excess {
    pub(crate) fn scope(&self) -> Scope {
        match self.by {
            LimitKind::Session | LimitKind::Capacity => Scope::Session,
            LimitKind::ManagedLimit | LimitKind::HostMemory => Scope::Card,
        }
    }
}

impl Limits {
    /// First limit that a request for `bytes` more would exceed.
    pub(crate) fn excess(&self, bytes: Bytes) -> Option<Excess> {
        let movable = match self.kind {
            Kind::Movable | Kind::Piece => bytes,
            Kind::Fixed => Bytes::ZERO,
        };
        let (housed, gathered) = match self.kind {
            Kind::Piece => (self.book.has_room_for(bytes), self.book.gathered_by(bytes)),
            Kind::Movable | Kind::Fixed => (Bytes::ZERO, Bytes::ZERO),
        };
        let session = self.session_leased + (self.session_charged - gathered);
        [
            (LimitKind::Session, self.quota, session, bytes),
            (LimitKind::Capacity, self.ceiling, self.session_leased, bytes - housed),
            (LimitKind::Capacity, self.bare_ceiling, self.session_leased, bytes),
            (LimitKind::ManagedLimit, self.managed, self.card_managed, movable),
            (LimitKind::HostMemory, self.host, self.card_remapped, bytes - housed),
            (LimitKind::HostMemory, self.host + self.book.rounding(), self.card_remapped, bytes),
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

    /// Number of bytes of remapped memory that the session could lease now.
    pub(crate) fn room(&self) -> Bytes {
        let quota = self.quota - (self.session_leased + self.session_charged);
        quota
            .min(self.ceiling - self.session_leased)
            .min(self.host - self.card_remapped)
    }

    /// Number of bytes to lease beyond the requested `bytes`, so that the next allocations need no request.
    ///
    /// The result is `min(chunk, rest / (2 × processes))`, where `rest` is what each limit leaves. Beyond
    /// `packing` leased bytes, unused leases alone would fill the card.
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
            Kind::Movable | Kind::Piece => self.managed - (self.card_managed + bytes),
            Kind::Fixed => self.managed - self.card_managed,
        };
        let host = self.host - (self.card_remapped + bytes);
        let card = managed.min(packing - (self.card_managed + bytes)).min(host);
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
            host: Bytes::MAX,
            session_leased: Bytes(90),
            session_charged: Bytes(0),
            card_managed: Bytes(250),
            card_remapped: Bytes(0),
            book: Book::default(),
            bare_ceiling: Bytes(200),
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
    fn driver_memory_counts_against_the_quota_but_not_the_ceiling() {
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
    fn the_free_lease_leaves_room_for_other_processes() {
        let chunk = Bytes(64);
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes::MAX, 1, 1), Bytes(4), "half of the quota's last 8");
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes::MAX, 2, 2), Bytes(2));
        assert_eq!(limits().extra(Bytes(2), chunk, Bytes(252), 1, 1), Bytes(0), "the card is full of leases");
        let wide = Limits { quota: Bytes(1 << 40), ceiling: Bytes::MAX, managed: Bytes::MAX, ..limits() };
        assert_eq!(wide.extra(Bytes(2), chunk, Bytes::MAX, 1, 1), chunk);
    }
}

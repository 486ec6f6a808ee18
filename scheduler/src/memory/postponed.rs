//! Queue of memory requests that cannot be decided yet (see reserve.rs for the reasons).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use gpushare_core::Kind;
use gpushare_proto::{Bytes, GpuId, Nanos, RequestId};

use crate::connections::ConnectionId;

/// Largest number of waiting requests of one connection. A thread has one at a time, so more is abuse.
const MOST: usize = 256;
/// Largest number of waiting requests that are checked again after each input.
const FEW: usize = 16;
/// Largest number of requests that are checked again at once.
const AT_ONCE: usize = 64;
/// Pause between two checks, if no input comes or more than [`FEW`] requests wait.
const PAUSE: Nanos = Nanos::from_millis(2);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) request: RequestId,
    pub(crate) gpu: GpuId,
    pub(crate) bytes: Bytes,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    pub(crate) reservation: Reservation,
    /// Point in monotonic time at which the request first found too little free memory.
    pub(crate) short_since: Option<Nanos>,
}

#[derive(Debug, Default)]
pub(crate) struct Postponed {
    waiting: VecDeque<Waiting>,
    /// Numbers of waiting requests by connection.
    counts: BTreeMap<ConnectionId, usize>,
    /// Point in monotonic time of the next check.
    next: Nanos,
}

impl Postponed {
    /// Adds a memory request, unless its connection has too many waiting ones.
    pub(crate) fn add(&mut self, waiting: Waiting) -> Result<(), String> {
        let count = self.counts.entry(waiting.connection).or_default();
        if *count >= MOST {
            return Err(format!("{MOST} memory requests of the process wait already"));
        }
        *count += 1;
        self.waiting.push_back(waiting);
        Ok(())
    }

    /// Returns the requests to be checked now, in the order in which they wait. Each must be put back or
    /// released.
    pub(crate) fn take(&mut self, now: Nanos) -> Vec<Waiting> {
        if self.waiting.len() > FEW && now < self.next {
            return Vec::new();
        }
        self.next = now + PAUSE;
        let count = self.waiting.len().min(AT_ONCE);
        self.waiting.drain(..count).collect()
    }

    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
    }

    /// Notes that a request was decided or that its connection is over.
    pub(crate) fn release(&mut self, waiting: &Waiting) {
        if let Entry::Occupied(mut count) = self.counts.entry(waiting.connection) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// Returns the point in monotonic time of the next check; none if no request waits.
    pub(crate) fn due(&self) -> Option<Nanos> {
        (!self.waiting.is_empty()).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(connection: u64, request: u64) -> Waiting {
        let reservation =
            Reservation { request: RequestId(request), gpu: GpuId(0), bytes: Bytes(1), kind: Kind::Movable };
        Waiting { connection: ConnectionId(connection), reservation, short_since: None }
    }

    #[test]
    fn an_input_checks_few_of_many_requests() {
        let mut postponed = Postponed::default();
        for connection in 0..100 {
            (0..MOST as u64).for_each(|n| postponed.add(request(connection, n)).unwrap());
            assert!(postponed.add(request(connection, 999)).is_err());
        }
        let mut now = Nanos::from_secs(1);
        let first = postponed.take(now);
        assert_eq!(first.len(), AT_ONCE);
        first.into_iter().for_each(|waiting| postponed.put_back(waiting));
        assert_eq!(postponed.take(now).len(), 0, "not at the next input");
        now += PAUSE;
        assert_eq!(postponed.due(), Some(now));
        let others = postponed.take(now);
        assert_eq!(others[0].reservation.request, RequestId(AT_ONCE as u64), "each has its turn");
        others.iter().for_each(|waiting| postponed.release(waiting));
        postponed.add(request(0, 1000)).unwrap();
    }
}

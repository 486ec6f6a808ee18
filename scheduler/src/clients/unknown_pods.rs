//! Connections of processes that wait for the session of their pod (`pods.rs`).

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::Nanos;

use super::hello::ClientHello;
use crate::connections::ConnectionId;

/// Waiting connections, by number and by the end of their wait.
#[derive(Debug, Default)]
pub(crate) struct UnknownPods {
    waiting: BTreeMap<ConnectionId, Waiting>,
    ends: BTreeSet<(Nanos, ConnectionId)>,
}

/// Hello of a process that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    /// UID of the pod.
    pub(super) pod: String,
    /// End of the wait in monotonic time.
    pub(super) until: Nanos,
    pub(super) hello: ClientHello,
}

impl UnknownPods {
    pub(super) fn insert(&mut self, connection: ConnectionId, waiting: Waiting) {
        self.ends.insert((waiting.until, connection));
        self.waiting.insert(connection, waiting);
    }

    /// Removes a connection, which no longer waits or has ended. Returns its hello if it waited.
    pub(super) fn take(&mut self, connection: ConnectionId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&connection)?;
        self.ends.remove(&(waiting.until, connection));
        Some(waiting)
    }

    /// Returns the connections that wait for a pod.
    pub(super) fn of_pod(&self, pod: &str) -> Vec<ConnectionId> {
        let of_pod = self.waiting.iter().filter(|(_, waiting)| waiting.pod == pod);
        of_pod.map(|(&connection, _)| connection).collect()
    }

    /// Returns all connections that wait.
    pub(super) fn all(&self) -> Vec<ConnectionId> {
        self.waiting.keys().copied().collect()
    }

    /// Removes a connection whose wait is over. Returns its hello.
    pub(super) fn take_late(&mut self, now: Nanos) -> Option<(ConnectionId, Waiting)> {
        let &(_, connection) = self.ends.first().filter(|(until, _)| *until <= now)?;
        self.take(connection).map(|waiting| (connection, waiting))
    }

    /// Returns the point in monotonic time at which the next wait is over.
    pub(crate) fn due(&self) -> Option<Nanos> {
        self.ends.first().map(|&(until, _)| until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_by_its_pod_by_time_or_with_the_connection() {
        let mut unknown = UnknownPods::default();
        let connection = |n: u64| ConnectionId(n);
        for (n, pod, until) in [(1, "a", 30), (2, "b", 10), (3, "a", 20), (4, "b", 10)] {
            let waiting = Waiting { pod: pod.to_owned(), until: Nanos(until), hello: ClientHello::default() };
            unknown.insert(connection(n), waiting);
        }
        assert_eq!((unknown.due(), unknown.all()), (Some(Nanos(10)), [1, 2, 3, 4].map(connection).to_vec()));
        assert_eq!(unknown.of_pod("a"), [1, 3].map(connection));
        assert!(unknown.take_late(Nanos(9)).is_none());
        assert!(unknown.take(connection(2)).is_some() && unknown.take(connection(2)).is_none());
        let late = |unknown: &mut UnknownPods| unknown.take_late(Nanos(25)).map(|(connection, _)| connection);
        assert_eq!([late(&mut unknown), late(&mut unknown)], [Some(connection(4)), Some(connection(3))]);
        assert_eq!((late(&mut unknown), unknown.due()), (None, Some(Nanos(30))));
    }
}

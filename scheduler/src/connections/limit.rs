//! Limit on connections, disconnected clients and joined processes of one principal.
//!
//! Each of these costs the daemon descriptors. The daemon's own principal has no limit: an administrator must
//! be able to connect when users have reached their limits.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::identity::Principal;

/// Limit on the number of connections of one principal.
#[derive(Clone, Debug)]
pub(crate) struct ConnectionLimit {
    /// Principal of the daemon itself, which has no limit.
    own: Principal,
    /// Largest number of connections of one limited principal.
    pub(crate) most: usize,
}

impl ConnectionLimit {
    /// Limits every principal but the daemon's own to `most` connections.
    pub(crate) fn new(most: usize) -> Self {
        Self { own: Principal::own(), most }
    }

    /// Returns whether a process is in the daemon's own container, or both are outside of containers.
    pub(crate) fn is_beside_daemon(&self, principal: &Principal) -> bool {
        principal.is_beside(&self.own)
    }

    /// Returns whether a principal with `count` connections may have one more.
    pub(crate) fn allows(&self, principal: &Principal, count: usize) -> bool {
        let is_own = self.own == *principal && principal.is_located();
        is_own || count < self.most
    }
}

/// Open connections, by principal and by process.
#[derive(Debug, Default)]
pub(super) struct OpenConnections {
    counts: HashMap<Principal, usize>,
    /// Principals of the processes that have connections, with the number of these.
    processes: HashMap<Caller, (Principal, usize)>,
}

/// Pid and user id of a peer, which cost one system call.
pub(super) type Caller = (u32, u32);

/// Open connections that listeners and connections share.
pub(super) type SharedConnections = Arc<Mutex<OpenConnections>>;

/// Place of one connection in the count, which is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Mark {
    open: SharedConnections,
    caller: Caller,
    principal: Principal,
}

impl OpenConnections {
    fn of(open: &SharedConnections) -> MutexGuard<'_, Self> {
        // Every change under the lock is complete, so a poisoned lock is usable.
        open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether a process certainly may have no further connection, because its present ones reach
    /// the limit.
    pub(super) fn is_over_limit(open: &SharedConnections, caller: Caller, limit: &ConnectionLimit) -> bool {
        let open = Self::of(open);
        let known = open.processes.get(&caller);
        known.is_some_and(|(principal, _)| !limit.allows(principal, open.count(principal)))
    }

    /// Counts one more connection until the returned value is dropped; `None` if the limit is reached.
    pub(super) fn add(
        open: &SharedConnections,
        caller: Caller,
        principal: &Principal,
        limit: &ConnectionLimit,
    ) -> Option<Mark> {
        let mut connections = Self::of(open);
        if !limit.allows(principal, connections.count(principal)) {
            return None;
        }
        *connections.counts.entry(principal.clone()).or_default() += 1;
        connections.processes.entry(caller).or_insert_with(|| (principal.clone(), 0)).1 += 1;
        Some(Mark { open: open.clone(), caller, principal: principal.clone() })
    }

    fn count(&self, principal: &Principal) -> usize {
        self.counts.get(principal).copied().unwrap_or(0)
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        let mut open = OpenConnections::of(&self.open);
        if let Entry::Occupied(mut count) = open.counts.entry(self.principal.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
        if let Entry::Occupied(mut process) = open.processes.entry(self.caller) {
            process.get_mut().1 -= 1;
            if process.get().1 == 0 {
                process.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "/system.slice/docker-1f2e.scope";

    fn limit_of_daemon_in(group: Option<&str>) -> ConnectionLimit {
        ConnectionLimit { own: Principal::seen_from(group, 0, group), most: 9 }
    }

    fn root_in(group: &str) -> Principal {
        Principal::in_groups(0, Some(group))
    }

    #[test]
    fn root_in_a_container_is_limited_and_root_of_the_machine_is_not() {
        let limit = limit_of_daemon_in(Some("/system.slice/gpushare-scheduler.service"));
        assert!(limit.allows(&root_in("/user.slice/user-0.slice/session-1.scope"), 1000));
        assert!(limit.allows(&root_in(DOCKER), 8));
        assert!(!limit.allows(&root_in(DOCKER), 9));
        let by_old_hierarchies =
            Principal::in_groups(0, ["/system.slice/containerd.service", "/docker/1f2e", "/docker/1f2e"]);
        assert!(!limit.allows(&by_old_hierarchies, 9));
    }

    #[test]
    fn a_daemon_in_a_container_does_not_limit_its_own_user_there() {
        let limit = limit_of_daemon_in(Some(DOCKER));
        let beside = |uid| Principal::seen_from(Some(DOCKER), uid, Some(DOCKER));
        assert!(limit.allows(&beside(0), 1000));
        assert!(!limit.allows(&beside(1000), 9));
        assert!(!limit.allows(&root_in("/docker/other"), 9));
        assert!(!limit.allows(&root_in("/"), 9));
        let with_own_namespace = limit_of_daemon_in(Some("/"));
        assert!(with_own_namespace.allows(&root_in("/init"), 1000));
        for outside in [
            "/../9c3b",
            "/../9c3b/docker/x",
            "/../9c3b/init/x",
            "/../../podb/2/init",
            "/../../../user.slice/user-0.slice/session-1.scope",
            "/../..",
            "/../../docker-2.scope/init",
            "/../../kubepods-podb.slice/crio-2.scope/x-pod/y",
            "/../../../kubepods-burstable.slice/kubepods-burstable-podb.slice/2/x",
        ] {
            assert!(!with_own_namespace.allows(&root_in(outside), 9), "{outside}");
        }
    }

    #[test]
    fn processes_in_other_containers_are_not_beside_the_daemon() {
        let limit = limit_of_daemon_in(Some("/system.slice/gpushare-scheduler.service"));
        let user = |group| Principal::in_groups(1000, Some(group));
        assert!(limit.is_beside_daemon(&user("/user.slice/user-1000.slice/session-1.scope")));
        assert!(!limit.is_beside_daemon(&user(DOCKER)));
        let own_container = "/user.slice/user-1000.slice/user@1000.service/libpod-1.scope";
        assert!(limit.is_beside_daemon(&user(own_container)), "a user names the groups in its slice");
        assert!(!limit.is_beside_daemon(&Principal::in_groups(1000, None)));
        let inside = limit_of_daemon_in(Some(DOCKER));
        assert!(inside.is_beside_daemon(&user(DOCKER)));
        assert!(!inside.is_beside_daemon(&user("/docker/other")));
    }

    #[test]
    fn a_process_in_an_unknown_place_is_limited() {
        let unknown = Principal::in_groups(0, None);
        assert!(!limit_of_daemon_in(Some("/")).allows(&unknown, 9));
        assert!(!limit_of_daemon_in(None).allows(&unknown, 9), "even if the daemon's place is unknown too");
    }

    #[test]
    fn one_users_connections_take_nothing_from_another_user() {
        let (limit, own) = (ConnectionLimit::new(2), Principal::own());
        let [one, other] = [70_000, 70_001].map(|uid| Principal::of(uid, std::process::id(), || true));
        let open = SharedConnections::default();
        let add = |pid, principal| OpenConnections::add(&open, (pid, 70_000), principal, &limit);
        let is_over = |pid| OpenConnections::is_over_limit(&open, (pid, 70_000), &limit);
        let held: Vec<_> = (0..2).map(|_| add(1, &one).unwrap()).collect();
        assert!(is_over(1), "known without a look at the process");
        assert!(!is_over(2), "not known before the process is looked at");
        assert!(add(2, &one).is_none());
        assert!(add(3, &other).is_some());
        let ours: Vec<_> = (0..9).filter_map(|_| add(4, &own)).collect();
        assert_eq!(ours.len(), 9, "the daemon's own principal is not limited");
        assert!(!is_over(4));
        drop((held, ours));
        assert!(add(1, &one).is_some());
        let open = OpenConnections::of(&open);
        assert_eq!((open.counts.len(), open.processes.len()), (0, 0));
    }
}

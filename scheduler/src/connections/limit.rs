//! Limit on connections, disconnected clients and joined processes of one principal (user and container).
//!
//! Each of these costs the daemon descriptors. The daemon's own principal has no limit: an administrator must
//! be able to connect when users have reached their limits.

use std::collections::HashMap;
use std::sync::Arc;

use crate::identity::Principal;

/// Limit on the number of connections of one principal (user and container).
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

    /// Returns whether a principal with `count` connections may have one more.
    pub(crate) fn allows(&self, principal: &Principal, count: usize) -> bool {
        let is_own = self.own == *principal && principal.is_located();
        is_own || count < self.most
    }
}

/// Open connections by principal. An entry's reference count is its number of connections plus one.
#[derive(Debug, Default)]
pub(super) struct OpenConnections(HashMap<Principal, Arc<()>>);

impl OpenConnections {
    /// Counts one more connection until the returned value is dropped; `None` if the limit is reached.
    pub(super) fn add(&mut self, principal: &Principal, limit: &ConnectionLimit) -> Option<Arc<()>> {
        // Principals without connections are removed, so the table stays as small as its connections are few.
        self.0.retain(|_, marks| Arc::strong_count(marks) > 1);
        let count = self.0.get(principal).map_or(0, |marks| Arc::strong_count(marks) - 1);
        let is_allowed = limit.allows(principal, count);
        is_allowed.then(|| self.0.entry(principal.clone()).or_default().clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCKER: &str = "/system.slice/docker-1f2e.scope";

    fn limit_of_daemon_in(group: Option<&str>) -> ConnectionLimit {
        ConnectionLimit { own: Principal::in_groups(0, group), most: 9 }
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
        assert!(limit.allows(&root_in(DOCKER), 1000));
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
    fn a_process_in_an_unknown_place_is_limited() {
        let unknown = Principal::in_groups(0, None);
        assert!(!limit_of_daemon_in(Some("/")).allows(&unknown, 9));
        assert!(!limit_of_daemon_in(None).allows(&unknown, 9), "even if the daemon's place is unknown too");
    }

    #[test]
    fn one_users_connections_take_nothing_from_another_user() {
        let (limit, own) = (ConnectionLimit::new(2), Principal::own());
        let [one, other] = [70_000, 70_001].map(|uid| Principal::of(uid, std::process::id(), || true));
        let mut connections = OpenConnections::default();
        let held: Vec<_> = (0..2).map(|_| connections.add(&one, &limit).unwrap()).collect();
        assert!(connections.add(&one, &limit).is_none());
        assert!(connections.add(&other, &limit).is_some());
        let ours: Vec<_> = (0..9).filter_map(|_| connections.add(&own, &limit)).collect();
        assert_eq!(ours.len(), 9, "the daemon's own principal is not limited");
        drop((held, ours));
        assert!(connections.add(&one, &limit).is_some());
        assert_eq!(connections.0.len(), 1);
    }
}

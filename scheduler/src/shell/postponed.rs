//! Requests for memory that wait until it is known what the session has.
//!
//! The registry says which processes a session had, not how much each of them uses: they say it when they come back. Until
//! then a lease could be bytes that a sibling has. So a session with a quota gets no lease while a process of it is
//! awaited, nor right after a restart: one that joined just before the last daemon's death may not be in the registry.
//!
//! The other time is when a process of the session has just ended: what it had is about to be free (orphans.rs), and nobody is
//! refused while that is so.

use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{ClientId, GpuId, Nanos};
use gpushare_sys::clock;

use super::{ConnectionRole, Shell};
use crate::input::ConnectionId;

/// So many requests of one connection wait: a thread has one at a time, and whoever does not wait for answers must not fill the
/// daemon with them.
const MOST: usize = 256;

impl Shell {
    /// Has a client's request for memory wait.
    pub(super) fn postpone(
        &mut self,
        connection: ConnectionId,
        request: TenantRequest,
    ) -> Result<(), String> {
        let own = self.postponed.iter().filter(|(asker, _)| *asker == connection);
        if own.count() >= MOST {
            return Err(format!(
                "{MOST} requests of the process wait already for the return of its session's processes"
            ));
        }
        self.postponed.push((connection, request));
        Ok(())
    }

    /// Whether a client's request for memory must wait.
    pub(super) fn is_unsettled(&self, client: ClientId, gpu: GpuId) -> bool {
        let Some(session) = self.clients.get(&client).map(|client| client.session) else {
            return false;
        };
        let awaited = || self.expected.values().any(|entry| entry.session == session);
        let back = || self.orphans.expected_back(session, clock::monotonic()).is_some();
        self.limit_on(session, gpu).is_some() && (self.is_young() || awaited() || back())
    }

    /// Whether processes may still come back that nobody knows of.
    fn is_young(&self) -> bool {
        self.core.is_recovering() && clock::monotonic() < self.grown_up()
    }

    fn grown_up(&self) -> Nanos {
        self.started + self.settings.core.recovery_min
    }

    /// When to look at what waits, apart from what a process's return or death brings about.
    pub(super) fn postponed_until(&self) -> Option<Nanos> {
        if self.is_young() {
            return (!self.postponed.is_empty()).then(|| self.grown_up());
        }
        let now = clock::monotonic();
        let clients = self.postponed.iter().filter_map(|(asker, _)| {
            match self.connections.get(asker).map(|open| open.role) {
                Some(ConnectionRole::Client(client)) => self.clients.get(&client),
                _ => None,
            }
        });
        clients
            .filter_map(|client| self.orphans.expected_back(client.session, now))
            .min()
    }

    /// Asks again, in order, what need not wait any more.
    pub(super) fn take_up_postponed(&mut self) {
        let all = std::mem::take(&mut self.postponed);
        let (still, settled) = all.into_iter().partition(|of| self.has_to_wait(of));
        self.postponed = still;
        let settled: Vec<_> = settled;
        for (connection, request) in settled {
            self.tenant(connection, request);
        }
    }

    fn has_to_wait(&self, (connection, request): &(ConnectionId, TenantRequest)) -> bool {
        let role = self.connections.get(connection).map(|open| open.role);
        match (role, request) {
            (
                Some(ConnectionRole::Client(client)),
                TenantRequest::Reserve { gpu, .. } | TenantRequest::ReserveFixed { gpu, .. },
            ) => self.is_unsettled(client, *gpu),
            _ => false,
        }
    }

    /// Whoever asked is gone.
    pub(super) fn forget_postponed(&mut self, connection: ConnectionId) {
        self.postponed.retain(|(asker, _)| *asker != connection);
    }
}

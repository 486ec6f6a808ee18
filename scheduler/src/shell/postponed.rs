//! Requests for memory that wait: until it is known what their session has, or for what a dead process is about to give back.
//!
//! The registry says which processes a session had, not how much each of them uses: they say it when they come back. Until
//! then a lease could be bytes that a sibling has. So a session with a quota gets no lease while a process of it is
//! awaited, nor right after a restart: one that joined just before the last daemon's death may not be in the registry.
//!
//! The other time is when there is no room and a process that had some has just ended: its memory is about to be free (orphans.rs),
//! and nobody is refused while that is so. Its session's quota is its session's matter; the card is everybody's. A request waits for
//! those only that had ended when it was first short of room, so no dying of others keeps it for longer.

use gpushare_core::Kind;
use gpushare_proto::page::LimitKind;
use gpushare_proto::tenant::TenantRequest;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos};
use gpushare_sys::clock;

use super::{ConnectionRole, Shell};
use crate::connections::ConnectionId;

/// So many requests of one connection wait: a thread has one at a time, and whoever does not wait for answers must not fill the
/// daemon with them.
const MOST: usize = 256;

/// A request that waits.
#[derive(Debug)]
pub(super) struct Postponed {
    connection: ConnectionId,
    request: TenantRequest,
    /// When it was first short of room.
    short: Option<Nanos>,
}

impl Shell {
    /// Decides a client's request for memory, or has it wait.
    pub(super) fn reserve_or_postpone(
        &mut self,
        connection: ConnectionId,
        client: ClientId,
        request: &TenantRequest,
    ) -> Result<(), String> {
        let asked = Postponed { connection, request: request.clone(), short: None };
        let Some(waits) = self.decide_if_settled(client, asked)? else {
            return Ok(());
        };
        let own = self.postponed.iter().filter(|of| of.connection == connection);
        if own.count() >= MOST {
            return Err(format!("{MOST} requests of the process wait already for memory"));
        }
        self.postponed.push(waits);
        Ok(())
    }

    /// Decides a request, or gives it back if it has to wait.
    fn decide_if_settled(
        &mut self,
        client: ClientId,
        mut asked: Postponed,
    ) -> Result<Option<Postponed>, String> {
        let Some(wish) = wish(&asked.request) else {
            return Ok(None);
        };
        if self.is_unsettled(client, wish.0) {
            return Ok(Some(asked));
        }
        if self.repeats(asked.connection, client, &asked.request) {
            return Ok(None);
        }
        let now = clock::monotonic();
        let short = *asked.short.get_or_insert(now);
        if self.room_expected(client, wish, (short, now)).is_some() {
            return Ok(Some(asked));
        }
        self.client_says(client, &asked.request).map(|()| None)
    }

    /// Whether it is not known what the session of a client has.
    fn is_unsettled(&self, client: ClientId, gpu: GpuId) -> bool {
        let Some(session) = self.clients.get(&client).map(|client| client.session) else {
            return false;
        };
        let awaited = || self.expected.values().any(|entry| entry.session == session);
        self.limit_on(session, gpu).is_some() && (self.is_young() || awaited())
    }

    /// Until when there may well be room that is not there now, of those that had ended when a request was first `short` of it.
    fn room_expected(
        &self,
        client: ClientId,
        (gpu, bytes, kind): (GpuId, Bytes, Kind),
        (short, now): (Nanos, Nanos),
    ) -> Option<Nanos> {
        let whose = match self.core.limit_in_the_way(client, gpu, bytes, kind)? {
            LimitKind::Session => Some(self.clients.get(&client)?.session),
            LimitKind::Capacity | LimitKind::ManagedLimit => None,
        };
        let card = self.cards.get(gpu)?.info.uuid;
        self.orphans.expected_back(card, whose, (short, now))
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
        let ends = self.postponed.iter().filter_map(|of| {
            let client = self.asker(of.connection)?;
            self.room_expected(client, wish(&of.request)?, (of.short?, now))
        });
        ends.min()
    }

    /// Asks again, in order, what need not wait any more.
    pub(super) fn take_up_postponed(&mut self) {
        for asked in std::mem::take(&mut self.postponed) {
            let connection = asked.connection;
            let Some(client) = self.asker(connection) else {
                continue;
            };
            match self.decide_if_settled(client, asked) {
                Ok(waits) => self.postponed.extend(waits),
                Err(message) => self.refuse_nonsense(connection, message),
            }
        }
    }

    fn asker(&self, connection: ConnectionId) -> Option<ClientId> {
        match self.connections.get(&connection)?.role {
            ConnectionRole::Client(client) => Some(client),
            ConnectionRole::Tool | ConnectionRole::Ending => None,
        }
    }

    /// Whoever asked is gone.
    pub(super) fn forget_postponed(&mut self, connection: ConnectionId) {
        self.postponed.retain(|of| of.connection != connection);
    }
}

/// What a request for memory asks for.
fn wish(request: &TenantRequest) -> Option<(GpuId, Bytes, Kind)> {
    match *request {
        TenantRequest::Reserve { gpu, bytes, .. } => Some((gpu, bytes, Kind::Movable)),
        TenantRequest::ReserveFixed { gpu, bytes, .. } => Some((gpu, bytes, Kind::Fixed)),
        _ => None,
    }
}

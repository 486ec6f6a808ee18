//! Memory figures of a session, for requests on the daemon's sockets. They follow the same rules as the
//! figures in the memory that each process shares with the daemon.
//!
//! ```text
//!   total   min(quota, card)                     never changes while the session lives
//!   used    bytes of the session's own processes
//!   free    min(total, ceiling) − used
//! ```

use gpushare_proto::admin::FrostStage;
use gpushare_proto::{Bytes, ClientId, GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::events::Obstacle;
use crate::machine::Core;
use crate::session::Session;
use crate::session::client::Client;
use crate::session::frost::Stage;

/// Memory figures of a session on one card, whether or not the session ever used the card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryFigures {
    /// Identifier of the card.
    pub gpu: GpuId,
    /// Size of the card in bytes as the session sees it.
    pub total: Bytes,
    /// Number of bytes that the session uses on the card.
    pub used: Bytes,
    /// Number of bytes that the session may still allocate on the card.
    pub free: Bytes,
    /// Processes of the session on the card, with the number of bytes that each uses.
    pub processes: Vec<(ClientId, Bytes)>,
}

impl Core {
    /// Returns a session's memory figures on each card; `None` if there is no such session.
    #[must_use]
    pub fn memory_figures(&self, id: SessionId) -> Option<Vec<MemoryFigures>> {
        let session = self.view.sessions.get(id)?;
        let figures = |(gpu, card): (GpuId, &Card)| {
            let total = session.quota.on(gpu).min(card.total);
            let used = session.sums(gpu).used.get();
            let ceiling = present_ceiling(session, gpu, card);
            MemoryFigures {
                gpu,
                total,
                used,
                free: total.min(ceiling) - used,
                processes: session.books(gpu).map(|(client, book)| (client, book.used())).collect(),
            }
        };
        Some(self.view.cards.iter().map(figures).collect())
    }

    /// Whether a process claimed the lock of the last daemon without proof, and was granted nothing since.
    #[must_use]
    pub fn is_unproven(&self, client: ClientId) -> bool {
        self.view.sessions.client(client).is_some_and(|client| client.unproven)
    }

    /// Number of a process's bytes that never leave a card, as it reported. `None` if it did not announce the
    /// card.
    #[must_use]
    pub fn fixed_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.view.book(client, gpu)?.fixed())
    }

    /// Whether a process is frozen, or is being frozen or thawed, so that NVML may not list it although it lives.
    #[must_use]
    pub fn is_frozen(&self, client: ClientId) -> bool {
        let process = self.view.sessions.client(client);
        process.is_some_and(|process| process.frost.is_cold() || process.frost.is_away())
    }

    /// Whether the driver moves any process into host memory or back.
    #[must_use]
    pub fn moves_by_driver(&self) -> bool {
        self.view.cold_processes().any(|(.., frost)| frost.is_under_way())
    }

    /// Sessions that are to be frozen, or of which any process is frozen or comes back.
    pub fn cold_sessions(&self) -> impl Iterator<Item = SessionId> + '_ {
        self.view.cold.iter().copied()
    }

    /// Whether a session is to be frozen and is not yet.
    #[must_use]
    pub fn begins_to_freeze(&self) -> bool {
        self.cold_sessions().any(|id| self.frost_stage(id) == FrostStage::Freezing)
    }

    /// Whether a session that is to be frozen waits for host memory.
    #[must_use]
    pub fn freeze_lacks_host_memory(&self, id: SessionId) -> bool {
        let session = self.view.sessions.get(id).filter(|session| session.wants_frost);
        session.is_some_and(|session| {
            let waits = |process: &Client| matches!(process.frost.stage(), Stage::Warm | Stage::Parked);
            session
                .attached()
                .any(|(_, process)| waits(process) && self.view.lacks_host_memory(process))
        })
    }

    /// Whether a process must not be killed, since the driver may have restored it or does so now.
    #[must_use]
    pub fn is_spared(&self, client: ClientId) -> bool {
        self.view
            .sessions
            .client(client)
            .is_some_and(|process| process.frost.is_spared())
    }

    /// Stage of a session on its way into a checkpoint and back.
    #[must_use]
    pub fn frost_stage(&self, id: SessionId) -> FrostStage {
        let session = self.view.sessions.get(id);
        session.map_or(FrostStage::Warm, Session::frost_stage)
    }

    /// Duration for which a session is idle, if it is frozen after a while and is not frozen yet.
    #[must_use]
    pub fn idle_for(&self, id: SessionId, now: Nanos) -> Option<Nanos> {
        Some(now - self.view.sessions.get(id)?.idle.since()?)
    }

    /// First obstacle among the processes of a session that use a card.
    #[must_use]
    pub fn frost_obstacle(&self, id: SessionId) -> Option<(ClientId, Obstacle)> {
        self.view.obstacle(id)
    }

    /// Number of bytes that a process uses on a card, as last seen. `None` if it did not announce the card.
    #[must_use]
    pub fn used_bytes(&self, client: ClientId, gpu: GpuId) -> Option<Bytes> {
        Some(self.view.book(client, gpu)?.used())
    }
}

/// Returns the largest number of bytes that a session may use on a card at present.
///
/// The result is the session's ceiling, within the managed limit beside the other sessions. Driver memory
/// that is charged to the quota is subtracted.
pub(crate) fn present_ceiling(session: &Session, gpu: GpuId, card: &Card) -> Bytes {
    let sums = session.sums(gpu);
    if !session.may_grow() {
        return sums.used.get();
    }
    let fixed = sums.fixed.get();
    let left = match card.managed_limit() {
        Bytes::MAX => Bytes::MAX,
        limit => limit - (card.managed() - (sums.movable.get() - sums.swappable.get())) + fixed,
    };
    let ceiling = card.ceiling(&sums, session.quota.may_oversubscribe());
    let reach = match sums.are_remapped() {
        true => ceiling,
        false => ceiling.min(card.managed_limit() + fixed).min(left),
    };
    match sums.charged.get() {
        Bytes::ZERO => reach,
        charged => reach.min(session.quota.on(gpu) - charged),
    }
}

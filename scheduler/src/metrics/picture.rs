//! Copy of the daemon's figures that the core's task hands over on request.

use gpushare_core::snapshot::{GpuSnapshot, SessionSnapshot};
use gpushare_proto::Nanos;
use gpushare_proto::tenant::GpuInfo;

/// Figures of the daemon at one instant.
#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    /// Time since the daemon started.
    pub(crate) uptime: Nanos,
    /// Whether the daemon gives grants, and not only waits for processes of the last daemon.
    pub(crate) ready: bool,
    /// Clients of the last daemon that are neither back nor dead.
    pub(crate) recovering: u32,
    pub(crate) cards: Vec<CardPicture>,
    /// Open sessions by number, then those that ended a short while ago, the latest first.
    pub(crate) sessions: Vec<SessionPicture>,
    pub(crate) audit: AuditPicture,
    /// Number of open sessions in `sessions`.
    pub(crate) living: usize,
}

/// Line counts of the audit log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditPicture {
    /// Lines written since the daemon started.
    pub(crate) written: u64,
    /// Lines that could not be written since the daemon started.
    pub(crate) lost: u64,
}

/// Figures of one card.
#[derive(Clone, Debug)]
pub(crate) struct CardPicture {
    pub(crate) info: GpuInfo,
    pub(crate) state: GpuSnapshot,
}

/// Figures of one session.
#[derive(Clone, Debug)]
pub(crate) struct SessionPicture {
    pub(crate) name: String,
    pub(crate) state: SessionSnapshot,
}

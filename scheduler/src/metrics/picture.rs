//! Copy of the daemon's figures that the core's task hands over on request.

use gpushare_core::snapshot::{GpuSnapshot, SessionSnapshot};
use gpushare_proto::Nanos;
use gpushare_proto::tenant::GpuInfo;

#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
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

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditPicture {
    pub(crate) written: u64,
    pub(crate) lost: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct CardPicture {
    pub(crate) info: GpuInfo,
    pub(crate) state: GpuSnapshot,
}

#[derive(Clone, Debug)]
pub(crate) struct SessionPicture {
    pub(crate) name: String,
    pub(crate) state: SessionSnapshot,
}

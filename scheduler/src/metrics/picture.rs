//! What the core's task hands over when it is asked: plain copies, put into words elsewhere.

use gpushare_core::snapshot::{GpuSnapshot, SessionSnapshot};
use gpushare_proto::Nanos;
use gpushare_proto::tenant::GpuInfo;

/// The daemon at one instant.
#[derive(Clone, Debug)]
pub(crate) struct Picture {
    /// Time since it started.
    pub(crate) uptime: Nanos,
    /// Whether grants are given: not while processes of the last daemon are awaited.
    pub(crate) ready: bool,
    /// Clients of the last daemon that are neither back nor dead.
    pub(crate) recovering: u32,
    pub(crate) cards: Vec<CardPicture>,
    /// The living by number, then those that ended a short while ago, the last one first.
    pub(crate) sessions: Vec<SessionPicture>,
    /// Lines of the audit log that were written, and those that could not be.
    pub(crate) audit: AuditPicture,
    /// How many of the sessions live.
    pub(crate) living: usize,
}

/// The audit log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AuditPicture {
    pub(crate) written: u64,
    pub(crate) lost: u64,
}

/// A card.
#[derive(Clone, Debug)]
pub(crate) struct CardPicture {
    pub(crate) info: GpuInfo,
    pub(crate) state: GpuSnapshot,
}

/// A session.
#[derive(Clone, Debug)]
pub(crate) struct SessionPicture {
    pub(crate) name: String,
    pub(crate) state: SessionSnapshot,
}

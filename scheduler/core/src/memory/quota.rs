//! Memory quotas of one session.

use gpushare_proto::{Bytes, GpuId};

use crate::values::small_map::ByGpu;

/// Memory quota of a session on each card, and whether the session may use more memory than a card's
/// capacity.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    /// Common quota, for each card without a quota of its own; [`Bytes::MAX`] for no limit.
    common: Bytes,
    by_card: ByGpu<Bytes>,
    oversubscribe: bool,
}

impl Quota {
    pub(crate) fn new(limit: Option<Bytes>, oversubscribe: bool) -> Self {
        Self { common: limit.unwrap_or(Bytes::MAX), by_card: ByGpu::default(), oversubscribe }
    }

    /// Changes the common quota, and keeps the quotas of single cards.
    pub(crate) fn set_common(&mut self, limit: Option<Bytes>, oversubscribe: bool) {
        (self.common, self.oversubscribe) = (limit.unwrap_or(Bytes::MAX), oversubscribe);
    }

    /// Sets the quota on one card; `None` for no limit there.
    pub(crate) fn set_on(&mut self, gpu: GpuId, limit: Option<Bytes>) {
        self.by_card.insert(gpu, limit.unwrap_or(Bytes::MAX));
    }

    /// Common quota of all cards without one of their own; [`Bytes::MAX`] for no limit.
    pub(crate) const fn common(&self) -> Bytes {
        self.common
    }

    /// Quota of the session on one card; [`Bytes::MAX`] for no limit.
    pub(crate) fn on(&self, gpu: GpuId) -> Bytes {
        self.by_card.get(gpu).copied().unwrap_or(self.common)
    }

    pub(crate) const fn may_oversubscribe(&self) -> bool {
        self.oversubscribe
    }
}

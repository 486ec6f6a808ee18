//! Quotas of one session.

use gpushare_proto::{Bytes, GpuId};

use crate::values::small_map::ByGpu;

/// Quota of a session on each card, and whether it may use more memory than a card's capacity.
#[derive(Clone, Debug)]
pub(crate) struct Quota {
    /// Quota on each card without one of its own; [`Bytes::MAX`] for none.
    common: Bytes,
    by_card: ByGpu<Bytes>,
    oversubscribe: bool,
}

impl Quota {
    pub(crate) fn new(limit: Option<Bytes>, oversubscribe: bool) -> Self {
        Self { common: limit.unwrap_or(Bytes::MAX), by_card: ByGpu::default(), oversubscribe }
    }

    /// Changes the common quota, and keeps those of single cards.
    pub(crate) fn set_common(&mut self, limit: Option<Bytes>, oversubscribe: bool) {
        (self.common, self.oversubscribe) = (limit.unwrap_or(Bytes::MAX), oversubscribe);
    }

    /// Sets the quota on one card; `None` for no limit there.
    pub(crate) fn set_on(&mut self, gpu: GpuId, limit: Option<Bytes>) {
        self.by_card.insert(gpu, limit.unwrap_or(Bytes::MAX));
    }

    /// Common quota; [`Bytes::MAX`] for none.
    pub(crate) const fn common(&self) -> Bytes {
        self.common
    }

    /// Quota on one card; [`Bytes::MAX`] for none.
    pub(crate) fn on(&self, gpu: GpuId) -> Bytes {
        self.by_card.get(gpu).copied().unwrap_or(self.common)
    }

    pub(crate) const fn may_oversubscribe(&self) -> bool {
        self.oversubscribe
    }
}

//! Queue of memory requests that cannot be decided yet (see reserve.rs for the reasons).

use gpushare_core::Kind;
use gpushare_proto::{Bytes, GpuId, Nanos, RequestId};

use crate::connections::ConnectionId;

/// Largest number of waiting requests of one connection. A thread has one at a time, so more is abuse.
const MOST: usize = 256;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Reservation {
    pub(crate) request: RequestId,
    pub(crate) gpu: GpuId,
    pub(crate) bytes: Bytes,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) connection: ConnectionId,
    pub(crate) reservation: Reservation,
    /// Point in monotonic time at which the request first found too little free memory.
    pub(crate) short_since: Option<Nanos>,
}

#[derive(Debug, Default)]
pub(crate) struct Postponed(Vec<Waiting>);

impl Postponed {
    /// Adds a memory request, unless its connection has too many waiting ones.
    pub(crate) fn add(&mut self, waiting: Waiting) -> Result<(), String> {
        let own = self.0.iter().filter(|of| of.connection == waiting.connection);
        if own.count() >= MOST {
            return Err(format!("{MOST} memory requests of the process wait already"));
        }
        self.0.push(waiting);
        Ok(())
    }

    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.0.push(waiting);
    }

    pub(crate) fn take(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.0)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.0.iter()
    }

    pub(crate) fn forget(&mut self, connection: ConnectionId) {
        self.0.retain(|of| of.connection != connection);
    }
}

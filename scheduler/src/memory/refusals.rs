//! The last refused memory requests of each session, and the limiter of their log lines.

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::explain::{KEPT_REFUSALS, RefusalView};
use gpushare_proto::page::MemoryRefusal;
use gpushare_proto::{ClientId, GpuId, Nanos, SessionId};

use crate::log::limiter::LogLimiter;

#[derive(Debug, Default)]
pub(crate) struct Refusals {
    kept: BTreeMap<SessionId, VecDeque<Refused>>,
    /// Limiter of log lines about refused requests.
    pub(crate) log: LogLimiter<SessionId>,
}

#[derive(Clone, Copy, Debug)]
struct Refused {
    at: Nanos,
    client: ClientId,
    pid: u32,
    gpu: GpuId,
    refusal: MemoryRefusal,
}

impl Refusals {
    /// Adds a refused request, and discards the session's oldest one beyond [`KEPT_REFUSALS`].
    pub(crate) fn keep(
        &mut self,
        at: Nanos,
        session: SessionId,
        (client, pid): (ClientId, u32),
        gpu: GpuId,
        refusal: MemoryRefusal,
    ) {
        let kept = self.kept.entry(session).or_default();
        if kept.len() >= KEPT_REFUSALS {
            kept.pop_front();
        }
        kept.push_back(Refused { at, client, pid, gpu, refusal });
    }

    /// Returns the last refused requests of a session for `gpushare-ctl explain`, the oldest first.
    pub(crate) fn views(&self, session: SessionId, now: Nanos) -> Vec<RefusalView> {
        let view = |&Refused { at, client, pid, gpu, refusal }: &Refused| RefusalView {
            ago_ns: now - at,
            client,
            pid,
            gpu,
            refusal,
        };
        let kept = self.kept.get(&session);
        kept.into_iter().flatten().map(view).collect()
    }

    pub(crate) fn forget(&mut self, session: SessionId) {
        self.kept.remove(&session);
        self.log.remove(&session);
    }
}

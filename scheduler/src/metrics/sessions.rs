//! Sessions on the metrics page. The first thousand have their own rows, and all others share the row
//! `other`. So the number of rows is bounded.

use std::collections::BTreeMap;

use gpushare_proto::admin::SessionGpuView;
use gpushare_proto::{Bytes, GpuId, Nanos};

use super::picture::SessionPicture;

/// Largest number of sessions with rows of their own.
pub(super) const MOST: usize = 1000;
/// Label of the row for all other sessions, as number and as name.
const OTHER: &str = "other";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SessionRow {
    /// Number of the session, or `other` for the shared row.
    pub(super) session: String,
    pub(super) name: String,
    /// Memory quota on each card; `None` for no quota, and for the shared row.
    pub(super) quota: Option<Bytes>,
    pub(super) processes: u64,
    pub(super) refusals: u64,
    pub(super) gpu_time: Nanos,
    pub(super) waited: Nanos,
    pub(super) moved: Bytes,
    pub(super) cards: BTreeMap<GpuId, Usage>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) allocated: Bytes,
    pub(super) leased: Bytes,
    pub(super) peak: Bytes,
}

/// Returns rows for the first `most` sessions, and one shared row for the others. Without `names` the rows
/// have no names.
pub(super) fn rows(sessions: &[SessionPicture], most: usize, names: bool) -> Vec<SessionRow> {
    let (own, rest) = sessions.split_at(most.min(sessions.len()));
    let mut rows: Vec<SessionRow> = own.iter().map(SessionRow::of).collect();
    if !rest.is_empty() {
        let mut other =
            SessionRow { session: OTHER.to_owned(), name: OTHER.to_owned(), ..SessionRow::default() };
        rest.iter().for_each(|session| other.add(session));
        rows.push(other);
    }
    if !names {
        rows.iter_mut().for_each(|row| row.name.clear());
    }
    rows
}

impl SessionRow {
    fn of(session: &SessionPicture) -> Self {
        let mut row = Self {
            session: session.state.session.0.to_string(),
            name: session.name.clone(),
            quota: session.state.memory_limit_bytes,
            ..Self::default()
        };
        row.add(session);
        row
    }

    pub(super) fn labels(&self) -> Vec<String> {
        vec![self.session.clone(), self.name.clone()]
    }

    fn add(&mut self, SessionPicture { state, .. }: &SessionPicture) {
        self.processes += state.clients.len() as u64;
        self.refusals = self.refusals.saturating_add(state.refusals);
        self.gpu_time += state.gpu_time_ns;
        self.waited += state.waited_ns;
        self.moved += state.moved_bytes;
        for &SessionGpuView { gpu, allocated_bytes, leased_bytes, peak_bytes, .. } in &state.gpus {
            let usage = self.cards.entry(gpu).or_default();
            usage.allocated += allocated_bytes;
            usage.leased += leased_bytes;
            usage.peak += peak_bytes;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use gpushare_core::snapshot::SessionSnapshot;
    use gpushare_proto::SessionId;
    use gpushare_proto::admin::LockView;

    use super::*;

    /// Session with 1 GiB on the first card and three refusals.
    pub(in crate::metrics) fn session(id: u64) -> SessionPicture {
        SessionPicture {
            name: format!("session-{id}"),
            state: SessionSnapshot {
                session: SessionId(id),
                memory_limit_bytes: Some(Bytes::gib(4)),
                gpus: vec![SessionGpuView {
                    gpu: GpuId(0),
                    limit_bytes: None,
                    allocated_bytes: Bytes::gib(1),
                    leased_bytes: Bytes::gib(2),
                    peak_bytes: Bytes::gib(3),
                }],
                clients: Vec::new(),
                lock: LockView::Idle,
                waits_for: None,
                waited_ns: Nanos::from_millis(1500),
                held_ns: Nanos::ZERO,
                gpu_time_ns: Nanos::from_millis(2500),
                moved_bytes: Bytes::mib(5),
                refusals: 3,
            },
        }
    }

    #[test]
    fn sessions_beyond_the_most_are_shown_together() {
        let sessions: Vec<_> = (1..=5).map(session).collect();
        let shown = rows(&sessions, 2, true);
        let names: Vec<_> = shown.iter().map(|row| row.name.as_str()).collect();
        assert_eq!(names, ["session-1", "session-2", "other"]);
        assert_eq!(shown[0].quota, Some(Bytes::gib(4)));
        assert_eq!((shown[2].quota, shown[2].refusals), (None, 9));
        assert_eq!(shown[2].cards[&GpuId(0)].allocated, Bytes::gib(3));
    }

    #[test]
    fn there_is_no_sum_of_no_sessions() {
        assert_eq!(rows(&[session(1), session(2)], 2, true).len(), 2);
        assert_eq!(rows(&[], 2, true), []);
    }
}

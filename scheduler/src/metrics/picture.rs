//! Copy of the daemon's figures for the metrics. The last figures of ended sessions are kept for five
//! minutes, so that a scraper sees the usage of a short job.

use std::collections::VecDeque;

use gpushare_core::snapshot::{GpuSnapshot, SessionSnapshot};
use gpushare_proto::Nanos;
use gpushare_proto::admin::{CopiesView, ResidenceView};
use gpushare_proto::tenant::GpuInfo;

#[derive(Clone, Debug, Default)]
pub(crate) struct Picture {
    pub(crate) uptime: Nanos,
    /// Whether the daemon gives grants, instead of only waiting for processes of the last daemon.
    pub(crate) ready: bool,
    /// Number of clients of the last daemon that are neither reconnected nor dead.
    pub(crate) recovering: u32,
    pub(crate) cards: Vec<CardPicture>,
    /// Open sessions by number, then recently ended sessions, the latest first.
    pub(crate) sessions: Vec<SessionPicture>,
    /// Places of the remapped memory of open sessions.
    pub(crate) residences: Vec<ResidenceView>,
    pub(crate) copies: CopiesView,
    pub(crate) audit: AuditPicture,
    /// Number of lines missing in the log.
    pub(crate) lost_log_lines: u64,
    /// Number of open sessions at the beginning of `sessions`.
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

/// Duration for which the last figures of an ended session are shown.
pub(super) const GRACE: Nanos = Nanos::from_secs(300);
/// Largest number of ended sessions that are shown.
pub(super) const MOST_ENDED: usize = 256;

/// Recently ended sessions in the order of their ends, each with the point in monotonic time of its end.
#[derive(Debug, Default)]
pub(crate) struct Ended(VecDeque<(Nanos, SessionPicture)>);

impl Ended {
    pub(crate) fn add(&mut self, now: Nanos, session: SessionPicture) {
        self.0.push_back((now, session));
        self.forget_before(now);
    }

    /// Returns the ended sessions that are shown at `now`, the latest first.
    pub(crate) fn at(&mut self, now: Nanos) -> impl Iterator<Item = &SessionPicture> {
        self.forget_before(now);
        self.0.iter().rev().map(|(_, session)| session)
    }

    fn forget_before(&mut self, now: Nanos) {
        let is_over = |at: Nanos| now - at >= GRACE;
        while self.0.len() > MOST_ENDED || self.0.front().is_some_and(|(at, _)| is_over(*at)) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::sessions::tests::session;

    use super::*;

    fn shown(ended: &mut Ended, seconds: u64) -> Vec<u64> {
        ended
            .at(Nanos::from_secs(seconds))
            .map(|session| session.state.session.0)
            .collect()
    }

    #[test]
    fn an_ended_session_is_shown_for_five_minutes() {
        let mut ended = Ended::default();
        ended.add(Nanos::from_secs(10), session(1));
        ended.add(Nanos::from_secs(20), session(2));
        assert_eq!(shown(&mut ended, 309), [2, 1]);
        assert_eq!(shown(&mut ended, 310), [2]);
        assert_eq!(shown(&mut ended, 320), [0; 0]);
    }

    #[test]
    fn only_so_many_ended_sessions_are_kept() {
        let mut ended = Ended::default();
        (0..1000).for_each(|n| ended.add(Nanos::from_secs(1), session(n)));
        let shown = shown(&mut ended, 1);
        assert_eq!((shown.len(), shown[0]), (MOST_ENDED, 999));
    }
}

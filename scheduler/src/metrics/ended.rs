//! Sessions that are over, for as long as it takes to be read: most scrapers come once a minute or more often, and
//! the last figures of a job are those that people want.

use std::collections::VecDeque;

use gpushare_proto::Nanos;

use super::picture::SessionPicture;

/// How long the last figures of a session are shown.
pub(super) const GRACE: Nanos = Nanos::from_secs(300);
/// Of how many sessions.
pub(super) const MOST: usize = 256;

/// The sessions that ended last, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Ended(VecDeque<(Nanos, SessionPicture)>);

impl Ended {
    /// A session ends at `now` with these figures.
    pub(crate) fn add(&mut self, now: Nanos, session: SessionPicture) {
        self.0.push_back((now, session));
        self.forget_before(now);
    }

    /// Those to show at `now`, the last one first.
    pub(crate) fn at(&mut self, now: Nanos) -> impl Iterator<Item = &SessionPicture> {
        self.forget_before(now);
        self.0.iter().rev().map(|(_, session)| session)
    }

    fn forget_before(&mut self, now: Nanos) {
        while self.0.front().is_some_and(|(at, _)| now - *at >= GRACE || self.0.len() > MOST) {
            self.0.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::tenants::tests::session;

    use super::*;

    fn shown(ended: &mut Ended, seconds: u64) -> Vec<u64> {
        ended
            .at(Nanos::from_secs(seconds))
            .map(|session| session.state.session.0)
            .collect()
    }

    #[test]
    fn a_session_that_is_over_is_shown_for_five_minutes() {
        let mut ended = Ended::default();
        ended.add(Nanos::from_secs(10), session(1));
        ended.add(Nanos::from_secs(20), session(2));
        assert_eq!(shown(&mut ended, 309), [2, 1]);
        assert_eq!(shown(&mut ended, 310), [2]);
        assert_eq!(shown(&mut ended, 320), [0; 0]);
    }

    #[test]
    fn many_that_end_at_once_are_not_all_kept() {
        let mut ended = Ended::default();
        (0..1000).for_each(|n| ended.add(Nanos::from_secs(1), session(n)));
        let shown = shown(&mut ended, 1);
        assert_eq!((shown.len(), shown[0]), (MOST, 999));
    }
}

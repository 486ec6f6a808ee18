//! After a restart: whose return is awaited before anything is granted. Clients of the last daemon may be running
//! under its grants; until each of them is back or dead, a grant of ours could put two holders on one card.

use std::collections::BTreeSet;

use gpushare_proto::{ClientId, Nanos};

/// A returned client announces its cards right after it joined; this long is waited for that.
const ANNOUNCEMENT: Nanos = Nanos::from_millis(50);

/// Who is still awaited.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    expected: BTreeSet<ClientId>,
    started: Nanos,
    not_before: Nanos,
    over: bool,
}

impl Recovery {
    /// Waits for `expected`, at least until `started + shortest` if there are any.
    pub(crate) fn new(expected: BTreeSet<ClientId>, started: Nanos, shortest: Nanos) -> Self {
        Self {
            over: expected.is_empty(),
            expected,
            started,
            not_before: started + shortest,
        }
    }

    /// Whether grants must still wait.
    pub(crate) const fn is_running(&self) -> bool {
        !self.over
    }

    /// How many clients are awaited.
    pub(crate) fn awaited(&self) -> u32 {
        u32::try_from(self.expected.len()).unwrap_or(u32::MAX)
    }

    /// A client joined; whether it is one of the last daemon's.
    pub(crate) fn returned(&mut self, client: ClientId, now: Nanos) -> bool {
        let expected = self.expected.remove(&client);
        if expected {
            self.not_before = self.not_before.max(now + ANNOUNCEMENT);
        }
        expected
    }

    /// A client is dead.
    pub(crate) fn gone(&mut self, client: ClientId) {
        self.expected.remove(&client);
    }

    /// Ends the recovery if it is time; how long it took if it ends now.
    pub(crate) fn end(&mut self, now: Nanos) -> Option<Nanos> {
        if self.over || !self.expected.is_empty() || now < self.not_before {
            return None;
        }
        self.over = true;
        Some(now - self.started)
    }

    /// When time alone ends it.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        (!self.over && self.expected.is_empty()).then_some(self.not_before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    #[test]
    fn a_first_daemon_waits_for_nobody() {
        assert!(!Recovery::new(BTreeSet::new(), Nanos(0), SECOND).is_running());
    }

    #[test]
    fn the_last_one_back_has_time_to_say_what_it_has() {
        let mut recovery = Recovery::new([ClientId(1), ClientId(2)].into(), Nanos(0), SECOND);
        recovery.gone(ClientId(2));
        assert_eq!(
            (recovery.end(SECOND), recovery.deadline()),
            (None, None),
            "client 1 is awaited"
        );
        let late = Nanos::from_secs(9);
        assert!(recovery.returned(ClientId(1), late));
        assert!(!recovery.returned(ClientId(1), late));
        assert_eq!(recovery.end(late), None);
        assert_eq!(recovery.deadline(), Some(late + ANNOUNCEMENT));
        assert_eq!(recovery.end(late + ANNOUNCEMENT), Some(late + ANNOUNCEMENT));
        assert!(!recovery.is_running());
    }
}

//! Idleness of a session, after so long of which it is frozen.
//!
//! ```text
//!   turn ── LOOK ──▶ asked for a proof ── the process proves that it is idle ──▶ lock given back
//!                                                                                    │
//!   idle since then ── freeze_after ──▶ due: frozen, once nothing stands in the way ◀┘
//! ```
//!
//! An open gate says nothing of work. So a session that is to be frozen gives the lock back when it is idle, even
//! where nobody else wants it. It is asked for the proof only once its turn has lasted for a while. Then a program
//! that pauses now and then hands its lock over seldom.

use gpushare_proto::Nanos;

use crate::events::Event;

/// Longest time from the beginning of a turn until its process is asked to prove that it is idle.
const LOOK: Nanos = Nanos::from_secs(5);
/// Part of the time to the freeze after which that happens at the latest.
const PART: u64 = 8;

/// Returns whether a process shows by an event that its program does something, though perhaps nothing at the gate.
pub(crate) const fn is_sign_of_life(event: &Event) -> bool {
    matches!(
        event,
        Event::Attached { .. }
            | Event::Contexts { .. }
            | Event::Reserve { .. }
            | Event::ReservePiece { .. }
            | Event::ReserveFixed { .. }
            | Event::Fixed { .. }
            | Event::Returned { .. }
            | Event::Room { .. }
            | Event::RefusedHere { .. }
            | Event::Called { .. }
            | Event::Wait { .. }
    )
}

/// Idleness of one session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Idle {
    /// Time for which the session must have been idle; `None` if it is not frozen for that.
    freeze_after: Option<Nanos>,
    /// Point in time since which the session is idle and not frozen.
    since: Option<Nanos>,
}

impl Idle {
    /// Sets the time after which the session is frozen.
    pub(crate) fn freeze_after(&mut self, time: Option<Nanos>) {
        self.freeze_after = time;
        if time.is_none() {
            self.since = None;
        }
    }

    /// Whether the session is frozen after a while.
    pub(crate) const fn is_watched(&self) -> bool {
        self.freeze_after.is_some()
    }

    /// Point in time since which the session is idle and not frozen.
    pub(crate) const fn since(&self) -> Option<Nanos> {
        self.since
    }

    /// Notes whether the session is idle now.
    pub(crate) fn note(&mut self, is_idle: bool, now: Nanos) {
        self.since = is_idle.then(|| self.since.unwrap_or(now));
    }

    /// Notes that the session has done something. Its idle time begins again.
    pub(crate) fn lives(&mut self) {
        self.since = None;
    }

    /// Point in time at which the session is to be frozen.
    fn end(&self) -> Option<Nanos> {
        Some(self.since? + self.freeze_after?)
    }

    /// Whether the session was idle for so long that it is to be frozen.
    pub(crate) fn is_due(&self, now: Nanos) -> bool {
        self.end().is_some_and(|end| end <= now)
    }

    /// Point in time from which a session with a turn since `granted` must prove that it is idle.
    fn look(&self, granted: Nanos) -> Option<Nanos> {
        let part = Nanos(self.freeze_after?.0 / PART);
        Some(granted + part.min(LOOK))
    }

    /// Whether a session with a turn since `granted` is to prove that it is idle.
    pub(crate) fn asks(&self, granted: Nanos, now: Nanos) -> bool {
        self.look(granted).is_some_and(|at| at <= now)
    }

    /// Next point in time at which something changes. `granted` is the beginning of the session's turn.
    pub(crate) fn deadline(&self, granted: Option<Nanos>, now: Nanos) -> Option<Nanos> {
        let look = granted.and_then(|granted| self.look(granted));
        self.end().into_iter().chain(look).filter(|&at| at > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: fn(u64) -> Nanos = Nanos::from_secs;

    #[test]
    fn a_session_is_due_once_it_was_idle_for_so_long() {
        let mut idle = Idle::default();
        idle.note(true, SECOND(1));
        assert_eq!((idle.is_due(SECOND(9999)), idle.deadline(None, SECOND(1))), (false, None));
        idle.freeze_after(Some(SECOND(10)));
        idle.note(true, SECOND(5));
        assert_eq!(idle.deadline(None, SECOND(5)), Some(SECOND(11)));
        assert!(!idle.is_due(SECOND(10)) && idle.is_due(SECOND(11)));
        assert_eq!(idle.deadline(None, SECOND(11)), None);
    }

    #[test]
    fn idle_time_begins_again_after_work_and_after_a_sign_of_life() {
        let mut idle = Idle::default();
        idle.freeze_after(Some(SECOND(10)));
        idle.note(true, SECOND(1));
        idle.note(false, SECOND(2));
        idle.note(true, SECOND(3));
        assert_eq!(idle.since(), Some(SECOND(3)));
        idle.lives();
        idle.note(true, SECOND(4));
        assert_eq!(idle.deadline(None, SECOND(4)), Some(SECOND(14)));
    }

    #[test]
    fn a_turn_is_looked_at_after_a_part_of_the_time_and_after_seconds_at_most() {
        let mut idle = Idle::default();
        assert!(!idle.asks(Nanos::ZERO, SECOND(9999)));
        idle.freeze_after(Some(SECOND(8)));
        assert_eq!(idle.deadline(Some(SECOND(1)), SECOND(1)), Some(SECOND(2)));
        assert!(!idle.asks(SECOND(1), SECOND(1)) && idle.asks(SECOND(1), SECOND(2)));
        idle.freeze_after(Some(SECOND(600)));
        assert_eq!(idle.deadline(Some(SECOND(1)), SECOND(1)), Some(SECOND(6)));
    }
}

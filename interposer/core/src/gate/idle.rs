//! The idle grace: how long a session that holds the lock must be quiet before it counts as idle. The grace
//! begins at 10 ms, doubles after a wrong release and halves after a right one.
//!
//! ```text
//!   release for idleness ──── a thread wants the lock within 100 ms ──▶ wrong: twice as long, 50 ms at most
//!                        └─── later or not at all ────────────────────▶ right: half as long, 5 ms at least
//! ```
//!
//! The point in time counts at which a thread wants the lock, because the time of the grant depends on other
//! sessions. The module is pure, so that the simulator's processes use it too.

use gpushare_proto::Nanos;

const FIRST: Nanos = Nanos::from_millis(10);
const LEAST: Nanos = Nanos::from_millis(5);
const MOST: Nanos = Nanos::from_millis(50);
/// Longest drain of a process without work in flight.
const IMMEDIATE: Nanos = Nanos::from_millis(1);
/// Time within which a process that wants the lock again proves that it was not idle.
const SOON: Nanos = Nanos(2 * MOST.0);

/// Idle grace of a process: how long it must be quiet before it counts as idle.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    span: Nanos,
    /// Point in time of the last release for idleness; `None` once that release is judged.
    released: Option<Nanos>,
}

impl Default for Grace {
    fn default() -> Self {
        Self { span: FIRST, released: None }
    }
}

impl Grace {
    /// Returns the idle grace: how long no thread may be in the gate before the process counts as idle.
    pub const fn span(&self) -> Nanos {
        self.span
    }

    /// Returns how long the process must stay quiet after a drain of `drain`. Work that was in flight shows that
    /// the process was busy: a thread that waited for that work comes soon.
    pub fn pause_after(&self, drain: Nanos) -> Nanos {
        if drain > IMMEDIATE { self.span } else { Nanos::ZERO }
    }

    /// Doubles the idle grace, after the check showed that the process was not idle.
    pub fn extend(&mut self) {
        self.span = Nanos(self.span.0 * 2).min(MOST);
    }

    /// Records at `now` that the process released the lock for idleness.
    pub fn note_release(&mut self, now: Nanos) {
        self.released = Some(now);
    }

    /// Doubles the grace if a thread `wanted` the lock soon after the last release, and otherwise halves it.
    pub fn judge(&mut self, wanted: Nanos) {
        let Some(released) = self.released.take() else { return };
        if wanted >= released && wanted - released < SOON {
            self.extend();
        } else {
            self.span = Nanos(self.span.0 / 2).max(LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    #[test]
    fn the_span_doubles_if_the_lock_is_wanted_soon_and_halves_otherwise() {
        let mut grace = Grace::default();
        for (released, wanted, span, why) in [
            (1000, 1030, 20, "wanted at once"),
            (2000, 2100, 10, "a pause of a person"),
            (3000, 2000, 5, "not wanted"),
        ] {
            grace.note_release(ms(released));
            grace.judge(ms(wanted));
            assert_eq!(grace.span(), ms(span), "{why}");
        }
    }

    #[test]
    fn a_process_with_work_in_flight_must_stay_quiet_after_that_work() {
        let mut grace = Grace::default();
        assert_eq!(grace.pause_after(Nanos(100_000)), Nanos::ZERO, "nothing was in flight");
        assert_eq!(grace.pause_after(ms(50)), ms(10));
        grace.extend();
        assert_eq!(grace.pause_after(ms(2)), ms(20));
    }

    #[test]
    fn each_release_for_idleness_is_judged_once() {
        let mut grace = Grace::default();
        grace.judge(ms(1000));
        assert_eq!(grace.span(), FIRST);
        grace.note_release(ms(1000));
        grace.judge(ms(1001));
        grace.judge(ms(1001));
        assert_eq!(grace.span(), ms(20));
    }

    #[test]
    fn the_grace_stays_within_its_bounds() {
        let mut grace = Grace::default();
        (0..9).for_each(|_| grace.extend());
        assert_eq!(grace.span(), MOST);
        for _ in 0..9 {
            grace.note_release(ms(1000));
            grace.judge(Nanos::ZERO);
        }
        assert_eq!(grace.span(), LEAST);
    }
}

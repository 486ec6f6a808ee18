//! The idle grace: how long a session that holds the lock must be quiet before it counts as idle. The grace
//! doubles after a wrong release and halves after a right one.
//!
//! ```text
//!   release for idleness ──── a thread wants the lock soon ──▶ wrong: twice as long
//!                        └─── later or not at all ───────────▶ right: half as long
//!
//!                              first     least    most     soon
//!   elsewhere                  10 ms     5 ms     50 ms    100 ms
//!   where switches overlap      4 ms     2 ms     10 ms     20 ms    a wrong release costs little there
//! ```
//!
//! The point in time counts at which a thread wants the lock, because the time of the grant depends on other
//! sessions. The module is pure, so that the simulator's processes use it too.

use gpushare_proto::Nanos;

/// Longest drain of a process without work in flight.
const IMMEDIATE: Nanos = Nanos::from_millis(1);

/// Bounds of an idle grace.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    first: Nanos,
    least: Nanos,
    most: Nanos,
}

/// Bounds where a wrong release may cost a move of memory.
const USUAL: Bounds = Bounds {
    first: Nanos::from_millis(10),
    least: Nanos::from_millis(5),
    most: Nanos::from_millis(50),
};
/// Bounds where switches overlap.
const OVERLAPPING: Bounds = Bounds {
    first: Nanos::from_millis(4),
    least: Nanos::from_millis(2),
    most: Nanos::from_millis(10),
};

impl Bounds {
    /// Time within which a process that wants the lock again proves that it was not idle.
    const fn soon(self) -> Nanos {
        Nanos(2 * self.most.0)
    }
}

/// Idle grace of a process: how long it must be quiet before it counts as idle.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    span: Nanos,
    bounds: Bounds,
    /// Point in time of the last release for idleness; `None` once that release is judged.
    released: Option<Nanos>,
}

impl Default for Grace {
    fn default() -> Self {
        Self::within(USUAL)
    }
}

impl Grace {
    const fn within(bounds: Bounds) -> Self {
        Self { span: bounds.first, bounds, released: None }
    }

    /// Creates the idle grace of a process whose switches overlap.
    pub const fn overlapping() -> Self {
        Self::within(OVERLAPPING)
    }

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
        self.span = Nanos(self.span.0 * 2).min(self.bounds.most);
    }

    /// Records at `now` that the process released the lock for idleness.
    pub fn note_release(&mut self, now: Nanos) {
        self.released = Some(now);
    }

    /// Doubles the grace if a thread `wanted` the lock soon after the last release, and otherwise halves it.
    pub fn judge(&mut self, wanted: Nanos) {
        let Some(released) = self.released.take() else { return };
        if wanted >= released && wanted - released < self.bounds.soon() {
            self.extend();
        } else {
            self.span = Nanos(self.span.0 / 2).max(self.bounds.least);
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
    fn where_switches_overlap_a_short_pause_is_a_right_release() {
        let mut grace = Grace::overlapping();
        for (released, wanted, span) in
            [(100, 130, 2), (200, 210, 4), (300, 319, 8), (400, 419, 10), (500, 501, 10)]
        {
            grace.note_release(ms(released));
            grace.judge(ms(wanted));
            assert_eq!(grace.span(), ms(span));
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
        assert_eq!(grace.span(), ms(10));
        grace.note_release(ms(1000));
        grace.judge(ms(1001));
        grace.judge(ms(1001));
        assert_eq!(grace.span(), ms(20));
    }

    #[test]
    fn the_grace_stays_within_its_bounds() {
        let mut grace = Grace::default();
        (0..9).for_each(|_| grace.extend());
        assert_eq!(grace.span(), USUAL.most);
        for _ in 0..9 {
            grace.note_release(ms(1000));
            grace.judge(Nanos::ZERO);
        }
        assert_eq!(grace.span(), USUAL.least);
    }
}

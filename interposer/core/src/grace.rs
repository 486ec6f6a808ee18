//! How long a holder must be quiet before it is taken for idle. It begins at 10 ms, grows when a release was regretted, and shrinks
//! when it was not.
//!
//! ```text
//!   gives the lock back ──── within 100 ms a thread wants it again ──▶ regretted: twice as long, 50 ms at most
//!                       └─── later, or nobody does ──────────────────▶ right: half as long, 5 ms at least
//! ```
//!
//! When the thread came counts, and not when it was granted: that is as late as the others' turns are long. Pure, so that the
//! simulator's processes wait as these do.

use gpushare_proto::Nanos;

const FIRST: Nanos = Nanos::from_millis(10);
const LEAST: Nanos = Nanos::from_millis(5);
const MOST: Nanos = Nanos::from_millis(50);
/// Who comes back this soon was not idle.
const SOON: Nanos = Nanos(2 * MOST.0);

/// The idle grace of a process.
#[derive(Clone, Copy, Debug)]
pub struct Grace {
    span: Nanos,
    /// When the lock was last given back for idleness, until that is judged.
    gave_back: Option<Nanos>,
}

impl Default for Grace {
    fn default() -> Self {
        Self { span: FIRST, gave_back: None }
    }
}

impl Grace {
    /// How long nobody must have come by.
    #[must_use]
    pub const fn span(&self) -> Nanos {
        self.span
    }

    /// It was taken for idle and was not.
    pub fn regret(&mut self) {
        self.span = Nanos(self.span.0 * 2).min(MOST);
    }

    /// The lock was given back for idleness.
    pub fn gave_back(&mut self, now: Nanos) {
        self.gave_back = Some(now);
    }

    /// The lock is here again; a thread last came for it at `came`. Whether it was right to give it back.
    pub fn judge(&mut self, came: Nanos) {
        let Some(idle) = self.gave_back.take() else { return };
        if came >= idle && came - idle < SOON {
            self.regret();
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
    fn who_comes_back_soon_is_given_longer_however_late_its_turn_is() {
        let mut grace = Grace::default();
        for (idle, came, span, why) in [
            (1000, 1030, 20, "it came back at once"),
            (2000, 2100, 10, "a pause of a person"),
            (3000, 2000, 5, "nobody came"),
        ] {
            grace.gave_back(ms(idle));
            grace.judge(ms(came));
            assert_eq!(grace.span(), ms(span), "{why}");
        }
    }

    #[test]
    fn what_was_not_given_back_for_idleness_is_not_judged_and_nothing_is_judged_twice() {
        let mut grace = Grace::default();
        grace.judge(ms(1000));
        assert_eq!(grace.span(), FIRST);
        grace.gave_back(ms(1000));
        grace.judge(ms(1001));
        grace.judge(ms(1001));
        assert_eq!(grace.span(), ms(20));
    }

    #[test]
    fn the_grace_stays_within_its_bounds() {
        let mut grace = Grace::default();
        (0..9).for_each(|_| grace.regret());
        assert_eq!(grace.span(), MOST);
        for _ in 0..9 {
            grace.gave_back(ms(1000));
            grace.judge(Nanos::ZERO);
        }
        assert_eq!(grace.span(), LEAST);
    }
}

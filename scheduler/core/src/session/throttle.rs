//! A compute limit: how much of the time a session may hold the lock.
//!
//! ```text
//!   tokens ▲      full: a part of the window, so that idle time is worth something, but not much
//!          │    ╱╲        ╱╲
//!          │   ╱  ╲      ╱  ╲      up while it does not hold:  limit
//!    slice ┼──╱────╲────╱────╲──   down while it holds:        1 − limit
//!        0 ┼─╱──────╲──╱──────╲─
//!          │ throttled  until a slice is there
//! ```
//!
//! Held time counts from the open gate to the end of the drain, so a long drain is paid back by a longer pause: what the session
//! gets in the long run is its limit, whatever its kernels are like.

use gpushare_proto::{Nanos, Percent};

use crate::config::Config;
use crate::gpu::quantum::SHORTEST;

/// Tokens are counted in ten thousandths of a nanosecond, as limits are in hundredths of a percent: nothing is rounded.
const FINE: i128 = 10_000;

/// The limit of one session, and what it has of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttle {
    limit: Percent,
    tokens: i128,
    at: Nanos,
    held: bool,
    waits: bool,
    throttled: bool,
    /// What must be saved up before it may run again.
    slice: Nanos,
}

impl Throttle {
    /// Below 100%; a limit of nothing is one of a hundredth of a percent, since never is what a pause is for.
    pub(crate) fn new(limit: Percent, now: Nanos, config: &Config) -> Self {
        Self {
            limit: limit.max(Percent(1)),
            tokens: 0,
            at: now,
            held: false,
            waits: false,
            throttled: false,
            slice: config.quantum_min,
        }
    }

    pub(crate) const fn limit(&self) -> Percent {
        self.limit
    }

    /// The same tokens under another limit.
    pub(crate) fn set(&mut self, limit: Percent, now: Nanos, config: &Config) {
        self.advance(now, config);
        self.limit = limit.max(Percent(1));
    }

    /// Whether nothing may be granted to it.
    pub(crate) const fn is_throttled(&self) -> bool {
        self.throttled
    }

    /// Time passes, in which it held the lock or not; from now on it is `held` or not, and `waits` for it or does not.
    pub(crate) fn run(&mut self, now: Nanos, held: bool, waits: bool, config: &Config) {
        self.advance(now, config);
        (self.held, self.waits) = (held, waits);
    }

    fn advance(&mut self, now: Nanos, config: &Config) {
        let elapsed = i128::from((now - self.at).0);
        self.at = self.at.max(now);
        self.tokens += elapsed * self.rate();
        if !self.held {
            self.tokens = self.tokens.min(self.full(config));
        }
    }

    /// Time passes. Whether it is throttled from now on; if so, until it has saved up for a turn of `slice`.
    pub(crate) fn judge(&mut self, now: Nanos, slice: Nanos, config: &Config) -> bool {
        self.advance(now, config);
        if self.tokens <= 0 {
            if !self.throttled {
                self.slice = slice;
            }
            self.throttled = true;
        } else if self.tokens >= self.slice() {
            self.throttled = false;
        }
        self.throttled
    }

    /// When time alone throttles it, or ends that.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let missing = match (self.throttled, self.held) {
            (true, false) => self.slice() - self.tokens,
            (false, true) => self.tokens,
            // While it drains, only the end of that says how much it must wait; while it waits, nothing is used up.
            (true, true) | (false, false) => return None,
        };
        let rate = self.rate().abs().max(1);
        let span = (missing.max(0) + rate - 1) / rate;
        Some(self.at + Nanos(u64::try_from(span).unwrap_or(u64::MAX)).max(Nanos(1)))
    }

    /// Tokens a nanosecond.
    fn rate(&self) -> i128 {
        i128::from(self.limit.0) - if self.held { FINE } else { 0 }
    }

    /// What idle time can be worth; a slice at least, or it could never run. To wait for others' turns is not to be idle: of what
    /// the longest of them takes nothing is lost, or who waits for long turns would never get as far as its limit.
    fn full(&self, config: &Config) -> i128 {
        let limit = i128::from(self.limit.0);
        let window = i128::from(config.limit_window.0) * limit;
        let carried = window * i128::from(config.limit_carry_over.0.min(10_000)) / FINE;
        let full = carried.max(self.slice());
        match self.waits {
            true => full.max(i128::from(config.quantum_max.0) * limit),
            false => full,
        }
    }

    fn slice(&self) -> i128 {
        i128::from(self.slice.max(SHORTEST).0) * FINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// A session that always has work and drains for `drain`; how long it held the lock in ten seconds.
    fn held_in_ten_seconds(limit: u32, drain: Nanos) -> Nanos {
        let config = Config::default();
        let mut throttle = Throttle::new(Percent(limit), Nanos(0), &config);
        let (mut now, mut held) = (Nanos(0), Nanos(0));
        throttle.judge(now, config.quantum_min, &config);
        while now < Nanos::from_secs(10) {
            now = throttle.deadline().unwrap();
            assert!(!throttle.judge(now, config.quantum_min, &config), "it may run");
            let from = now;
            throttle.run(now, true, false, &config);
            now = throttle.deadline().unwrap();
            assert!(throttle.judge(now, config.quantum_min, &config), "its slice is over");
            now += drain;
            throttle.run(now, false, false, &config);
            held += now.min(Nanos::from_secs(10)) - from;
        }
        held
    }

    #[test]
    fn whoever_always_has_work_gets_its_limit_within_two_points() {
        for limit in [500, 2500, 3000, 5000, 7500, 9500] {
            for drain in [Nanos::ZERO, ms(2), ms(10), ms(50)] {
                let percent_of_percent = held_in_ten_seconds(limit, drain).0 / 1_000_000;
                let error = percent_of_percent.abs_diff(u64::from(limit));
                assert!(error <= 200, "{limit} became {percent_of_percent} with drains of {drain}");
            }
        }
    }

    #[test]
    fn an_hour_of_idleness_is_worth_a_quarter_of_the_window() {
        let config = Config::default();
        let mut throttle = Throttle::new(Percent(4000), Nanos(0), &config);
        throttle.judge(Nanos::from_secs(3600), config.quantum_min, &config);
        throttle.run(Nanos::from_secs(3600), true, false, &config);
        let end = throttle.deadline().unwrap() - Nanos::from_secs(3600);
        assert_eq!(end, Nanos(166_666_667), "100 ms of tokens at a rate of 0.6");
    }

    #[test]
    fn who_is_out_of_tokens_saves_up_for_the_turn_that_it_needs() {
        let config = Config::default();
        let mut throttle = Throttle::new(Percent(1000), Nanos(0), &config);
        assert!(throttle.judge(Nanos(0), Nanos::from_secs(3), &config));
        assert_eq!(throttle.deadline(), Some(Nanos::from_secs(30)));
    }
}

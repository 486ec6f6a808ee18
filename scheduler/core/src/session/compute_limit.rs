//! Compute limits: the share of the time in which a session may hold the lock, kept by a token bucket.
//!
//! ```text
//!   tokens ▲      full: a part of the window, which idle time can save up
//!          │    ╱╲        ╱╲
//!          │   ╱  ╲      ╱  ╲      up while it does not hold:  limit
//!    slice ┼──╱────╲────╱────╲──   down while it holds:        1 − limit
//!        0 ┼─╱──────╲──╱──────╲─
//!          │ exhausted  until a slice is there
//! ```
//!
//! Held time counts from the open gate to the end of the drain. So a long drain is paid back by a longer
//! pause. In the long run a session gets its limit whatever its kernels are like.

use gpushare_proto::{GpuId, Nanos, Percent};

use crate::config::{Config, SHORTEST_QUANTUM};
use crate::values::gpu_set::GpuSet;
use crate::values::small_map::ByGpu;

/// Value from which on a compute limit limits nothing: 100%.
const WHOLE: Percent = Percent(10_000);

/// Compute limits of one session, by card. The lowest limit on the cards that the session uses applies.
#[derive(Clone, Debug, Default)]
pub(crate) struct ComputeLimits {
    by_card: ByGpu<Percent>,
    /// Token bucket of the limit that applies.
    bucket: Option<TokenBucket>,
    /// Token bucket from before the session left its cards with a limit. Overuse counts again when the
    /// session returns.
    parked: Option<TokenBucket>,
}

impl ComputeLimits {
    /// Sets or removes the compute limit on one card.
    pub(crate) fn set(&mut self, gpu: GpuId, limit: Option<Percent>) {
        match limit {
            Some(limit) => self.by_card.insert(gpu, limit),
            None => self.by_card.remove(gpu),
        };
    }

    /// Applies the lowest limit of the cards that the session `uses`.
    pub(crate) fn choose(&mut self, uses: GpuSet, now: Nanos, config: &Config) {
        if self.by_card.is_empty() && self.bucket.is_none() && self.parked.is_none() {
            return;
        }
        let limits = uses.into_iter().filter_map(|gpu| self.by_card.get(gpu)).copied();
        let lowest = limits.min().filter(|&limit| limit < WHOLE);
        match (&mut self.bucket, lowest) {
            (Some(bucket), Some(limit)) if bucket.limit() != limit => bucket.set(limit, now, config),
            (Some(_), Some(_)) | (None, None) => {}
            (None, Some(limit)) => {
                let mut bucket = self.parked.take().unwrap_or_else(|| TokenBucket::new(limit, now, config));
                bucket.set(limit, now, config);
                self.bucket = Some(bucket);
            }
            (Some(_), None) => {
                self.parked = self.bucket.take();
                if let Some(parked) = &mut self.parked {
                    parked.run(now, false, false, config);
                }
            }
        }
        if self.by_card.is_empty() {
            self.parked = None;
        }
    }

    /// Returns the compute limit that applies.
    pub(crate) fn in_force(&self) -> Option<Percent> {
        self.bucket.as_ref().map(TokenBucket::limit)
    }

    /// Whether the session has used up its compute limit for the present.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bucket.is_some_and(|bucket| bucket.is_exhausted())
    }

    /// Decides whether the compute limit is used up. `slice` is the time that the session must save up before
    /// it runs again.
    pub(crate) fn judge(&mut self, now: Nanos, slice: Nanos, config: &Config) {
        if let Some(bucket) = &mut self.bucket {
            bucket.judge(now, slice, config);
        }
    }

    /// Accounts the time so far. From now on the session holds the lock if `held`, and waits for it if
    /// `waits`.
    pub(crate) fn run(&mut self, now: Nanos, held: bool, waits: bool, config: &Config) {
        if let Some(bucket) = &mut self.bucket {
            bucket.run(now, held, waits, config);
        }
    }

    /// Gives back `time` for which the session held the lock beside another one.
    pub(crate) fn give_back(&mut self, time: Nanos) {
        if let Some(bucket) = &mut self.bucket {
            bucket.tokens += i128::from(time.0) * FINE;
        }
    }

    /// Point in time at which the limit is used up, or the session may run again, if no event comes before.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.bucket?.deadline()
    }
}

/// Number of tokens in a nanosecond. Limits are in hundredths of a percent, so nothing is rounded.
const FINE: i128 = 10_000;

/// Token bucket: the time for which a session may hold the lock.
#[derive(Clone, Copy, Debug)]
struct TokenBucket {
    limit: Percent,
    tokens: i128,
    at: Nanos,
    held: bool,
    waits: bool,
    exhausted: bool,
    /// Duration that the session must save up before it may run again.
    slice: Nanos,
}

impl TokenBucket {
    /// Creates a bucket of a limit below 100% with one slice in it, so that work which begins just then is not
    /// delayed twice. A limit of 0 becomes 0.01%: only a pause stops a session for good.
    fn new(limit: Percent, now: Nanos, config: &Config) -> Self {
        Self {
            limit: limit.max(Percent(1)),
            tokens: i128::from(config.quantum_min.0) * FINE,
            at: now,
            held: false,
            waits: false,
            exhausted: false,
            slice: config.quantum_min,
        }
    }

    const fn limit(&self) -> Percent {
        self.limit
    }

    /// Changes the limit and keeps the tokens.
    fn set(&mut self, limit: Percent, now: Nanos, config: &Config) {
        self.advance(now, config);
        self.limit = limit.max(Percent(1));
    }

    /// Whether the session must not be granted the lock for now.
    const fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    /// Accounts the time so far; from now on the lock is `held`, or the session `waits` for it.
    fn run(&mut self, now: Nanos, held: bool, waits: bool, config: &Config) {
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

    /// Accounts the time so far and returns whether the limit is used up. If so, `slice` must be saved up
    /// first.
    fn judge(&mut self, now: Nanos, slice: Nanos, config: &Config) -> bool {
        self.advance(now, config);
        if self.tokens <= 0 {
            if !self.exhausted {
                self.slice = slice;
            }
            self.exhausted = true;
        } else if self.tokens >= self.slice() {
            self.exhausted = false;
        }
        self.exhausted
    }

    /// Point in time at which `judge` will return another answer if no event comes before.
    fn deadline(&self) -> Option<Nanos> {
        let missing = match (self.exhausted, self.held) {
            (true, false) => self.slice() - self.tokens,
            (false, true) => self.tokens,
            // The end of a drain decides how long the session must wait; a session that waits uses nothing
            // up.
            (true, true) | (false, false) => return None,
        };
        let rate = self.rate().abs().max(1);
        let span = (missing.max(0) + rate - 1) / rate;
        Some(self.at + Nanos(u64::try_from(span).unwrap_or(u64::MAX)).max(Nanos(1)))
    }

    /// Number of tokens gained in a nanosecond.
    fn rate(&self) -> i128 {
        i128::from(self.limit.0) - if self.held { FINE } else { 0 }
    }

    /// Largest number of tokens that can be saved up: a part of the window, but at least a slice. While the
    /// session waits for the turns of others the bound is the longest quantum, since a session that waits is
    /// not idle.
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
        i128::from(self.slice.max(SHORTEST_QUANTUM).0) * FINE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Nanos {
        Nanos::from_millis(n)
    }

    /// Time that a session with endless work and drains of `drain` holds the lock in ten seconds.
    fn held_in_ten_seconds(limit: u32, drain: Nanos) -> Nanos {
        let config = Config::default();
        let mut bucket = TokenBucket::new(Percent(limit), Nanos(0), &config);
        bucket.tokens = 0;
        let (mut now, mut held) = (Nanos(0), Nanos(0));
        bucket.judge(now, config.quantum_min, &config);
        while now < Nanos::from_secs(10) {
            now = bucket.deadline().unwrap();
            assert!(!bucket.judge(now, config.quantum_min, &config), "it may run");
            let from = now;
            bucket.run(now, true, false, &config);
            now = bucket.deadline().unwrap();
            assert!(bucket.judge(now, config.quantum_min, &config), "its slice is over");
            now += drain;
            bucket.run(now, false, false, &config);
            held += now.min(Nanos::from_secs(10)) - from;
        }
        held
    }

    #[test]
    fn a_session_with_endless_work_gets_its_limit_within_two_points() {
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
        let mut bucket = TokenBucket::new(Percent(4000), Nanos(0), &config);
        bucket.judge(Nanos::from_secs(3600), config.quantum_min, &config);
        bucket.run(Nanos::from_secs(3600), true, false, &config);
        let end = bucket.deadline().unwrap() - Nanos::from_secs(3600);
        assert_eq!(end, Nanos(166_666_667), "100 ms of tokens at a rate of 0.6");
    }

    #[test]
    fn a_new_limit_begins_with_one_slice() {
        let config = Config::default();
        let mut bucket = TokenBucket::new(Percent(2000), Nanos(0), &config);
        assert!(!bucket.judge(Nanos(0), config.quantum_min, &config), "it need not save up first");
        bucket.run(Nanos(0), true, false, &config);
        assert_eq!(bucket.deadline(), Some(ms(25)), "20 ms of tokens at a rate of 0.8");
    }

    #[test]
    fn an_exhausted_session_saves_up_for_its_next_turn() {
        let config = Config::default();
        let mut bucket = TokenBucket::new(Percent(1000), Nanos(0), &config);
        bucket.tokens = 0;
        assert!(bucket.judge(Nanos(0), Nanos::from_secs(3), &config));
        assert_eq!(bucket.deadline(), Some(Nanos::from_secs(30)));
    }
}

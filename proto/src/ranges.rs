//! Ranges of settings: the same in the daemon's configuration file, in its flags and in `gpushare-ctl set`.

use std::fmt::Display;

use crate::units::{Bytes, Nanos, Percent};

/// Values that a setting may have, from the least to the greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range<T> {
    key: &'static str,
    least: T,
    most: T,
}

/// Value outside the range of its setting. Its message names the range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {least} to {most}, not {value}")]
pub struct OutOfRange {
    key: &'static str,
    least: String,
    most: String,
    value: String,
}

impl<T: Copy + PartialOrd + Display> Range<T> {
    const fn new(key: &'static str, least: T, most: T) -> Self {
        Self { key, least, most }
    }

    /// Returns a value if it is in the range.
    ///
    /// # Errors
    /// Names the range if the value is outside.
    pub fn check(&self, value: T) -> Result<T, OutOfRange> {
        if self.least <= value && value <= self.most {
            return Ok(value);
        }
        let (least, most, value) = (self.least.to_string(), self.most.to_string(), value.to_string());
        Err(OutOfRange { key: self.key, least, most, value })
    }

    /// Least value of the setting.
    pub const fn least(&self) -> T {
        self.least
    }

    /// Greatest value of the setting.
    pub const fn most(&self) -> T {
        self.most
    }
}

/// Defines the ranges, and the function that lists them.
macro_rules! ranges {
    ($($name:ident: $type:ty = $key:literal, $least:expr, $most:expr;)*) => {
        $(
            #[doc = concat!("Range of the setting `", $key, "`.")]
            pub const $name: Range<$type> = Range::new($key, $least, $most);
        )*

        /// Returns key, least and greatest value of each setting, as in the documentation.
        #[must_use]
        pub fn all() -> Vec<(&'static str, String, String)> {
            vec![$(($key, $name.least.to_string(), $name.most.to_string())),*]
        }
    };
}

/// Largest size of memory or of a file that a setting may name.
const MOST_BYTES: Bytes = Bytes::gib(1 << 20);
const MINUTE: Nanos = Nanos::from_secs(60);
const HOUR: Nanos = Nanos::from_secs(3600);
const ALL: Percent = Percent(10_000);

ranges! {
    // A shorter turn would be spent on handoffs alone.
    QUANTUM: Nanos = "quantum", Nanos::from_millis(1), HOUR;
    QUANTUM_MIN: Nanos = "quantum_min", Nanos::from_millis(1), MINUTE;
    QUANTUM_MAX: Nanos = "quantum_max", Nanos::from_millis(1), MINUTE;
    EPSILON: Percent = "epsilon", Percent(1), Percent(9_999);
    SWITCH_COST: Nanos = "switch_cost", Nanos::ZERO, Nanos::from_secs(1);
    // Of a launch or two, up to work that delays interactive sessions too much.
    DRAIN_TARGET: Nanos = "drain_target", Nanos(100_000), Nanos::from_secs(10);
    LATE_FACTOR: u32 = "late_factor", 1, 100;
    RETRY_MAX: Nanos = "retry_max", Nanos::from_millis(1), MINUTE;
    STUCK_TRIES: u32 = "stuck_tries", 1, 1_000;
    STUCK_AFTER: Nanos = "stuck_after", Nanos::from_millis(10), HOUR;
    PARALLEL_BELOW: Percent = "parallel_below", Percent(100), ALL;
    PARALLEL_AFTER: Nanos = "parallel_after", Nanos::ZERO, HOUR;
    CREDIT: Percent = "credit", Percent(0), ALL;
    TRICKLE: Percent = "trickle", Percent(1), Percent(5_000);
    BUDGET_MAX: Nanos = "budget_max", Nanos::ZERO, MINUTE;
    LIMIT_WINDOW: Nanos = "limit_window", Nanos::from_millis(10), MINUTE;
    LIMIT_CARRY_OVER: Percent = "limit_carry_over", Percent(0), ALL;
    LEASE_CHUNK: Bytes = "lease_chunk", Bytes::ZERO, Bytes::gib(16);
    BANDWIDTH: Bytes = "bandwidth_per_second", Bytes::mib(1), Bytes::gib(10_240);
    CONTEXT_RESERVE: Bytes = "context_reserve", Bytes::ZERO, Bytes::gib(16);
    // A smaller card or session would hold no allocation.
    CAPACITY: Bytes = "capacity", Bytes::mib(1), MOST_BYTES;
    HOST_BUDGET: Bytes = "host_budget", Bytes::mib(1), MOST_BYTES;
    MANAGED_LIMIT: Bytes = "managed_limit", Bytes::mib(1), MOST_BYTES;
    MAX_MEMORY: Bytes = "max_memory", Bytes::mib(1), MOST_BYTES;
    MAX_SESSIONS: usize = "max_sessions", 1, 100_000;
    CONNECTIONS_PER_USER: usize = "connections_per_user", 1, 100_000;
    IDLE_EXIT: Nanos = "idle_exit", Nanos::from_millis(1), Nanos::from_secs(31_536_000);
    // A freeze and a thaw take a second each.
    FREEZE_AFTER: Nanos = "freeze_after", Nanos::from_secs(1), Nanos::from_secs(31_536_000);
    RECORD_LIMIT: Bytes = "record_limit", Bytes::mib(1), MOST_BYTES;
    AUDIT_SIZE: Bytes = "audit.size", Bytes(4096), MOST_BYTES;
    // Each rotation renames all of them.
    AUDIT_FILES: u32 = "audit.files", 1, 1_000;
    WEIGHT: u32 = "weight", 1, 10_000;
    DASHBOARD_LIFETIME: Nanos = "dashboard.lifetime", MINUTE, Nanos::from_secs(2_592_000);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_outside_is_refused_by_one_sentence_with_the_range() {
        assert_eq!(TRICKLE.check(Percent(5_000)), Ok(Percent(5_000)));
        let error = QUANTUM.check(Nanos(10_000)).unwrap_err();
        assert_eq!(error.to_string(), "quantum is 1ms to 3600s, not 10µs");
    }

    #[test]
    fn the_page_has_the_table_of_all_ranges() {
        let page = include_str!("../../docs/configuration.md");
        let rows = all()
            .into_iter()
            .map(|(key, least, most)| format!("| `{key}` | {least} | {most} |\n"));
        let table = format!("| setting | least | greatest |\n|---|---|---|\n{}\n", rows.collect::<String>());
        assert!(page.contains(&table), "docs/configuration.md has another table than this:\n{table}");
    }
}

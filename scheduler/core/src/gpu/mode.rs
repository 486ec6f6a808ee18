//! Parallel or serialized: chosen per card from the working sets, with hysteresis on the way back.
//!
//! ```text
//!              working sets > capacity
//!   parallel ───────────────────────────▶ serialized
//!            ◀───────────────────────────
//!      working sets ≤ 90% of capacity for 2 s
//! ```

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, Percent};

use crate::config::Config;

/// The mode of one card and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct ModeChoice {
    mode: Mode,
    reason: String,
    changes: u64,
    /// Since when the working sets would let everybody run again.
    low_since: Option<Nanos>,
}

impl ModeChoice {
    pub(crate) fn new() -> Self {
        Self {
            mode: Mode::Parallel,
            reason: "the working sets fit the card".to_owned(),
            changes: 0,
            low_since: None,
        }
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn reason(&self) -> &str {
        &self.reason
    }

    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Chooses again; whether the mode changed.
    pub(crate) fn choose(
        &mut self,
        now: Nanos,
        fixed: Option<Mode>,
        needed: Bytes,
        capacity: Bytes,
        config: &Config,
    ) -> bool {
        if let Some(mode) = fixed {
            self.low_since = None;
            return self.change(mode, || "fixed by the administrator".to_owned());
        }
        match self.mode {
            Mode::Parallel if needed > capacity => self.change(Mode::Serialized, || {
                format!("the working sets need {needed}, the capacity is {capacity}")
            }),
            Mode::Parallel => false,
            Mode::Serialized => {
                let low = needed <= share(capacity, config.parallel_below);
                self.low_since = if low { self.low_since.or(Some(now)) } else { None };
                match self.deadline(config) {
                    Some(due) if now >= due => self.change(Mode::Parallel, || {
                        format!(
                            "the working sets need {needed}, at most {} of the capacity {capacity}, for {}",
                            config.parallel_below, config.parallel_after
                        )
                    }),
                    _ => false,
                }
            }
        }
    }

    /// When time alone changes the mode.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Nanos> {
        Some(self.low_since? + config.parallel_after)
    }

    fn change(&mut self, mode: Mode, reason: impl FnOnce() -> String) -> bool {
        if self.mode == mode {
            return false;
        }
        self.mode = mode;
        self.reason = reason();
        self.changes += 1;
        self.low_since = None;
        true
    }
}

fn share(of: Bytes, percent: Percent) -> Bytes {
    let part = u128::from(of.0) * u128::from(percent.0.min(10_000)) / 10_000;
    Bytes(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = Nanos::from_secs(1);

    fn choose(choice: &mut ModeChoice, at: Nanos, needed: u64) -> Mode {
        choice.choose(at, None, Bytes(needed), Bytes(100), &Config::default());
        choice.mode()
    }

    #[test]
    fn the_way_back_needs_room_to_spare_for_a_while() {
        let mut choice = ModeChoice::new();
        assert_eq!(choose(&mut choice, Nanos(0), 100), Mode::Parallel);
        assert_eq!(choose(&mut choice, Nanos(0), 101), Mode::Serialized);
        assert_eq!(
            choice.reason(),
            "the working sets need 101B, the capacity is 100B"
        );
        assert_eq!(choose(&mut choice, SECOND, 90), Mode::Serialized);
        assert_eq!(
            choose(&mut choice, SECOND + SECOND, 91),
            Mode::Serialized,
            "not low for long enough"
        );
        assert_eq!(choose(&mut choice, Nanos::from_secs(3), 90), Mode::Serialized);
        assert_eq!(choice.deadline(&Config::default()), Some(Nanos::from_secs(5)));
        assert_eq!(choose(&mut choice, Nanos::from_secs(5), 90), Mode::Parallel);
        assert_eq!(choice.changes(), 2);
    }

    #[test]
    fn an_administrator_fixes_the_mode_whatever_the_memory_says() {
        let mut choice = ModeChoice::new();
        let config = Config::default();
        assert!(choice.choose(Nanos(0), Some(Mode::Serialized), Bytes(0), Bytes(100), &config));
        assert_eq!(choice.reason(), "fixed by the administrator");
        assert!(!choice.choose(
            Nanos::from_secs(60),
            Some(Mode::Serialized),
            Bytes(0),
            Bytes(100),
            &config
        ));
        assert!(!choice.choose(Nanos::from_secs(60), None, Bytes(0), Bytes(100), &config));
        assert_eq!(choice.mode(), Mode::Serialized, "it goes back by the usual rule");
    }
}

//! Choice of a card's mode: parallel, time-sliced or serialized, with hysteresis on the way back.
//!
//! ```text
//!              unequal shares contend, or limits of 100%          working sets > capacity
//!   parallel ─────────────────────────────▶ time-sliced ──────────────────────────────▶ serialized
//!            ◀───────────────────────────── (or straight back) ◀───────────────────────
//!                      not for 2 s                     working sets ≤ 90% of capacity for 2 s
//! ```

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, Percent};

use crate::config::Config;

/// Reason for parallel mode.
const FITS: &str = "the working sets fit the card";

/// Facts from which a card's mode is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Sum of the working sets (movable bytes) of all sessions on the card, without remapped memory of idle ones.
    pub(crate) needed: Bytes,
    pub(crate) capacity: Bytes,
    /// Reason why sessions must take turns although their working sets fit together.
    pub(crate) contention: Option<&'static str>,
}

impl Facts {
    /// Mode that follows from the facts alone, without a delay on the way back.
    fn mode(&self) -> Mode {
        match self.contention {
            _ if self.needed > self.capacity => Mode::Serialized,
            Some(_) => Mode::TimeSliced,
            None => Mode::Parallel,
        }
    }

    fn reason(&self) -> String {
        match self.contention {
            _ if self.needed > self.capacity => {
                format!("the working sets need {}, the capacity is {}", self.needed, self.capacity)
            }
            Some(reason) => reason.to_owned(),
            None => FITS.to_owned(),
        }
    }
}

/// Mode of one card.
#[derive(Clone, Debug)]
pub(crate) struct ModeChoice {
    mode: Mode,
    changes: u64,
    /// Mode that an administrator set; it holds whatever the facts are.
    fixed: Option<Mode>,
    /// Facts by which the mode was last chosen.
    facts: Option<Facts>,
    /// Point in time since which a less restrictive mode would be enough.
    low_since: Option<Nanos>,
}

impl ModeChoice {
    pub(crate) fn new() -> Self {
        Self { mode: Mode::Parallel, changes: 0, fixed: None, facts: None, low_since: None }
    }

    pub(crate) const fn mode(&self) -> Mode {
        self.mode
    }

    /// Returns the reason for the mode by the facts of the present.
    pub(crate) fn reason(&self, config: &Config) -> String {
        if self.fixed.is_some() {
            return "fixed by the administrator".to_owned();
        }
        let Some(facts) = self.facts else { return FITS.to_owned() };
        if severity(facts.mode()) == severity(self.mode) {
            return facts.reason();
        }
        let Facts { needed, capacity, .. } = facts;
        let Config { parallel_below, parallel_after, .. } = config;
        match (self.mode, self.low_since) {
            (Mode::Serialized, Some(_)) => format!(
                "the working sets need {needed}, at most {parallel_below} of the capacity {capacity}; the mode ends \
                 once that is so for {parallel_after}"
            ),
            (Mode::Serialized, None) => format!(
                "the working sets need {needed}, the capacity is {capacity}; the mode ends once they need at most \
                 {parallel_below} of it for {parallel_after}"
            ),
            _ => format!("nothing contends any more; the mode ends once that is so for {parallel_after}"),
        }
    }

    pub(crate) const fn changes(&self) -> u64 {
        self.changes
    }

    /// Chooses the mode of a card again, and returns whether it changed.
    pub(crate) fn choose(&mut self, now: Nanos, fixed: Option<Mode>, facts: Facts, config: &Config) -> bool {
        (self.facts, self.fixed) = (Some(facts), fixed);
        if let Some(mode) = fixed {
            self.low_since = None;
            return self.change(mode);
        }
        let wanted = facts.mode();
        if severity(wanted) > severity(self.mode) {
            return self.change(wanted);
        }
        let low = severity(wanted) < severity(self.mode)
            && (self.mode != Mode::Serialized
                || facts.needed <= share(facts.capacity, config.parallel_below));
        self.low_since = if low { self.low_since.or(Some(now)) } else { None };
        match self.deadline(config) {
            Some(due) if now >= due => self.change(wanted),
            _ => false,
        }
    }

    /// Whether the mode was chosen by other facts than these.
    pub(crate) fn is_due(&self, facts: Facts) -> bool {
        self.facts != Some(facts)
    }

    /// Point in time at which the mode changes if no event comes before.
    pub(crate) fn deadline(&self, config: &Config) -> Option<Nanos> {
        Some(self.low_since? + config.parallel_after)
    }

    fn change(&mut self, mode: Mode) -> bool {
        if self.mode == mode {
            return false;
        }
        self.mode = mode;
        self.changes += 1;
        self.low_since = None;
        true
    }
}

/// Returns how much a mode restricts sessions, as a rank.
fn severity(mode: Mode) -> u8 {
    match mode {
        Mode::Parallel => 0,
        Mode::TimeSliced => 1,
        Mode::Serialized => 2,
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

    fn needing(needed: u64) -> Facts {
        Facts { needed: Bytes(needed), capacity: Bytes(100), contention: None }
    }

    fn choose(choice: &mut ModeChoice, at: Nanos, needed: u64) -> Mode {
        choice.choose(at, None, needing(needed), &Config::default());
        choice.mode()
    }

    fn reason(choice: &ModeChoice) -> String {
        choice.reason(&Config::default())
    }

    #[test]
    fn the_way_back_needs_room_to_spare_for_a_while() {
        let mut choice = ModeChoice::new();
        assert_eq!(choose(&mut choice, Nanos(0), 100), Mode::Parallel);
        assert_eq!(choose(&mut choice, Nanos(0), 101), Mode::Serialized);
        assert_eq!(reason(&choice), "the working sets need 101B, the capacity is 100B");
        assert_eq!(choose(&mut choice, SECOND, 90), Mode::Serialized);
        assert_eq!(
            reason(&choice),
            "the working sets need 90B, at most 90% of the capacity 100B; the mode ends once that is so for 2s"
        );
        assert_eq!(choose(&mut choice, SECOND + SECOND, 91), Mode::Serialized, "not low for long enough");
        assert_eq!(
            reason(&choice),
            "the working sets need 91B, the capacity is 100B; the mode ends once they need at most 90% of it for 2s"
        );
        assert_eq!(choose(&mut choice, Nanos::from_secs(3), 90), Mode::Serialized);
        assert_eq!(choice.deadline(&Config::default()), Some(Nanos::from_secs(5)));
        assert_eq!(choose(&mut choice, Nanos::from_secs(5), 90), Mode::Parallel);
        assert_eq!((reason(&choice).as_str(), choice.changes()), (FITS, 2));
    }

    #[test]
    fn unequal_sessions_that_fit_are_sliced_until_nothing_contends_for_a_while() {
        let mut choice = ModeChoice::new();
        let config = Config::default();
        let unequal = |needed| Facts { contention: Some("they are not equal"), ..needing(needed) };
        assert!(choice.choose(Nanos(0), None, unequal(50), &config));
        assert_eq!((choice.mode(), reason(&choice).as_str()), (Mode::TimeSliced, "they are not equal"));
        assert!(choice.choose(SECOND, None, unequal(101), &config));
        assert_eq!(choice.mode(), Mode::Serialized);
        assert!(!choice.choose(SECOND, None, unequal(90), &config));
        assert!(choice.choose(Nanos::from_secs(3), None, unequal(90), &config));
        assert_eq!(choice.mode(), Mode::TimeSliced, "they fit, and are still unequal");
        assert!(!choice.choose(Nanos::from_secs(4), None, needing(90), &config));
        assert_eq!(reason(&choice), "nothing contends any more; the mode ends once that is so for 2s");
        assert!(choice.choose(Nanos::from_secs(6), None, needing(90), &config));
        assert_eq!((choice.mode(), choice.changes()), (Mode::Parallel, 4));
    }

    #[test]
    fn an_administrator_fixes_the_mode_whatever_the_memory_says() {
        let mut choice = ModeChoice::new();
        let config = Config::default();
        let fixed = Some(Mode::Serialized);
        assert!(choice.choose(Nanos(0), fixed, needing(0), &config));
        assert_eq!(reason(&choice), "fixed by the administrator");
        let minute = Nanos::from_secs(60);
        assert!(!choice.choose(minute, fixed, needing(0), &config));
        assert!(!choice.choose(minute, None, needing(0), &config));
        assert_eq!(choice.mode(), Mode::Serialized, "it goes back by the usual rule");
        assert!(reason(&choice).starts_with("the working sets need 0B, at most 90%"), "{}", reason(&choice));
    }
}

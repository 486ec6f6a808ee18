//! Share of the time of a session that takes turns: its class and its weight, and virtual time.

use gpushare_proto::session::Priority;
use gpushare_proto::{Nanos, Percent};

/// Weight of a session for which none was set.
const DEFAULT_WEIGHT: u32 = 100;
/// Largest weight. Virtual time counts in 1/10,000 nanoseconds, so that this weight rounds no charge to zero.
const HEAVIEST: u128 = 10_000;

/// Class and weight of a session: which sessions go first, and how much time each gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) class: Class,
    weight: u32,
}

/// Priority class, in the order in which classes are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    High,
    Normal,
    Low,
}

impl Class {
    pub(crate) const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

impl From<Priority> for Class {
    fn from(priority: Priority) -> Self {
        match priority {
            Priority::High => Self::High,
            Priority::Normal => Self::Normal,
            Priority::Low => Self::Low,
        }
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::new(DEFAULT_WEIGHT, Priority::default())
    }
}

impl Share {
    pub(crate) fn new(weight: u32, priority: Priority) -> Self {
        Self { class: priority.into(), weight: weight.clamp(1, 10_000) }
    }

    /// Time that `other` must run to gain as much virtual time as this share does in `span`.
    pub(crate) fn catching_up(self, other: Self, span: Nanos) -> Nanos {
        let span = u128::from(span.0) * u128::from(other.weight) / u128::from(self.weight);
        Nanos(u64::try_from(span).unwrap_or(u64::MAX))
    }

    /// Virtual time of `charged` time at this weight.
    pub(crate) fn virtual_time(self, charged: Nanos) -> Virtual {
        Virtual(u128::from(charged.0) * HEAVIEST / u128::from(self.weight))
    }
}

impl Share {
    /// Charged time that makes up the virtual time `time` at this weight.
    pub(crate) fn real_time(self, time: Virtual) -> i128 {
        let real = time.0.saturating_mul(u128::from(self.weight)) / HEAVIEST;
        i128::try_from(real).unwrap_or(i128::MAX)
    }
}

/// Virtual time: charged time ÷ weight. The session with less of it goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(u128);

impl Virtual {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Distance of this virtual time beyond `floor`, negative below it.
    pub(crate) fn lag(self, floor: Self) -> i128 {
        let wide = |part: u128| i128::try_from(part).unwrap_or(i128::MAX);
        wide(self.0.saturating_sub(floor.0)) - wide(floor.0.saturating_sub(self.0))
    }
}

/// `share` of `span`.
pub(crate) fn part(span: Nanos, share: Percent) -> Nanos {
    let part = u128::from(span.0) * u128::from(share.0) / 10_000;
    Nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thrice_the_weight_runs_thrice_as_long_for_the_same_virtual_time() {
        let (usual, heavy) = (Share::default(), Share::new(300, Priority::Normal));
        let second = Nanos::from_secs(1);
        assert_eq!(usual.virtual_time(second), heavy.virtual_time(Nanos::from_secs(3)));
    }

    #[test]
    fn a_nanosecond_counts_for_the_heaviest_too() {
        let heaviest = Share::new(10_000, Priority::Normal);
        assert!(heaviest.virtual_time(Nanos(1)) > Virtual::default());
    }

    #[test]
    fn no_weight_divides_by_zero_and_no_life_of_a_machine_overflows() {
        let lightest = Share::new(0, Priority::Low);
        assert_eq!(lightest, Share::new(1, Priority::Low));
        let forever = lightest.virtual_time(Nanos::MAX);
        assert!(forever.plus(forever) > forever);
    }
}

//! Shares of the time where sessions take turns: classes, users, weights and virtual time.
//!
//! ```text
//!   card ─┬─ high ────┬─ user ana ─┬─ session       time is divided among the classes,
//!         │           │            └─ session       then among the users and sessions of a class,
//!         │           └─ session of nobody          then among the sessions of a user
//!         ├─ normal ── …
//!         └─ low ───── …
//!
//!   effective weight = weight × step^(1, 0, −1 for high, normal, low)
//!               step = (100% − trickle) ÷ trickle, at least 1
//!   virtual time     = charged time ÷ effective weight
//! ```
//!
//! The weight of a class is 100. Beside the next higher class, a class gets the share `trickle` of the time: 5%
//! make a step of 19. The step is a factor of the weights inside a class too, so that all virtual times have
//! one unit.

use gpushare_proto::session::Priority;
use gpushare_proto::{Nanos, Percent, SessionId};
use serde::{Deserialize, Serialize};

/// Weight of a class, and of a user or a session for which none was set.
const DEFAULT_WEIGHT: u32 = 100;
/// Number of parts into which virtual time divides a nanosecond. It exceeds the largest weight (10,000) × the
/// largest step (9,999), so that no effective weight rounds a charge to zero.
const FINE: i128 = 100_000_000;

/// Number of a user: a tenant whose sessions share the time that the user gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserId(pub u64);

/// Group of sessions that share the time of their group: a class, or a user's sessions of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Branch {
    pub(crate) class: Class,
    /// User to whom the group belongs; `None` for the whole class.
    pub(crate) user: Option<UserId>,
}

impl Branch {
    /// Returns the group of a whole class.
    pub(crate) const fn of_class(class: Class) -> Self {
        Self { class, user: None }
    }
}

/// Member of a group: in a class a user or a session of no user, in a user's group a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    Session(SessionId),
    User(UserId),
}

/// Class and weight of a session, a user or a class, which decide its share of the time of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) class: Class,
    weight: u32,
    /// Factor of the class: the effective weight is `weight × up ÷ down`.
    up: u32,
    down: u32,
}

/// Priority class of a session, highest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    High,
    #[default]
    Normal,
    Low,
}

impl Class {
    /// All classes, highest first.
    pub(crate) const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];
}

impl From<Class> for Priority {
    fn from(class: Class) -> Self {
        match class {
            Class::High => Self::High,
            Class::Normal => Self::Normal,
            Class::Low => Self::Low,
        }
    }
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
        Self { class: Class::Normal, weight: DEFAULT_WEIGHT, up: 1, down: 1 }
    }
}

impl Share {
    /// Returns the share of `weight` in the class of `priority`.
    pub(crate) fn new(weight: u32, priority: Priority, trickle: Percent) -> Self {
        Self { class: priority.into(), weight: weight.clamp(1, 10_000), up: 1, down: 1 }.with_trickle(trickle)
    }

    /// Returns the share of a whole class.
    pub(crate) fn of_class(class: Class, trickle: Percent) -> Self {
        Self { class, ..Self::default() }.with_trickle(trickle)
    }

    /// Returns the share with this weight in another class.
    pub(crate) fn in_class(self, class: Class, trickle: Percent) -> Self {
        Self { class, ..self }.with_trickle(trickle)
    }

    /// Weight in the class, without the factor of the class.
    pub(crate) const fn weight(self) -> u32 {
        self.weight
    }

    /// Returns this share with the factor of its class, computed from the setting `trickle`.
    pub(crate) fn with_trickle(self, trickle: Percent) -> Self {
        let part = trickle.0.clamp(1, 5_000);
        let (up, down) = match self.class {
            Class::High => (10_000 - part, part),
            Class::Normal => (1, 1),
            Class::Low => (part, 10_000 - part),
        };
        Self { up, down, ..self }
    }

    /// Factor of the class, in parts of 2³².
    pub(crate) fn factor(self) -> u128 {
        (u128::from(self.up) << 32) / u128::from(self.down)
    }

    /// Virtual time that a session of this share gains in the `charged` time.
    pub(crate) fn virtual_time(self, charged: Nanos) -> Virtual {
        let fine = i128::from(charged.0) * FINE * i128::from(self.down);
        Virtual(fine / (i128::from(self.weight) * i128::from(self.up)))
    }

    /// Charged time that gives the virtual time `time` at this share.
    pub(crate) fn real_time(self, time: Virtual) -> i128 {
        let weighted = time.0.saturating_mul(i128::from(self.weight) * i128::from(self.up));
        weighted.div_euclid(FINE * i128::from(self.down))
    }
}

/// Virtual time: charged time ÷ effective weight. The session with the least goes first. It is negative for a
/// session that was behind a card's floor when the last daemon ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Virtual(i128);

impl Virtual {
    pub(crate) const MAX: Self = Self(i128::MAX);

    pub(crate) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(crate) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Distance of this virtual time beyond `floor`, negative below it.
    pub(crate) fn lag(self, floor: Self) -> i128 {
        self.0.saturating_sub(floor.0)
    }

    /// Returns the virtual time that is `lead` nanoseconds of a usual session (weight 100, normal priority)
    /// beyond this one.
    pub(crate) fn beyond(self, lead: i64) -> Self {
        Self(self.0.saturating_add(i128::from(lead) * FINE / i128::from(DEFAULT_WEIGHT)))
    }

    /// Distance of this virtual time beyond `floor`, in nanoseconds of a usual session.
    pub(crate) fn lead(self, floor: Self) -> i64 {
        let lead = Share::default().real_time(self.minus(floor));
        i64::try_from(lead).unwrap_or(i64::MAX)
    }
}

/// Virtual time of a session, of a user or of a class on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    /// Virtual time, once the account's owner has waited for a turn.
    pub(crate) had: Option<Virtual>,
    /// Virtual time of the waiting member to which the owner last gave the lock. Until its next turn the owner
    /// is queued behind that value.
    pub(crate) behind: Option<Virtual>,
}

impl Account {
    /// Virtual time that decides the owner's place in the order of turns.
    pub(crate) fn standing(&self) -> Virtual {
        self.had.max(self.behind).unwrap_or_default()
    }

    pub(crate) fn pay(&mut self, charged: Nanos, share: Share) {
        self.had = Some(self.had.unwrap_or_default().plus(share.virtual_time(charged)));
    }

    /// Raises the virtual time of an owner that joins others, the least of which is at `level`. Its lead is at
    /// most its `credit`; a new one starts level.
    pub(crate) fn lift(&mut self, level: Virtual, credit: Virtual) {
        self.had = Some(match self.had {
            Some(had) if had < level => had.max(level.minus(credit)),
            Some(had) => had,
            None => level,
        });
    }
}

/// Returns the part `share` of the duration `span`.
pub(crate) fn part(span: Nanos, share: Percent) -> Nanos {
    let part = u128::from(span.0) * u128::from(share.0) / 10_000;
    Nanos(u64::try_from(part).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRICKLE: Percent = Percent(500);

    #[test]
    fn thrice_the_weight_runs_thrice_as_long_for_the_same_virtual_time() {
        let (usual, heavy) = (Share::default(), Share::new(300, Priority::Normal, TRICKLE));
        let second = Nanos::from_secs(1);
        assert_eq!(usual.virtual_time(second), heavy.virtual_time(Nanos::from_secs(3)));
    }

    #[test]
    fn a_class_runs_nineteen_times_as_long_as_the_one_below() {
        let of = |priority| Share::new(100, priority, TRICKLE);
        let [high, normal, low] = [Priority::High, Priority::Normal, Priority::Low].map(of);
        let seconds = Nanos::from_secs;
        assert_eq!(high.virtual_time(seconds(361)), normal.virtual_time(seconds(19)));
        assert_eq!(normal.virtual_time(seconds(19)), low.virtual_time(seconds(1)));
        assert_eq!(high.factor() / normal.factor(), 19);
        assert_eq!(normal, Share::default());
        assert_eq!(low.real_time(low.virtual_time(seconds(7))), i128::from(seconds(7).0));
    }

    #[test]
    fn a_nanosecond_counts_for_the_heaviest_too() {
        let heaviest = Share::new(10_000, Priority::High, Percent(1));
        assert!(heaviest.virtual_time(Nanos(1)) > Virtual::default());
    }

    #[test]
    fn no_weight_divides_by_zero_and_no_life_of_a_machine_overflows() {
        let lightest = Share::new(0, Priority::Low, Percent(0));
        assert_eq!(lightest, Share::new(1, Priority::Low, Percent(1)));
        let forever = lightest.virtual_time(Nanos::MAX);
        assert!(forever.plus(forever) > forever);
    }
}

//! What a session may have, in the words of whoever gives it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::tenant::GpuChoice;
use crate::units::UnitError;
use crate::{Bytes, Nanos, Percent};

/// How much of a card: of its memory, or of its time, which is counted in shares only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// So many bytes.
    Bytes(Bytes),
    /// A share of what the card has.
    Share(Percent),
}

impl Amount {
    /// On a card of `total`.
    #[must_use]
    pub fn of(self, total: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Share(share) => {
                let bytes = u128::from(total.0) * u128::from(share.0) / 10_000;
                Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
            }
        }
    }
}

impl FromStr for Amount {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        match text.trim() {
            share if share.ends_with('%') => share.parse().map(Self::Share),
            bytes => bytes.parse().map(Self::Bytes),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Share(share) => share.fmt(f),
        }
    }
}

/// How much of each card.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// On every card that is not named; none for no limit.
    pub every: Option<Amount>,
    /// On single cards.
    pub cards: Vec<CardQuota>,
}

/// How much of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardQuota {
    /// Which; never [`GpuChoice::Auto`].
    pub card: GpuChoice,
    /// How much.
    pub amount: Amount,
}

impl Quota {
    /// The same on every card.
    #[must_use]
    pub fn every(amount: Amount) -> Self {
        Self {
            every: Some(amount),
            cards: Vec::new(),
        }
    }

    /// All amounts that are named.
    pub fn amounts(&self) -> impl Iterator<Item = Amount> {
        let cards = self.cards.iter().map(|card| card.amount);
        self.every.into_iter().chain(cards)
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.every.iter().map(Amount::to_string).collect();
        words.extend(
            self.cards
                .iter()
                .map(|CardQuota { card, amount }| format!("{card}={amount}")),
        );
        match words.is_empty() {
            true => f.write_str("no limit"),
            false => f.write_str(&words.join(",")),
        }
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// After the others.
    Low,
    /// As most.
    #[default]
    Normal,
    /// Before the others.
    High,
}

/// A word that is no priority.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a priority; write low, normal or high")]
pub struct UnknownPriority(String);

impl FromStr for Priority {
    type Err = UnknownPriority;

    fn from_str(word: &str) -> Result<Self, UnknownPriority> {
        match word {
            "low" => Ok(Self::Low),
            "normal" => Ok(Self::Normal),
            "high" => Ok(Self::High),
            _ => Err(UnknownPriority(word.to_owned())),
        }
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::High => "high",
        })
    }
}

/// What a weight is relative to: a session of weight 200 gets twice the time of one that has this.
pub const USUAL_WEIGHT: u32 = 100;

/// What a session may have. Compute limit, weight and priority are kept and shown; nothing enforces them yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Memory.
    pub memory: Quota,
    /// The most of each card's time, in shares.
    pub compute: Quota,
    /// Its part of the time that sessions take turns in, relative to [`USUAL_WEIGHT`].
    pub weight: u32,
    /// Its class.
    pub priority: Priority,
    /// For how long, from when it is created or renewed; none for good.
    pub ttl: Option<Nanos>,
    /// For people and their scripts.
    pub labels: BTreeMap<String, String>,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            memory: Quota::default(),
            compute: Quota::default(),
            weight: USUAL_WEIGHT,
            priority: Priority::default(),
            ttl: None,
            labels: BTreeMap::new(),
        }
    }
}

impl Terms {
    /// So much memory of every card, and no more said.
    #[must_use]
    pub fn with_memory(memory: Option<Bytes>) -> Self {
        Self {
            memory: Quota {
                every: memory.map(Amount::Bytes),
                cards: Vec::new(),
            },
            ..Self::default()
        }
    }
}

/// Which processes are a session's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Binding {
    /// Those that have its token.
    #[default]
    Token,
    /// All of a user, whatever token they have.
    Uid(u32),
    /// All in a control group and below it, whatever token they have: its path below the hierarchy's root.
    Cgroup(String),
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("its token"),
            Self::Uid(uid) => write!(f, "user {uid}"),
            Self::Cgroup(path) => write!(f, "cgroup {path}"),
        }
    }
}

/// What a session may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandingView {
    /// Everything.
    #[default]
    Good,
    /// It keeps what it has, and nothing is granted to it.
    Paused,
    /// Its time is over: no grants, no new memory.
    Expired,
    /// As expired, and its token is no more.
    Revoked,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_bytes_or_a_share_of_the_card() {
        let of = |text: &str| text.parse::<Amount>().unwrap().of(Bytes::gib(80));
        assert_eq!(of("8GiB"), Bytes::gib(8));
        assert_eq!(of("50%"), Bytes::gib(40));
        assert_eq!(of("2.5%"), Bytes::gib(2));
        assert_eq!(Amount::Share(Percent(u32::MAX)).of(Bytes::MAX), Bytes::MAX);
        assert!("half".parse::<Amount>().is_err());
    }

    #[test]
    fn a_quota_says_what_it_is() {
        let quota = Quota {
            every: Some(Amount::Bytes(Bytes::gib(8))),
            cards: vec![CardQuota {
                card: GpuChoice::Index(1),
                amount: Amount::Share(Percent(5000)),
            }],
        };
        assert_eq!(quota.to_string(), "8GiB,1=50%");
        assert_eq!(Quota::default().to_string(), "no limit");
        assert_eq!(quota.amounts().count(), 2);
    }
}

//! What a session may have, in the words of whoever gives it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::tenant::{GpuChoice, UnknownCard};
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
        Self { every: Some(amount), cards: Vec::new() }
    }

    /// Whether it is for single cards, and for none of those that `is_there`: a limit that limits nothing.
    pub fn matches_no_card(&self, is_there: impl Fn(&GpuChoice) -> bool) -> bool {
        let named = self.every.is_none() && !self.cards.is_empty();
        named && !self.cards.iter().any(|card| is_there(&card.card))
    }

    /// All amounts that are named.
    pub fn amounts(&self) -> impl Iterator<Item = Amount> {
        let cards = self.cards.iter().map(|card| card.amount);
        self.every.into_iter().chain(cards)
    }
}

/// A text that is no quota.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// An amount is none.
    #[error(transparent)]
    Amount(#[from] UnitError),
    /// A card is none.
    #[error(transparent)]
    Card(#[from] UnknownCard),
    /// `auto` is no card.
    #[error("`auto` is no card; write its number or its UUID")]
    Auto,
    /// It begins like JSON and is none that says a quota.
    #[error(
        "it is no JSON object of limits by card ({0}); write it like {{\"0\": 2147483648, \"1\": \"50%\"}}"
    )]
    Json(String),
    /// It is a limit of nothing, and no limit must not look like one.
    #[error("it names no card; write it like {{\"0\": 2147483648}}, or 8GiB for every card")]
    Empty,
    /// Something is limited twice.
    #[error("{0} has two limits; write one")]
    Twice(String),
}

/// `8GiB`, `50%`, card by card `0=8GiB,1=50%`, or as JSON `{"0": 2147483648, "GPU-…": "50%"}`.
impl FromStr for Quota {
    type Err = QuotaError;

    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let text = text.trim();
        let parts: Vec<(Option<String>, String)> = match text.starts_with('{') {
            true => by_card(text)?,
            false => text
                .split(',')
                .map(|part| match part.split_once('=') {
                    Some((card, amount)) => (Some(card.to_owned()), amount.to_owned()),
                    None => (None, part.to_owned()),
                })
                .collect(),
        };
        if parts.is_empty() {
            return Err(QuotaError::Empty);
        }
        let mut quota = Self::default();
        for (name, amount) in parts {
            let amount = amount.parse()?;
            match name {
                None if quota.every.is_some() => return Err(QuotaError::Twice("every card".to_owned())),
                None => quota.every = Some(amount),
                Some(name) => {
                    let card = name.parse()?;
                    if card == GpuChoice::Auto {
                        return Err(QuotaError::Auto);
                    }
                    if quota.cards.iter().any(|known| known.card == card) {
                        return Err(QuotaError::Twice(name));
                    }
                    quota.cards.push(CardQuota { card, amount });
                }
            }
        }
        Ok(quota)
    }
}

/// Numbers are bytes.
fn by_card(text: &str) -> Result<Vec<(Option<String>, String)>, QuotaError> {
    let limits: BTreeMap<String, serde_json::Value> =
        serde_json::from_str(text).map_err(|error| QuotaError::Json(error.to_string()))?;
    limits
        .into_iter()
        .map(|(card, amount)| match amount {
            serde_json::Value::Number(bytes) => Ok((Some(card), bytes.to_string())),
            serde_json::Value::String(text) => Ok((Some(card), text)),
            other => Err(QuotaError::Json(format!("{other} is neither a number nor a text"))),
        })
        .collect()
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> = self.every.iter().map(Amount::to_string).collect();
        words.extend(self.cards.iter().map(|CardQuota { card, amount }| format!("{card}={amount}")));
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
pub const DEFAULT_WEIGHT: u32 = 100;

/// What a session may have. Compute limit, weight and priority are kept and shown; nothing enforces them yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Memory.
    pub memory: Quota,
    /// The most of each card's time, in shares.
    pub compute: Quota,
    /// Its part of the time that sessions take turns in, relative to [`DEFAULT_WEIGHT`].
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
            weight: DEFAULT_WEIGHT,
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
            memory: Quota { every: memory.map(Amount::Bytes), cards: Vec::new() },
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
pub enum SessionPhase {
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

    fn read(text: &str) -> String {
        match text.parse::<Quota>() {
            Ok(quota) => quota.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_quota_is_an_amount_for_every_card_or_card_by_card() {
        for text in ["8GiB", "50%", "0=8GiB,1=50%", "4GiB,1=8GiB"] {
            assert_eq!(read(text), text);
        }
        assert_eq!(read(" 50% "), "50%");
    }

    #[test]
    fn json_names_cards_by_number_or_by_uuid_in_any_case() {
        assert_eq!(read(r#"{"0": 2147483648}"#), "0=2GiB");
        assert_eq!(read(r#"{"1": "50%", "gpu-0A1B": "1GiB"}"#), "1=50%,GPU-0a1b=1GiB");
    }

    #[test]
    fn what_is_no_quota_says_what_would_be_one() {
        assert!(read("a lot").contains("write it like 8GiB"), "{}", read("a lot"));
        assert!(read("first=1GiB").contains("write its number"));
        assert!(read("auto=1GiB").contains("no card"));
        assert!(read("1GiB,2GiB").contains("two limits") && read("0=1GiB,gpu0=2GiB").contains("two limits"));
        assert!(read(r#"{"0": 1.5GiB}"#).contains("no JSON object"));
        assert!(read(r#"{"0": true}"#).contains("neither a number nor a text"));
        assert!(read("{}").contains("names no card"));
    }

    #[test]
    fn a_quota_says_what_it_is() {
        let quota = Quota {
            every: Some(Amount::Bytes(Bytes::gib(8))),
            cards: vec![CardQuota { card: GpuChoice::Index(1), amount: Amount::Share(Percent(5000)) }],
        };
        assert_eq!(quota.to_string(), "8GiB,1=50%");
        assert_eq!(Quota::default().to_string(), "no limit");
        assert_eq!(quota.amounts().count(), 2);
    }
}

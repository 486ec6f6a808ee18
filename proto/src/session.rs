//! Terms of a session: quotas of memory and card time, weight, priority, lifetime, and the processes it is
//! bound to.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

pub use crate::frost::{FreezeAfter, FreezeAfterError};
use crate::gpu_choice::{GpuChoice, UnknownCard};
use crate::units::{UnitError, words};
use crate::{Bytes, Nanos, Percent};

/// Amount of a card's memory, in bytes or as a share of the card, or of a card's time, always as a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// An amount of memory in bytes.
    Bytes(Bytes),
    /// A share of the card's whole memory or time.
    Share(Percent),
}

impl Amount {
    /// Returns the amount of memory in bytes on a card with `total` bytes.
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

/// Limits of a session on the cards, either on their memory or on their time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// Limit on every card that `cards` does not name; none for no limit.
    pub every: Option<Amount>,
    /// Limits on single cards, which replace the limit on every card.
    pub cards: Vec<CardQuota>,
}

/// Limit of a session on the memory or the time of one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardQuota {
    /// Card to limit; never [`GpuChoice::Auto`].
    pub card: GpuChoice,
    /// Largest memory or share of time that the session may use on the card.
    pub amount: Amount,
}

impl Quota {
    /// Returns a quota with the same limit on every card.
    pub fn every(amount: Amount) -> Self {
        Self { every: Some(amount), cards: Vec::new() }
    }

    /// Returns whether the quota names single cards only and `is_there` is false for each of these cards.
    pub fn matches_no_card(&self, is_there: impl Fn(&GpuChoice) -> bool) -> bool {
        let named = self.every.is_none() && !self.cards.is_empty();
        named && !self.cards.iter().any(|card| is_there(&card.card))
    }

    /// Returns the limit on every card, then the limits on single cards.
    pub fn amounts(&self) -> impl Iterator<Item = Amount> {
        let cards = self.cards.iter().map(|card| card.amount);
        self.every.into_iter().chain(cards)
    }
}

/// Reason why a text is not a quota.
#[derive(Debug, thiserror::Error)]
pub enum QuotaError {
    /// The text has an amount that is neither a number of bytes nor a share.
    #[error(transparent)]
    Amount(#[from] UnitError),
    /// The text has a card that is neither a number nor a UUID.
    #[error(transparent)]
    Card(#[from] UnknownCard),
    /// The text names `auto` as a card.
    #[error("`auto` does not name one card; write a card's number or UUID")]
    Auto,
    /// The text begins like JSON and is not a JSON object of limits by card.
    #[error("not a JSON object of limits by card ({0}); write it like {{\"0\": \"50%\"}}")]
    Json(String),
    /// The text limits no card.
    #[error("the limit names no card; write it like {{\"0\": \"50%\"}}, or 50% for every card")]
    Empty,
    /// The text has two limits for one card.
    #[error("{0} has two limits; write one")]
    Twice(String),
}

impl Quota {
    /// Parses limits of memory: `8GiB`, `50%`, a list by card `0=8GiB,1=50%`, or JSON
    /// `{"0": 2147483648, "GPU-…": "50%"}`, whose numbers are bytes.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn of_memory(text: &str) -> Result<Self, QuotaError> {
        Self::parse(text, str::parse)
    }

    /// Parses limits of card time: `25%`, a list by card `0=25%,1=50%`, or JSON `{"0": 25, "GPU-…": "50%"}`,
    /// whose numbers are percent.
    ///
    /// # Errors
    /// The text is none of these.
    pub fn of_compute(text: &str) -> Result<Self, QuotaError> {
        Self::parse(text, |share| share.trim().parse().map(Amount::Share))
    }

    fn parse(text: &str, amount_of: impl Fn(&str) -> Result<Amount, UnitError>) -> Result<Self, QuotaError> {
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
            let amount = amount_of(&amount)?;
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

/// Parses a JSON object of limits by card.
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

/// Priority class of a session: a factor on the weight, and the order of preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Low priority: other classes come first.
    Low,
    /// Normal priority, the default.
    #[default]
    Normal,
    /// High priority: this class comes before others.
    High,
}

words!(
    Priority { Low = "low", Normal = "normal", High = "high" },
    "a priority; write low, normal or high"
);

/// Default weight of a session. A session of weight 200 gets twice as much card time as one of this weight.
pub const DEFAULT_WEIGHT: u32 = 100;

/// Terms of a session: limits, weight, priority, lifetime and labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Largest memory that the session may use, per card.
    pub memory: Quota,
    /// Largest share of each card's time that the session may use.
    pub compute: Quota,
    /// Share of the time on a card that several sessions use, relative to [`DEFAULT_WEIGHT`].
    pub weight: u32,
    /// Priority class of the session.
    pub priority: Priority,
    /// Lifetime of the session from its creation or last renewal; none for no end.
    pub ttl: Option<Nanos>,
    /// Labels for users and their scripts; the daemon does not interpret them.
    pub labels: BTreeMap<String, String>,
    /// Idle time after which the session is frozen.
    #[serde(default)]
    pub freeze_after: FreezeAfter,
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
            freeze_after: FreezeAfter::default(),
        }
    }
}

impl Terms {
    /// Returns default terms with a memory limit on every card.
    pub fn with_memory(memory: Option<Bytes>) -> Self {
        Self {
            memory: Quota { every: memory.map(Amount::Bytes), cards: Vec::new() },
            ..Self::default()
        }
    }
}

/// Rule that decides which processes belong to a session.
///
/// Older programs know three of the rules and read the fourth one, too, in every answer that names it. So a pod
/// is written as a control group of the name `pod:UID`. The path of a control group begins with `/`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "WrittenBinding", into = "WrittenBinding")]
pub enum Binding {
    /// The processes that have the session's token.
    #[default]
    Token,
    /// All processes of the user with this id, whatever token they have.
    Uid(u32),
    /// All processes in a control group or below it, whatever token they have. The path is relative to the
    /// hierarchy's root.
    Cgroup(String),
    /// All processes of the Kubernetes pod with this UID, whatever token they have.
    Pod(String),
}

/// Binding as it is on the wire, in the registry and in JSON.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum WrittenBinding {
    Token,
    Uid(u32),
    Cgroup(String),
}

/// Beginning of the name by which a pod is written as a control group.
const POD: &str = "pod:";

impl From<Binding> for WrittenBinding {
    fn from(binding: Binding) -> Self {
        match binding {
            Binding::Token => Self::Token,
            Binding::Uid(uid) => Self::Uid(uid),
            Binding::Cgroup(path) => Self::Cgroup(path),
            Binding::Pod(uid) => Self::Cgroup(format!("{POD}{uid}")),
        }
    }
}

impl From<WrittenBinding> for Binding {
    fn from(written: WrittenBinding) -> Self {
        match written {
            WrittenBinding::Token => Self::Token,
            WrittenBinding::Uid(uid) => Self::Uid(uid),
            WrittenBinding::Cgroup(name) => match name.strip_prefix(POD) {
                Some(uid) => Self::Pod(uid.to_owned()),
                None => Self::Cgroup(name),
            },
        }
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token => f.write_str("its token"),
            Self::Uid(uid) => write!(f, "user {uid}"),
            Self::Cgroup(path) => write!(f, "cgroup {path}"),
            Self::Pod(uid) => write!(f, "pod {uid}"),
        }
    }
}

/// Phase in the life of a session, which decides whether the session gets grants and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SessionPhase {
    /// The session gets grants and memory.
    #[default]
    Good,
    /// An administrator paused the session, which keeps its memory and gets no grants.
    Paused,
    /// The session's lifetime is over: the session gets no grants and no new memory.
    Expired,
    /// An administrator revoked the session, which gets no grants and no new memory. The token is invalid.
    Revoked,
}

/// Name, terms and card of a session that `gpushare-ctl run` or `gpushare-ctl session create` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewSession {
    /// Name of the session; none lets the daemon choose one.
    pub name: Option<String>,
    /// Limits, share and labels of the session.
    pub terms: Terms,
    /// Whether the session may use more memory than the capacity of a card.
    pub oversubscribe: bool,
    /// Card that the session is to use, or the choice of one by the daemon.
    pub gpu: GpuChoice,
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
        shown(Quota::of_memory(text))
    }

    fn shown(parsed: Result<Quota, QuotaError>) -> String {
        match parsed {
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
    fn limits_of_card_time_are_shares_with_or_without_a_percent_sign() {
        let read = |text: &str| shown(Quota::of_compute(text));
        for (text, quota) in [
            ("25%", "25%"),
            ("25", "25%"),
            ("0=25%,1=50", "0=25%,1=50%"),
            (r#"{"0": 20}"#, "0=20%"),
            (r#"{"0": 12.5, "GPU-0a1b": "50%"}"#, "0=12.50%,GPU-0a1b=50%"),
        ] {
            assert_eq!(read(text), quota);
        }
        for text in ["8GiB", r#"{"0": 2147483648}"#, "0=101%"] {
            assert!(read(text).contains("is not a share; write it like 5%"), "{}", read(text));
        }
    }

    #[test]
    fn what_is_no_quota_says_what_would_be_one() {
        assert!(read("a lot").contains("write it like 8GiB"), "{}", read("a lot"));
        assert!(read("first=1GiB").contains("write its number"));
        assert!(read("auto=1GiB").contains("does not name one card"));
        assert!(read("1GiB,2GiB").contains("two limits") && read("0=1GiB,gpu0=2GiB").contains("two limits"));
        assert!(read(r#"{"0": 1.5GiB}"#).contains("not a JSON object"));
        assert!(read(r#"{"0": true}"#).contains("neither a number nor a text"));
        assert!(read("{}").contains("names no card"));
    }

    #[test]
    fn older_programs_read_the_binding_to_a_pod() {
        #[derive(Debug, PartialEq, Eq, Deserialize)]
        enum Older {
            Token,
            Uid(u32),
            Cgroup(String),
        }
        let pod = Binding::Pod("6f1c2a4e".to_owned());
        let older = Older::Cgroup("pod:6f1c2a4e".to_owned());
        let config = bincode::config::standard();
        let bytes = bincode::serde::encode_to_vec(&pod, config).unwrap();
        let (read, length): (Older, usize) = bincode::serde::decode_from_slice(&bytes, config).unwrap();
        assert_eq!((read, length), (older, bytes.len()));
        let json = serde_json::to_string(&pod).unwrap();
        assert_eq!(json, r#"{"cgroup":"pod:6f1c2a4e"}"#);
        assert_eq!(serde_json::from_str::<Binding>(&json).unwrap(), pod);
        for (other, text) in
            [(Binding::Token, r#""token""#), (Binding::Cgroup("/a".to_owned()), r#"{"cgroup":"/a"}"#)]
        {
            assert_eq!(serde_json::to_string(&other).unwrap(), text);
            assert_eq!(serde_json::from_str::<Binding>(text).unwrap(), other);
        }
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

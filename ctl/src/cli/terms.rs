//! What a session may have, as people write it: in flags, and in the environment variables that other tools know.

use std::collections::BTreeMap;
use std::str::FromStr;

use clap::Args;
use gpushare_proto::Nanos;
use gpushare_proto::names::{COMPUTE_LIMIT, MEMORY_LIMIT};
use gpushare_proto::session::{Amount, CardQuota, Priority, Quota, Terms, USUAL_WEIGHT};
use gpushare_proto::tenant::GpuChoice;
use serde_json::Value;

use super::values::{GpuName, ValueError, amount};

/// What a session may have.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TermsArgs {
    /// The most GPU memory the session may take on a card: 8GiB, 50% of the card, or card by card: 0=8GiB,1=50%; no limit
    /// of its own without it [env: GPUSHARE_MEMORY_LIMIT, also as JSON: {"0": 2147483648}]
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Limit>,
    /// The most of a card's time, like 25%, or card by card; kept and shown, not enforced yet
    /// [env: GPUSHARE_COMPUTE_LIMIT, also as JSON]
    #[arg(long, value_name = "SHARE")]
    pub(crate) compute: Option<Limit>,
    /// Its part of the time when sessions take turns, relative to 100; kept and shown, not enforced yet
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u32>,
    /// low, normal or high; kept and shown, not enforced yet
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<Priority>,
    /// How long it lasts, like 2h: then it gets no new memory and no turns, and loses nothing
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Nanos>,
    /// Something for people and scripts to find it by; any number of them
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<Label>,
}

/// An environment variable that holds no limit.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}; set it to something like 8GiB, 50% or {{\"0\": 2147483648}}")]
pub(crate) struct EnvironmentError {
    name: &'static str,
    cause: LimitError,
}

impl TermsArgs {
    /// The flags, and where one is missing the environment's variable.
    pub(crate) fn terms(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Terms, EnvironmentError> {
        let limit = |flag: &Option<Limit>, name| match (flag, variable(name)) {
            (Some(limit), _) => Ok(limit.0.clone()),
            (None, Some(text)) if !text.trim().is_empty() => text
                .parse::<Limit>()
                .map(|limit| limit.0)
                .map_err(|cause| EnvironmentError { name, cause }),
            (None, _) => Ok(Quota::default()),
        };
        Ok(Terms {
            memory: limit(&self.memory, MEMORY_LIMIT)?,
            compute: limit(&self.compute, COMPUTE_LIMIT)?,
            weight: self.weight.unwrap_or(USUAL_WEIGHT),
            priority: self.priority.unwrap_or_default(),
            ttl: self.ttl,
            labels: self
                .labels
                .iter()
                .map(|Label(key, value)| (key.clone(), value.clone()))
                .collect(),
        })
    }
}

/// A label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Label(String, String);

/// A text that is no label.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a label; write KEY=VALUE")]
pub(crate) struct LabelError(String);

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() && !value.is_empty() => {
                Ok(Self(key.to_owned(), value.to_owned()))
            }
            _ => Err(LabelError(text.to_owned())),
        }
    }
}

/// A limit on each card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Quota);

/// A text that is no limit.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error(transparent)]
    Amount(#[from] ValueError),
    #[error("`{0}` is not a card; write its number or its UUID")]
    Card(String),
    #[error("it is no JSON object of limits by card ({0})")]
    Json(String),
    #[error("{0} has two limits; write one")]
    Twice(String),
}

impl FromStr for Limit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let text = text.trim();
        let parts: Vec<(Option<String>, String)> = match text.starts_with('{') {
            true => json(text)?,
            false => text
                .split(',')
                .map(|part| match part.split_once('=') {
                    Some((card, amount)) => (Some(card.to_owned()), amount.to_owned()),
                    None => (None, part.to_owned()),
                })
                .collect(),
        };
        let mut quota = Quota::default();
        for (card, text) in parts {
            let amount: Amount = amount(&text)?;
            match card {
                None if quota.every.is_some() => return Err(LimitError::Twice("every card".to_owned())),
                None => quota.every = Some(amount),
                Some(name) => {
                    let card = card_named(&name)?;
                    if quota.cards.iter().any(|known| known.card == card) {
                        return Err(LimitError::Twice(name));
                    }
                    quota.cards.push(CardQuota { card, amount });
                }
            }
        }
        Ok(Self(quota))
    }
}

/// `{"0": 2147483648, "GPU-…": "50%"}`: numbers are bytes.
fn json(text: &str) -> Result<Vec<(Option<String>, String)>, LimitError> {
    let limits: BTreeMap<String, Value> =
        serde_json::from_str(text).map_err(|error| LimitError::Json(error.to_string()))?;
    limits
        .into_iter()
        .map(|(card, amount)| match amount {
            Value::Number(bytes) => Ok((Some(card), bytes.to_string())),
            Value::String(text) => Ok((Some(card), text)),
            other => Err(LimitError::Json(format!(
                "{other} is neither a number nor a text"
            ))),
        })
        .collect()
}

/// By number, or by UUID in any case.
fn card_named(text: &str) -> Result<GpuChoice, LimitError> {
    let text = text.trim();
    let upper = text.get(..4).map(str::to_ascii_uppercase);
    let spelled = match upper.as_deref() {
        Some(kind @ ("GPU-" | "MIG-")) => format!("{kind}{}", text[4..].to_ascii_lowercase()),
        _ => text.to_owned(),
    };
    match spelled.parse::<GpuName>() {
        Ok(GpuName::Index(index)) => Ok(GpuChoice::Index(index)),
        Ok(GpuName::Uuid(uuid)) => Ok(GpuChoice::Uuid(uuid)),
        Ok(GpuName::Prefix(prefix)) => Ok(GpuChoice::Prefix(prefix)),
        Err(_) => Err(LimitError::Card(text.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(text: &str) -> String {
        match text.parse::<Limit>() {
            Ok(limit) => limit.0.to_string(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_limit_is_an_amount_for_every_card_or_card_by_card() {
        assert_eq!(limit("8GiB"), "8GiB");
        assert_eq!(limit(" 50% "), "50%");
        assert_eq!(limit("0=8GiB,1=50%"), "8GiB".replace("8GiB", "0=8GiB,1=50%"));
        assert_eq!(limit("4GiB,1=8GiB"), "4GiB,1=8GiB");
    }

    #[test]
    fn json_names_cards_by_number_or_by_uuid_in_any_case() {
        assert_eq!(limit(r#"{"0": 2147483648}"#), "0=2GiB");
        assert_eq!(
            limit(r#"{"1": "50%", "gpu-0A1B": "1GiB"}"#),
            "1=50%,GPU-0a1b=1GiB"
        );
    }

    #[test]
    fn what_is_no_limit_says_what_would_be_one() {
        assert!(
            limit("a lot").contains("write it like 8GiB"),
            "{}",
            limit("a lot")
        );
        assert!(limit("first=1GiB").contains("write its number or its UUID"));
        assert!(limit("1GiB,2GiB").contains("two limits"));
        assert!(limit(r#"{"0": 1.5GiB}"#).contains("no JSON object"));
        assert!(limit(r#"{"0": true}"#).contains("neither a number nor a text"));
    }

    #[test]
    fn a_flag_comes_before_the_environment() {
        let environment = |name: &str| (name == MEMORY_LIMIT).then(|| r#"{"0": 2147483648}"#.to_owned());
        let mut args = TermsArgs::default();
        assert_eq!(args.terms(environment).unwrap().memory.to_string(), "0=2GiB");
        args.memory = Some("1GiB".parse().unwrap());
        assert_eq!(args.terms(environment).unwrap().memory.to_string(), "1GiB");
        let wrong = |_: &str| Some("much".to_owned());
        let sentence = TermsArgs::default().terms(wrong).unwrap_err().to_string();
        assert!(sentence.starts_with("GPUSHARE_MEMORY_LIMIT: "), "{sentence}");
    }
}

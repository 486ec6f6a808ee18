//! Flags of a session's terms, and the environment variables that stand in for them.

use std::str::FromStr;

use clap::Args;
use gpushare_proto::admin::MIN_MEMORY;
use gpushare_proto::names::{COMPUTE_LIMIT, MEMORY_LIMIT};
use gpushare_proto::session::{Amount, DEFAULT_WEIGHT, FreezeAfter, Priority, Quota, QuotaError, Terms};
use gpushare_proto::{Bytes, Nanos};

use super::values::Weight;
use crate::exit::{self, CommandError};

/// Flags of a session's terms.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TermsArgs {
    /// Memory limit on each card: 8GiB, 50% of the card, or by card: 0=8GiB,1=50%. The default is no limit, but for
    /// `run` by users of the system's daemon all that [self_service] leaves them. A limit on an unknown card is
    /// an error [env: GPUSHARE_MEMORY_LIMIT, also as JSON: {"0": 2147483648}]
    #[arg(short = 'm', long, value_name = "SIZE")]
    pub(crate) memory: Option<MemoryLimit>,
    /// Limit of each card's time, like 25%, or by card: 0=25%,1=50% [env: GPUSHARE_COMPUTE_LIMIT, also as JSON: {"0": 25}]
    #[arg(long, value_name = "SHARE")]
    pub(crate) compute: Option<ComputeLimit>,
    /// Share of the time when sessions take turns, relative to 100, beside the other sessions of the same user; sessions
    /// that an administrator creates stand beside users
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) weight: Option<Weight>,
    /// Priority: low, normal or high; with the system's daemon only an administrator gives `high`
    #[arg(long, value_name = "CLASS")]
    pub(crate) priority: Option<Priority>,
    /// Lifetime, like 2h; afterwards the session gets no new memory and no turns, but keeps its memory
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Nanos>,
    /// Idle time after which the session is frozen, like 10min: all that its processes have on the cards leaves for host
    /// memory, and the next call brings it back; `off`, or `auto` for the daemon's freeze_after. The default is `auto`,
    /// but 10min for notebooks
    #[arg(long, value_name = "TIME")]
    pub(crate) freeze_after: Option<FreezeAfter>,
    /// Label for people and scripts; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    pub(crate) labels: Vec<(String, String)>,
}

/// Error for an environment variable that has no valid limit.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {cause}")]
pub(crate) struct EnvironmentError {
    name: &'static str,
    cause: LimitError,
}

impl CommandError for EnvironmentError {
    fn code(&self) -> u8 {
        exit::USAGE
    }
}

impl TermsArgs {
    /// Returns the session's terms from the flags. Environment variables replace missing flags.
    pub(crate) fn terms(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Terms, EnvironmentError> {
        Ok(Terms {
            memory: or_variable(&self.memory, MEMORY_LIMIT, &variable)?.0,
            compute: or_variable(&self.compute, COMPUTE_LIMIT, &variable)?.0,
            weight: self.weight.map_or(DEFAULT_WEIGHT, |weight| weight.0),
            priority: self.priority.unwrap_or_default(),
            ttl: self.ttl,
            labels: self.labels.iter().cloned().collect(),
            freeze_after: self.freeze_after.unwrap_or_default(),
        })
    }

    /// Returns the words of a command line that state these terms.
    pub(crate) fn flags(&self) -> Vec<String> {
        let flag = |name: &str, value: Option<String>| value.map(|value| [format!("--{name}"), value]);
        let labels = self
            .labels
            .iter()
            .map(|(key, value)| flag("label", Some(format!("{key}={value}"))));
        [
            flag("memory", self.memory.as_ref().map(|limit| limit.0.to_string())),
            flag("compute", self.compute.as_ref().map(|limit| limit.0.to_string())),
            flag("weight", self.weight.map(|weight| weight.0.to_string())),
            flag("priority", self.priority.map(|priority| priority.to_string())),
            flag("ttl", self.ttl.map(|ttl| ttl.to_string())),
            flag("freeze-after", self.freeze_after.map(|after| after.to_string())),
        ]
        .into_iter()
        .chain(labels)
        .flatten()
        .flatten()
        .collect()
    }
}

/// Returns the limit that a flag states, or else an environment variable.
fn or_variable<L: FromStr<Err = LimitError> + Clone + Default>(
    flag: &Option<L>,
    name: &'static str,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<L, EnvironmentError> {
    let parse = |text: String| text.parse().map_err(|cause| EnvironmentError { name, cause });
    match (flag, variable(name).filter(|text| !text.trim().is_empty())) {
        (Some(limit), _) => Ok(limit.clone()),
        (None, stated) => stated.map_or_else(|| Ok(L::default()), parse),
    }
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a label; write KEY=VALUE")]
pub(crate) struct LabelError(String);

fn label(text: &str) -> Result<(String, String), LabelError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(LabelError(text.to_owned())),
    }
}

/// Limits of memory per card, each large enough to be useful.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryLimit(pub(crate) Quota);

/// Limits of card time per card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ComputeLimit(pub(crate) Quota);

#[derive(Debug, thiserror::Error)]
pub(crate) enum LimitError {
    #[error(transparent)]
    Quota(#[from] QuotaError),
    #[error("{0} is less than the minimum; write {MIN_MEMORY} or more")]
    Little(Bytes),
}

impl FromStr for ComputeLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        Ok(Self(Quota::of_compute(text)?))
    }
}

impl FromStr for MemoryLimit {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let quota = Quota::of_memory(text)?;
        let little = quota.amounts().find_map(|amount| match amount {
            Amount::Bytes(bytes) if bytes < MIN_MEMORY => Some(bytes),
            _ => None,
        });
        little.map_or(Ok(Self(quota)), |bytes| Err(LimitError::Little(bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_below_the_minimum_is_refused() {
        assert!("8GiB".parse::<MemoryLimit>().is_ok());
        let sentence = "0=1KiB".parse::<MemoryLimit>().unwrap_err().to_string();
        assert!(sentence.contains("write 1MiB or more"), "{sentence}");
    }

    #[test]
    fn the_flags_state_the_same_terms_again() {
        use clap::Parser as _;

        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            terms: TermsArgs,
        }
        let words = "x --memory 0=8GiB,1=50% --compute 25% --weight 50 --priority low --ttl 90m --freeze-after 10min --label a=b=c --label d=e";
        let terms = Line::parse_from(words.split(' ')).terms;
        let flags = [vec!["x".to_owned()], terms.flags()].concat();
        let again = Line::parse_from(flags).terms;
        assert_eq!(again.terms(|_| None).unwrap(), terms.terms(|_| None).unwrap());
        assert_eq!(TermsArgs::default().flags(), Vec::<String>::new());
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
        let share = |name: &str| (name == COMPUTE_LIMIT).then(|| r#"{"0": 20}"#.to_owned());
        assert_eq!(TermsArgs::default().terms(share).unwrap().compute.to_string(), "0=20%");
    }
}

//! Types of values in flags: `auto`, `none`, sizes, shares, cards, times.

use std::str::FromStr;

use gpushare_proto::audit::Timestamp;
use gpushare_proto::ranges::{self, OutOfRange};
use gpushare_proto::tenant::{GpuChoice, UnknownCard};
use gpushare_proto::units::UnitError;
use gpushare_proto::{Bytes, Nanos, Percent};

macro_rules! value_or_word {
    ($(#[$doc:meta])* $name:ident, $error:ident: $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) struct $name<T>(pub(crate) Option<T>);

        impl<T: FromStr> FromStr for $name<T> {
            type Err = $error<T::Err>;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $word => Ok(Self(None)),
                    _ => text.parse().map(|value| Self(Some(value))).map_err($error),
                }
            }
        }

        /// Error for a text that is neither a valid value nor the keyword (`auto` or `none`).
        #[derive(Debug, thiserror::Error)]
        #[error("{0}, or `{word}`", word = $word)]
        pub(crate) struct $error<E>(E);
    };
}

value_or_word! {
    /// Value of a flag, or `auto` for the daemon's choice.
    Auto, AutoError: "auto"
}
value_or_word! {
    /// Value of a flag, or `none` for no limit or no end.
    NoneOr, NoneOrError: "none"
}

/// Error for a flag's value that is out of range.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error(transparent)]
    Range(#[from] OutOfRange),
}

macro_rules! bounded {
    ($(#[$doc:meta])* $name:ident($value:ty), $range:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) struct $name(pub(crate) $value);

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                Ok(Self(ranges::$range.check(text.parse()?)?))
            }
        }
    };
}

bounded! {
    /// Duration of a turn, in the allowed range.
    Quantum(Nanos), QUANTUM
}
bounded! {
    /// Capacity of a card, in the allowed range.
    Capacity(Bytes), CAPACITY
}
bounded! {
    /// Assumed size of a context, in the allowed range.
    Reserve(Bytes), CONTEXT_RESERVE
}
bounded! {
    /// Limit on the managed memory of a card, in the allowed range.
    ManagedLimit(Bytes), MANAGED_LIMIT
}
bounded! {
    /// Share of a card's time that handoffs may cost, in the allowed range.
    Share(Percent), EPSILON
}
bounded! {
    /// Target duration of work in flight, in the allowed range.
    Target(Nanos), DRAIN_TARGET
}

/// Weight of a session or a user, in the allowed range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight(pub(crate) u32);

/// Error for a text that is no weight in the allowed range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no weight; write a whole number from {least} to {most}", least = ranges::WEIGHT.least(), most = ranges::WEIGHT.most())]
pub(crate) struct WeightError(String);

impl FromStr for Weight {
    type Err = WeightError;

    fn from_str(text: &str) -> Result<Self, WeightError> {
        let weight = text.parse().ok().and_then(|weight| ranges::WEIGHT.check(weight).ok());
        weight.map(Self).ok_or_else(|| WeightError(text.to_owned()))
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuNameError {
    #[error(transparent)]
    Unknown(#[from] UnknownCard),
    #[error("`auto` does not name one card; write a card's number or UUID")]
    Auto,
}

pub(super) fn one_card(text: &str) -> Result<GpuChoice, GpuNameError> {
    match text.parse()? {
        GpuChoice::Auto => Err(GpuNameError::Auto),
        card => Ok(card),
    }
}

/// Start of a period: an age or a point in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// Duration of a period that ends now.
    Ago(Nanos),
    /// Point in time on the wall clock at which the period starts.
    At(Timestamp),
}

impl FromStr for Since {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, SinceError> {
        let moment = || text.parse().map(Self::At).map_err(|_| SinceError(text.to_owned()));
        text.parse().map(Self::Ago).or_else(|_| moment())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an age, like 2h, nor a time, like 2026-11-22T08:00")]
pub(crate) struct SinceError(String);

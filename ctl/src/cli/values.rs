//! Values as people write them: `auto`, modes, cards.

use std::str::FromStr;

use gpushare_proto::admin::{MIN_MEMORY, MIN_QUANTUM};
use gpushare_proto::audit::Timestamp;
use gpushare_proto::tenant::{GpuChoice, UnknownCard};
use gpushare_proto::units::UnitError;
use gpushare_proto::{Bytes, GpuUuid, Nanos, Percent};

/// A fixed value, or the daemon's own choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Auto<T>(pub(crate) Option<T>);

impl<T: FromStr> FromStr for Auto<T> {
    type Err = AutoError<T::Err>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self(None)),
            _ => text.parse().map(|value| Self(Some(value))).map_err(AutoError),
        }
    }
}

/// A text that is neither a value nor `auto`.
#[derive(Debug, thiserror::Error)]
#[error("{0}, or `auto`")]
pub(crate) struct AutoError<E>(E);

/// A value that is refused here already, so that it is a mistake in the command and not the daemon's refusal.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ValueError {
    #[error(transparent)]
    Unit(#[from] UnitError),
    #[error("{0} lets nobody run; write {MIN_QUANTUM} or more")]
    ShortQuantum(Nanos),
    #[error("{0} is too little to share; write {MIN_MEMORY} or more")]
    LittleMemory(Bytes),
    #[error("{0} is no share of time to lose; write more than 0% and less than 100%")]
    NoShare(Percent),
    #[error("usage is kept for thirty days; write 30d or less")]
    LongAgo,
}

/// How far back usage is asked for.
pub(super) fn past(text: &str) -> Result<Nanos, ValueError> {
    let time: Nanos = text.parse()?;
    match time <= Nanos::from_secs(30 * 86_400) {
        true => Ok(time),
        false => Err(ValueError::LongAgo),
    }
}

/// A value, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NoneOr<T>(pub(crate) Option<T>);

impl<T: FromStr> FromStr for NoneOr<T> {
    type Err = NoneOrError<T::Err>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "none" => Ok(Self(None)),
            _ => text.parse().map(|value| Self(Some(value))).map_err(NoneOrError),
        }
    }
}

/// A text that is neither a value nor `none`.
#[derive(Debug, thiserror::Error)]
#[error("{0}, or `none`")]
pub(crate) struct NoneOrError<E>(E);

/// How long a turn lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Quantum(pub(crate) Nanos);

impl FromStr for Quantum {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse()? {
            quantum if quantum < MIN_QUANTUM => Err(ValueError::ShortQuantum(quantum)),
            quantum => Ok(Self(quantum)),
        }
    }
}

/// Memory of a card or a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(pub(crate) Bytes);

impl FromStr for Memory {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse()? {
            bytes if bytes < MIN_MEMORY => Err(ValueError::LittleMemory(bytes)),
            bytes => Ok(Self(bytes)),
        }
    }
}

/// A share of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) Percent);

impl FromStr for Share {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text.parse()? {
            share @ Percent(0 | 10_000..) => Err(ValueError::NoShare(share)),
            share => Ok(Self(share)),
        }
    }
}

/// A card as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum GpuName {
    /// The daemon's number.
    Index(u8),
    /// The driver's identity.
    Uuid(GpuUuid),
    /// The beginning of it.
    Prefix(String),
}

/// A text that names no card.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GpuNameError {
    #[error(transparent)]
    Unknown(#[from] UnknownCard),
    #[error("`auto` is no card; write its number or its UUID")]
    Auto,
}

impl FromStr for GpuName {
    type Err = GpuNameError;

    fn from_str(text: &str) -> Result<Self, GpuNameError> {
        match text.parse()? {
            GpuChoice::Auto => Err(GpuNameError::Auto),
            GpuChoice::Index(index) => Ok(Self::Index(index)),
            GpuChoice::Uuid(uuid) => Ok(Self::Uuid(uuid)),
            GpuChoice::Prefix(prefix) => Ok(Self::Prefix(prefix)),
        }
    }
}

/// From when on: an age, or an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// So long ago.
    Ago(Nanos),
    /// Then.
    At(Timestamp),
}

impl FromStr for Since {
    type Err = SinceError;

    fn from_str(text: &str) -> Result<Self, SinceError> {
        let moment = || text.parse().map(Self::At).map_err(|_| SinceError(text.to_owned()));
        text.parse().map(Self::Ago).or_else(|_| moment())
    }
}

/// Neither an age nor an instant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an age, like 2h, nor an instant, like 2026-11-22T08:00")]
pub(crate) struct SinceError(String);

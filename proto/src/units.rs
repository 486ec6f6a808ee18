//! Quantities whose type says the unit: bytes, nanoseconds, percent.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Number of bytes. Parsed from `8GiB`, `512MiB`, `1.5GiB` or `4096`; printed in the largest binary unit that
/// is not above the value, with at most one decimal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// Nanoseconds: a duration, or a point in time on the monotonic clock of the process that states it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// A share in hundredths of a percent, as an integer. Written `5%` or `0.5%`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Percent(pub u32);

/// Error for a text that is not a valid quantity, keyword or UUID. The message shows the accepted form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct UnitError {
    text: String,
    expected: &'static str,
}

impl UnitError {
    pub(crate) fn new(text: &str, expected: &'static str) -> Self {
        Self { text: text.to_owned(), expected }
    }
}

/// Lets serde write a type as its text, for `#[serde(try_from = "String", into = "String")]`.
macro_rules! as_text {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $name {
            type Error = UnitError;

            fn try_from(text: String) -> Result<Self, UnitError> {
                text.parse()
            }
        }
    };
}

/// Implements printing and parsing of an enum by one keyword per variant.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),* }, $expected:literal) => {
        impl $name {
            /// Returns the keyword that stands for the value in commands, files and output.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnitError;

            fn from_str(word: &str) -> Result<Self, UnitError> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    _ => Err(UnitError::new(word, $expected)),
                }
            }
        }
    };
}

pub(crate) use {as_text, words};

macro_rules! arithmetic {
    ($unit:ident) => {
        impl $unit {
            /// The quantity zero.
            pub const ZERO: Self = Self(0);
            /// Largest possible value, which stands for "no limit".
            pub const MAX: Self = Self(u64::MAX);

            /// Returns `self - other`, or zero if the difference would be negative.
            #[must_use]
            pub const fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }

            /// Returns `self + other`, or `None` on overflow.
            #[must_use]
            pub const fn checked_add(self, other: Self) -> Option<Self> {
                match self.0.checked_add(other.0) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// Returns whether the quantity is zero.
            pub const fn is_zero(self) -> bool {
                self.0 == 0
            }
        }

        /// Saturating addition: a sum of quantities from hostile messages must not wrap or panic.
        impl Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        /// Saturating subtraction: the result is at least zero.
        impl Sub for $unit {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                self.saturating_sub(other)
            }
        }

        impl SubAssign for $unit {
            fn sub_assign(&mut self, other: Self) {
                *self = *self - other;
            }
        }

        impl std::iter::Sum for $unit {
            fn sum<I: Iterator<Item = Self>>(values: I) -> Self {
                values.fold(Self::ZERO, Self::add)
            }
        }
    };
}

arithmetic!(Bytes);
arithmetic!(Nanos);

impl Bytes {
    /// Returns `n` mebibytes (2^20 bytes each).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }

    /// Returns `n` gibibytes (2^30 bytes each).
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
}

impl Nanos {
    /// Returns `n` milliseconds as nanoseconds.
    pub const fn from_millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// Returns `n` seconds as nanoseconds.
    pub const fn from_secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }
}

impl From<Duration> for Nanos {
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Nanos> for Duration {
    fn from(span: Nanos) -> Self {
        Self::from_nanos(span.0)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (name, shift) in UNITS {
            let whole = self.0 >> shift;
            if whole > 0 {
                let tenths = ((self.0 & ((1 << shift) - 1)) * 10) >> shift;
                return match tenths {
                    0 => f.pad(&format!("{whole}{name}")),
                    _ => f.pad(&format!("{whole}.{tenths}{name}")),
                };
            }
        }
        f.pad(&format!("{}B", self.0))
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:?}", Duration::from(*self)))
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 100 {
            0 => f.pad(&format!("{}%", self.0 / 100)),
            rest => f.pad(&format!("{}.{rest:02}%", self.0 / 100)),
        }
    }
}

/// Parses a decimal number with at most nine decimal places into `(value, scale)`: the number is `value /
/// 10^scale`.
fn decimal(text: &str) -> Option<(u128, u32)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || text.ends_with('.') {
        return None;
    }
    let scale = u32::try_from(fraction.len()).ok()?;
    let value: u128 = format!("{whole}{fraction}").parse().ok()?;
    Some((value, scale))
}

/// Parses `text` as a decimal number and multiplies it by `unit`; `None` if the result exceeds 64 bits.
fn scaled(text: &str, unit: u64) -> Option<u64> {
    let (value, scale) = decimal(text.trim())?;
    u64::try_from(value.checked_mul(u128::from(unit))? / 10u128.pow(scale)).ok()
}

fn number_and_suffix(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len()))
}

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError::new(text, "a size; write it like 8GiB, 512MiB or 1.5G");
        let (number, suffix) = number_and_suffix(text);
        let unit = match suffix.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(error()),
        };
        scaled(number, unit).map(Bytes).ok_or_else(error)
    }
}

impl FromStr for Nanos {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError::new(text, "a time; write it like 250ms, 2s or 10min");
        let (number, suffix) = number_and_suffix(text);
        let unit = match suffix {
            "ns" => 1,
            "us" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(error()),
        };
        scaled(number, unit).map(Nanos).ok_or_else(error)
    }
}

impl FromStr for Percent {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let error = || UnitError::new(text, "a share; write it like 5% or 0.5%");
        let number = text.strip_suffix('%').unwrap_or(text);
        let hundredths = scaled(number, 100)
            .filter(|&hundredths| hundredths <= 10_000)
            .ok_or_else(error)?;
        Ok(Self(hundredths as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("1.5GiB", 3 << 29),
            ("512 MiB", 512 << 20),
            ("10MB", 10_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        for text in ["", "GiB", "8 apples", "-1GiB", "1.GiB", "1e9", "99999999999TiB", "8GiBB"] {
            let error = text.parse::<Bytes>().unwrap_err();
            assert!(error.to_string().contains("like 8GiB"), "{text}: {error}");
        }
    }

    #[test]
    fn sizes_print_in_the_unit_a_person_would_choose() {
        assert_eq!(Bytes::gib(8).to_string(), "8GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5GiB");
        assert_eq!(Bytes(100).to_string(), "100B");
    }

    #[test]
    fn times_and_shares_are_read() {
        assert_eq!("250ms".parse(), Ok(Nanos::from_millis(250)));
        assert_eq!("10min".parse(), Ok(Nanos::from_secs(600)));
        assert_eq!("0.5s".parse(), Ok(Nanos::from_millis(500)));
        assert!("10".parse::<Nanos>().is_err());
        assert_eq!("5%".parse(), Ok(Percent(500)));
        assert_eq!("0.5%".parse(), Ok(Percent(50)));
        assert!("101%".parse::<Percent>().is_err());
        assert_eq!(Percent(50).to_string(), "0.50%");
    }

    #[test]
    fn sums_never_wrap() {
        assert_eq!(Bytes::MAX + Bytes(1), Bytes::MAX);
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
    }
}

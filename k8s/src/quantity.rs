//! Quantities of Kubernetes' API, like `80Gi`, `10` and `1500M`.

use std::fmt;

use gpushare_proto::Bytes;
use serde::{Deserialize, Serialize};

/// Suffixes and their factors: powers of 1024 first, then powers of 1000.
const BINARY: [(&str, u128); 6] =
    [("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30), ("Ti", 1 << 40), ("Pi", 1 << 50), ("Ei", 1 << 60)];
const DECIMAL: [(&str, i32); 9] =
    [("n", -9), ("u", -6), ("m", -3), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];

/// Quantity as it is written. Two are equal if their whole values are, since the API server writes them anew.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Quantity(String);

/// Reason why a text is no quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no quantity of Kubernetes; its form is 8Gi")]
pub(crate) struct BadQuantity(String);

impl Quantity {
    /// Writes a size with the largest binary suffix that leaves a whole number, as the API server does.
    pub(crate) fn of_bytes(bytes: Bytes) -> Self {
        let bytes = u128::from(bytes.0);
        let whole = BINARY.iter().rev().find(|(_, factor)| bytes >= *factor && bytes % factor == 0);
        Self(whole.map_or(bytes.to_string(), |(suffix, factor)| format!("{}{suffix}", bytes / factor)))
    }

    /// Writes a number.
    pub(crate) fn of_count(count: u64) -> Self {
        match count {
            0 => Self("0".to_owned()),
            _ if count.is_multiple_of(1000) => Self(format!("{}k", count / 1000)),
            _ => Self(count.to_string()),
        }
    }

    /// Returns the value, rounded up to a whole number.
    pub(crate) fn value(&self) -> Result<u64, BadQuantity> {
        value(&self.0)
            .and_then(|value| u64::try_from(value).ok())
            .ok_or_else(|| BadQuantity(self.0.clone()))
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        match (self.value(), other.value()) {
            (Ok(own), Ok(other)) => own == other,
            _ => self.0 == other.0,
        }
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads a quantity that is not negative, and rounds it up.
fn value(text: &str) -> Option<u128> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() == 0 || fraction.contains('.') {
        return None;
    }
    let digits: u128 = format!("0{whole}{fraction}").parse().ok()?;
    let places = i32::try_from(fraction.len()).ok()?;
    if let Some((_, factor)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return scaled(digits.checked_mul(*factor)?, -places);
    }
    let exponent = match suffix {
        "" => 0,
        _ => match DECIMAL.iter().find(|(name, _)| *name == suffix) {
            Some((_, exponent)) => *exponent,
            None => suffix.strip_prefix(['e', 'E'])?.parse().ok()?,
        },
    };
    scaled(digits, exponent.checked_sub(places)?)
}

/// Returns `digits × 10^exponent`, rounded up.
fn scaled(digits: u128, exponent: i32) -> Option<u128> {
    let power = 10u128.checked_pow(exponent.unsigned_abs());
    match (exponent < 0, power) {
        (false, power) => digits.checked_mul(power?),
        (true, Some(power)) => Some(digits.div_ceil(power)),
        (true, None) => Some(u128::from(digits > 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<u64> {
        Quantity(text.to_owned()).value().ok()
    }

    #[test]
    fn quantities_are_read_as_kubernetes_writes_them() {
        for (text, wanted) in [
            ("0", 0),
            ("8589934592", 8 << 30),
            ("8Gi", 8 << 30),
            ("1.5Gi", 3 << 29),
            (".5Ki", 512),
            ("80k", 80_000),
            ("2e3", 2000),
            ("2E", 2_000_000_000_000_000_000),
            ("1500m", 2),
            ("1n", 1),
            ("+10", 10),
        ] {
            assert_eq!(read(text), Some(wanted), "{text}");
        }
        for wrong in ["", "Gi", "8GiB", "-1", "1.2.3", "1 Gi", "99999999999999999999", "8e", "lots"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written_in_the_form_of_the_api_server() {
        for (bytes, wanted) in [
            (Bytes::gib(80), "80Gi"),
            (Bytes(81_559 << 20), "81559Mi"),
            (Bytes(1024 * 7), "7Ki"),
            (Bytes(1000), "1000"),
            (Bytes(0), "0"),
        ] {
            assert_eq!(Quantity::of_bytes(bytes).to_string(), wanted);
        }
        assert_eq!(Quantity::of_count(10).to_string(), "10");
        assert_eq!(Quantity::of_count(1000).to_string(), "1k");
    }

    #[test]
    fn the_same_value_in_another_form_is_equal() {
        assert_eq!(Quantity("1Gi".to_owned()), Quantity("1024Mi".to_owned()));
        assert_ne!(Quantity("1Gi".to_owned()), Quantity("1G".to_owned()));
    }
}

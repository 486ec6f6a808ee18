//! Points in time on the command line: an age, a date, or a date with a time of day.
//!
//! A date alone is the midnight at which it begins. Without `Z` or an offset, both are times of this machine's zone.

use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::Nanos;
use gpushare_proto::audit::Timestamp;
use gpushare_sys::clock;

/// Duration for which the daemon keeps usage, in seconds.
pub(crate) const KEPT: u64 = 30 * 86_400;
const MICROS: u64 = 1_000_000;

/// Age or point in time. An age is at most as long as usage is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Time before now.
    Ago(Nanos),
    /// Point in time, in seconds since 1970.
    At(u64),
}

impl Moment {
    /// Returns the seconds since 1970 by a clock that shows `now`.
    pub(crate) fn unix(self, now: u64) -> u64 {
        match self {
            Self::Ago(span) => now.saturating_sub(span.0 / 1_000_000_000),
            Self::At(unix) => unix,
        }
    }
}

/// Returns the seconds since 1970 by the clock of this machine.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Formats a point in time in this machine's zone, like `2026-11-22 08:00`.
pub(crate) fn local(unix: u64) -> String {
    match clock::shown_by_local(unix) {
        Some(shown) => Timestamp(shown.saturating_mul(MICROS)).to_string()[..16].replace('T', " "),
        None => Timestamp(unix.saturating_mul(MICROS)).to_string(),
    }
}

/// Error for a text that is no point in time, or too great an age.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MomentError {
    #[error(
        "`{0}` is neither an age, like 90m, 24h or 7d, nor a date, like 2026-11-22, 2026-11-22T08:00 or \
         2026-11-22T08:00:00Z"
    )]
    Form(String),
    #[error("usage is kept for thirty days; write 30d or less")]
    LongAgo,
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Self, MomentError> {
        if let Ok(span) = text.parse::<Nanos>() {
            let is_kept = span <= Nanos::from_secs(KEPT);
            return is_kept.then_some(Self::Ago(span)).ok_or(MomentError::LongAgo);
        }
        date(text).map(Self::At).ok_or_else(|| MomentError::Form(text.to_owned()))
    }
}

/// Returns the seconds since 1970 of a date as in RFC 3339. Time of day, seconds and offset may be missing.
fn date(text: &str) -> Option<u64> {
    let (shown, offset) = match text.strip_suffix(['Z', 'z']) {
        Some(shown) => (shown, Some(0)),
        None => with_offset(text),
    };
    let parsed: Timestamp = shown.replace('t', "T").parse().ok()?;
    // The parser takes a 31st of any month.
    let exists = parsed.to_string().get(..10) == shown.get(..10);
    let seconds = exists.then_some(parsed.0 / MICROS)?;
    match offset {
        Some(offset) => seconds.checked_add_signed(-offset),
        None => clock::unix_of_local(seconds),
    }
}

/// Splits an offset from UTC, like `+02:00`, from the end of a time of day. Returns it in seconds.
fn with_offset(text: &str) -> (&str, Option<i64>) {
    let split = || {
        let (shown, offset) = text.split_at_checked(text.len().checked_sub(6)?)?;
        let sign = match offset.as_bytes()[0] {
            b'+' => 1,
            b'-' => -1,
            _ => return None,
        };
        let (hours, minutes) = offset[1..].split_once(':')?;
        let number = |digits: &str, most| digits.parse::<u8>().ok().filter(|number| *number <= most);
        let seconds = i64::from(number(hours, 23)?) * 3600 + i64::from(number(minutes, 59)?) * 60;
        shown.contains([':']).then_some((shown, Some(sign * seconds)))
    };
    split().unwrap_or((text, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_without_an_offset_is_local_and_others_are_as_written() {
        let noon = 1_795_435_200;
        for text in [
            "2026-11-23T12:00:00Z",
            "2026-11-23t12:00z",
            "2026-11-23T14:00:00+02:00",
            "2026-11-23T12:00:00.25Z",
            "2026-11-23 03:30-08:30",
        ] {
            assert_eq!(date(text), Some(noon), "{text}");
        }
        let midnight = date("2026-11-23").unwrap();
        assert_eq!(date("2026-11-23T00:00"), Some(midnight));
        assert_eq!(local(midnight), "2026-11-23 00:00");
    }

    #[test]
    fn what_is_no_date_is_refused_with_examples() {
        for text in
            ["", "yesterday", "2026-02-30", "2026-13-01", "2026-11-23T25:00", "2026-11-23+02:00", "ü-02:00"]
        {
            assert_eq!(text.parse::<Moment>(), Err(MomentError::Form(text.to_owned())), "{text}");
        }
        assert_eq!("31d".parse::<Moment>(), Err(MomentError::LongAgo));
    }

    #[test]
    fn an_age_counts_back_from_now() {
        assert_eq!("2h".parse::<Moment>().unwrap().unix(10_000), 2_800);
        assert_eq!(Moment::At(5).unix(10_000), 5);
    }
}

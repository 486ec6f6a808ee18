//! Lines of the audit log. The daemon writes them, one JSON object each, and `gpushare-ctl audit` reads them.
//!
//! The format is append-only: keys are added and never change their meaning. docs/audit.md explains each key.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::page::LimitKind;
use crate::units::{UnitError, as_text};
use crate::{Bytes, GpuId, GpuUuid, SessionId};

/// One line of the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Point in time of the event, on the wall clock.
    pub at: Timestamp,
    /// Event that the line records.
    #[serde(flatten)]
    pub entry: Entry,
}

/// Event that a line of the audit log records. The JSON key `what` names the kind of event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
pub enum Entry {
    /// Somebody tried to change a session or a setting; the line has the result.
    #[serde(rename = "act")]
    Action(Action),
    /// The daemon refused a memory request.
    Refusal(Refusal),
    /// Number of events of one session or user that got no lines, since there were too many in a short time.
    #[serde(rename = "more")]
    Omitted {
        /// Session whose refusals were omitted; none if registrations were.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<SessionId>,
        /// Name of the session that asked for memory.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session: Option<String>,
        /// User whose registrations were omitted; none if refusals were.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        uid: Option<u32>,
        /// Number of events that got no lines.
        count: u64,
    },
    /// The daemon leased memory to a process.
    Allocation(Allocation),
    /// Number of events whose lines could not be written before this line.
    Lost {
        /// Number of events that got no lines.
        lines: u64,
    },
}

/// Attempt to change a session or a setting, with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Name of the operation, like `session.pause`.
    pub operation: String,
    /// User id of the process that asked for the operation, from the kernel.
    pub uid: u32,
    /// Pid of the process that asked for the operation.
    pub pid: u32,
    /// Number of the affected session; none for a session that does not exist.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    /// Name of the affected session, or the name in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Number of the affected card, if the operation is about a single card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuId>,
    /// Value of the setting or term before the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<String>,
    /// Value of the setting or term after the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<String>,
    /// Result of the operation: done, refused or failed.
    pub result: Outcome,
    /// Kind of failure, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
    /// Reason of the failure, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// A memory request that the daemon refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Name of the operation: `memory.reserve`.
    pub operation: String,
    /// Number of the session that asked for memory.
    pub session_id: SessionId,
    /// Name of the session that asked for memory.
    pub session: String,
    /// User id of the process that asked for memory.
    pub uid: u32,
    /// Pid of the process that asked for memory.
    pub pid: u32,
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// UUID of the card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<GpuUuid>,
    /// Bytes that the process asked for.
    pub requested: Bytes,
    /// Limit that the request would exceed, in bytes.
    pub limit: Bytes,
    /// Bytes in use that count against the limit.
    pub used: Bytes,
    /// Kind of the limit that the request would exceed.
    pub by: LimitKind,
    /// Result of the request: [`Outcome::Refused`].
    pub result: Outcome,
    /// CUDA error that the program gets.
    pub error_code: String,
}

/// A memory request that the daemon granted: bytes of quota are leased to a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Allocation {
    /// Name of the operation: `memory.reserve`.
    pub operation: String,
    /// Number of the session that asked for memory.
    pub session_id: SessionId,
    /// Name of the session that asked for memory.
    pub session: String,
    /// User id of the process that asked for memory.
    pub uid: u32,
    /// Pid of the process that asked for memory.
    pub pid: u32,
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// Bytes that the process asked for.
    pub bytes: Bytes,
    /// Total bytes of the card that the process has leased after this request, used or not.
    pub leased: Bytes,
    /// Result of the request: [`Outcome::Ok`].
    pub result: Outcome,
    /// Sampling rate: the log has one of this many granted requests.
    pub one_in: u64,
}

/// Result of an operation in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The operation or request succeeded.
    Ok,
    /// A rule or a limit forbids the operation.
    Refused,
    /// The operation could not be done.
    Failed,
}

impl Outcome {
    /// Returns the name of the result in the audit log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Point in time on the wall clock, in microseconds since 1970. Printed like `2026-11-22T00:14:56.123456Z`,
/// so that texts sort by time. Parsed with missing parts too, like `2026-11-22`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Timestamp(pub u64);

const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400;
/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: u64 = 719_468;
/// Days in 400 years.
const ERA: u64 = 146_097;

impl fmt::Display for Timestamp {
    /// Computes the date in eras of 400 years that begin in March, so that a leap day is the last day of its
    /// year.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, micros) = (self.0 / SECOND, self.0 % SECOND);
        let (days, second) = (seconds / DAY + DAYS_TO_1970, seconds % DAY);
        let (era, day) = (days / ERA, days % ERA);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day_of_month = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year + era * 400 + u64::from(month <= 2);
        write!(
            f,
            "{year:04}-{month:02}-{day_of_month:02}T{:02}:{:02}:{:02}.{micros:06}Z",
            second / 3600,
            second / 60 % 60,
            second % 60
        )
    }
}

impl FromStr for Timestamp {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let form = "a time; write it like 2026-11-22, 2026-11-22T00:14 or 2026-11-22T00:14:56Z (UTC)";
        parse(text.trim()).ok_or_else(|| UnitError::new(text, form))
    }
}

fn parse(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, time) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let mut parts = date.split('-').map(|part| number(part, 4));
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let (clock, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut clock = clock.split(':').map(|part| number(part, 2));
    let (hour, minute) = (clock.next()??, clock.next()??);
    let second = clock.next().unwrap_or(Some(0))?;
    let is_date = (1970..=9999).contains(&year) && (1..=12).contains(&month) && (1..=31).contains(&day);
    let is_time = hour <= 23 && minute <= 59 && second <= 60;
    if !is_date || !is_time || parts.next().is_some() || clock.next().is_some() {
        return None;
    }
    let micros = match fraction {
        "" => 0,
        _ => number(format!("{fraction:0<6}").get(..6)?, 6)?,
    };
    let (march_year, march_month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let (era, of_era) = (march_year / 400, march_year % 400);
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    let days = era * ERA + of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    let seconds = (days - DAYS_TO_1970) * DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp(seconds * SECOND + micros))
}

fn number(text: &str, longest: usize) -> Option<u64> {
    let digits = !text.is_empty() && text.len() <= longest && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

as_text!(Timestamp);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_the_calendar_has_it_and_read_back() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000000Z"),
            (1_735_689_600, "2025-01-01T00:00:00.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let moment = Timestamp(seconds * SECOND);
            assert_eq!(moment.to_string(), text);
            assert_eq!(text.parse(), Ok(moment));
        }
        assert_eq!("1970-01-01T00:00:01.5".parse(), Ok(Timestamp(1_500_000)));
    }

    #[test]
    fn a_person_may_leave_out_what_is_zero() {
        for text in ["2000-02-29", "2000-02-29T00:00", "2000-02-29 00:00:00"] {
            assert_eq!(text.parse(), Ok(Timestamp(951_782_400 * SECOND)), "{text}");
        }
        for text in ["", "yesterday", "2000-13-01", "2000-02", "2000-02-29T25:00", "1969-12-31"] {
            assert!(text.parse::<Timestamp>().unwrap_err().to_string().contains("2026-11-22"), "{text}");
        }
    }

    #[test]
    fn a_line_is_flat_and_says_what_it_is() {
        let line = Line {
            at: Timestamp(0),
            entry: Entry::Refusal(Refusal {
                operation: "memory.reserve".into(),
                session_id: SessionId(3),
                session: "train".into(),
                uid: 1000,
                pid: 5000,
                gpu: GpuId(0),
                uuid: None,
                requested: Bytes(10),
                limit: Bytes(32),
                used: Bytes(24),
                by: LimitKind::Session,
                result: Outcome::Refused,
                error_code: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            }),
        };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(
            text,
            r#"{"at":"1970-01-01T00:00:00.000000Z","what":"refusal","operation":"memory.reserve","session_id":3,"session":"train","uid":1000,"pid":5000,"gpu":0,"requested":10,"limit":32,"used":24,"by":"session","result":"refused","error_code":"CUDA_ERROR_OUT_OF_MEMORY"}"#
        );
        assert_eq!(serde_json::from_str::<Line>(&text).unwrap(), line);
    }
}

//! Command `usage`: prints card time, waits and memory of sessions, as JSON or as a table.

use std::collections::BTreeMap;

use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest, UsageView, UserUsageView};
use gpushare_proto::lookup::SessionRef;
use serde::Serialize;

use crate::cli::UsageArgs;
use crate::cli::moment::{self, KEPT, local};
use crate::exit::{self, CommandError, CtlError};
use crate::output;
use crate::places::Places;
use crate::table::{harmless, short, table};
use crate::users;
use gpushare_connection::{Admin, Client};

/// Length of the intervals for which the daemon records usage, in seconds.
const HOUR: u64 = 3600;

/// Period of whole hours for which usage is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    /// Start of the first hour, in seconds since 1970.
    from: u64,
    /// End in seconds since 1970: of the last hour, or now.
    until: u64,
    is_until_now: bool,
}

/// Invalid period of the arguments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PeriodError {
    #[error("usage is kept for thirty days; write a --since after {}", local(*.0))]
    LongAgo(u64),
    #[error("the period ends ({}) before it begins ({}); write an --until after --since", local(*.until), local(*.from))]
    Backwards { from: u64, until: u64 },
    #[error("the period begins in the future, at {}; write an earlier --since", local(*.0))]
    Future(u64),
}

impl CommandError for PeriodError {
    fn code(&self) -> u8 {
        exit::USAGE
    }
}

/// Usage of one session, as it is printed.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(flatten)]
    usage: UsageView,
    /// End of the counted period, in seconds since 1970.
    until_unix_s: u64,
    user: Option<String>,
    /// Name of the user on this machine; none for a control group or an unknown number.
    user_name: Option<String>,
}

pub(crate) fn usage(args: &UsageArgs, places: &Places) -> Result<(), CtlError> {
    let period = Period::of(args, moment::now())?;
    let user = args.user.as_deref().map(users::number).transpose()?;
    let mut client = Client::<Admin>::connect(places.administered())?;
    let request = AdminRequest::UsageBetween { from_unix_s: period.from, until_unix_s: period.until };
    let AdminReply::UserUsage(mut usages) = client.ask(&request)? else {
        return Err(client.unexpected().into());
    };
    if let Some(user) = user {
        usages.retain(|found| found.user.as_deref() == Some(user.trim_end_matches('/')));
    }
    if let Some(which) = &args.session {
        usages = of(usages, which)?;
    }
    let rows = rows(usages, period);
    Ok(output::show(args.json, &rows, || render(&rows, period))?)
}

impl Period {
    /// Returns the period of the arguments by a clock that shows `now`.
    fn of(args: &UsageArgs, now: u64) -> Result<Self, PeriodError> {
        let from = args.since.unix(now);
        let until = args.until.map_or(now, |until| until.unix(now));
        let oldest = now.saturating_sub(KEPT);
        if from < oldest {
            return Err(PeriodError::LongAgo(oldest));
        }
        if from > now {
            return Err(PeriodError::Future(from));
        }
        if args.until.is_some() && until <= from {
            return Err(PeriodError::Backwards { from, until });
        }
        let is_until_now = until >= now;
        // The hour of now is counted as far as it is over.
        let until = if is_until_now { now + 1 } else { until.next_multiple_of(HOUR) };
        Ok(Self { from: from / HOUR * HOUR, until, is_until_now })
    }
}

/// Returns the usage of the sessions with number or name `which`. Several ended sessions may share a name.
fn of(usages: Vec<UserUsageView>, which: &str) -> Result<Vec<UserUsageView>, CtlError> {
    let called = SessionRef::parse(which);
    let found: Vec<_> = usages
        .into_iter()
        .filter(|found| called.matches(Some(found.usage.session), Some(&found.usage.name)))
        .collect();
    match found.is_empty() {
        true => Err(CtlError::NotFound {
            kind: "session",
            name: harmless(which),
            known:
                "no session of that name or number used a card in that time; `gpushare-ctl usage` shows all"
                    .to_owned(),
        }),
        false => Ok(found),
    }
}

/// Returns the rows to print. Each user's name is looked up once.
fn rows(usages: Vec<UserUsageView>, period: Period) -> Vec<Row> {
    let mut names: BTreeMap<String, Option<String>> = BTreeMap::new();
    let mut row = |UserUsageView { user, usage }| {
        let name =
            |user: &String| names.entry(user.clone()).or_insert_with(|| users::known_name(user)).clone();
        let user_name = user.as_ref().and_then(name);
        Row { usage, until_unix_s: period.until, user, user_name }
    };
    usages.into_iter().map(&mut row).collect()
}

fn render(rows: &[Row], period: Period) -> String {
    let Period { from, until, is_until_now } = period;
    let step = match is_until_now {
        true => format!("(of the last {}, in whole hours)\n", short(Nanos::from_secs(until - from))),
        false => format!("(from {} to {}, in whole hours)\n", local(from), local(until)),
    };
    if rows.is_empty() {
        return format!("no session used a card\n{step}");
    }
    let user = |row: &Row| row.user_name.clone().or(row.user.clone()).unwrap_or_default();
    let table = table(
        rows,
        &[
            ("SESSION", |row| row.usage.session.to_string()),
            ("NAME", |row| row.usage.name.clone()),
            ("USER", user),
            ("STATE", |row| if row.usage.alive { "alive" } else { "ended" }.to_owned()),
            ("GPU TIME", |row| seconds(row.usage.gpu_time_ns)),
            ("WAITED", |row| seconds(row.usage.waited_ns)),
            ("HELD", |row| seconds(row.usage.held_ns)),
            ("MOVED", |row| row.usage.moved_bytes.to_string()),
            ("PEAK", |row| row.usage.peak_bytes.to_string()),
        ],
    );
    table + &step
}

/// Formats a duration in seconds, like `5400.2s`, so that columns can be added up.
fn seconds(time: Nanos) -> String {
    let tenths = time.0 / 100_000_000;
    format!("{}.{}s", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Moment;

    const NOW: u64 = 500_000 * HOUR + 900;

    fn period(since: &str, until: Option<&str>) -> Result<Period, PeriodError> {
        let moment = |text: &str| text.parse::<Moment>().unwrap();
        let until = until.map(moment);
        Period::of(&UsageArgs { since: moment(since), until, user: None, session: None, json: false }, NOW)
    }

    #[test]
    fn what_is_counted_begins_with_an_hour() {
        let from = |since| period(since, None).unwrap().from;
        assert_eq!(from("600s"), NOW - 900);
        assert_eq!(from("1h"), NOW - 900 - HOUR);
        assert_eq!(from("960s"), NOW - 900 - HOUR);
        assert!(period("1h", None).unwrap().is_until_now);
    }

    #[test]
    fn what_is_counted_ends_with_an_hour_that_is_over() {
        let found = period("2d", Some("1d")).unwrap();
        let day = 24 * HOUR;
        assert_eq!(found, Period { from: NOW - 900 - 2 * day, until: NOW + 2700 - day, is_until_now: false });
    }

    #[test]
    fn a_period_that_cannot_be_is_refused() {
        assert_eq!(
            period("1h", Some("1h")),
            Err(PeriodError::Backwards { from: NOW - HOUR, until: NOW - HOUR })
        );
        assert_eq!(period("2000-01-01", None), Err(PeriodError::LongAgo(NOW - KEPT)));
        assert!(matches!(period("2100-01-01", None), Err(PeriodError::Future(_))));
    }
}

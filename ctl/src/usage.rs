//! Command `usage`: prints card time, waits and memory of sessions, as JSON or as a table.

use std::time::{SystemTime, UNIX_EPOCH};

use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest, UsageView};
use gpushare_proto::lookup::SessionRef;

use crate::cli::UsageArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::{harmless, short, table};
use gpushare_connection::{Admin, Client};

/// Length of the intervals for which the daemon records usage, in seconds.
const HOUR: u64 = 3600;

pub(crate) fn usage(args: &UsageArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let AdminReply::Usage(mut usages) = client.ask(&AdminRequest::Usage { since: args.since })? else {
        return Err(client.unexpected().into());
    };
    if let Some(which) = &args.session {
        usages = of(usages, which)?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let counted = counted(args.since, now.as_secs());
    Ok(output::show(args.json, &usages, || render(&usages, counted))?)
}

/// Returns the usage of the sessions with number or name `which`. Several ended sessions may share a name.
fn of(usages: Vec<UsageView>, which: &str) -> Result<Vec<UsageView>, CtlError> {
    let called = SessionRef::parse(which);
    let found: Vec<_> = usages
        .into_iter()
        .filter(|usage| called.matches(Some(usage.session), Some(&usage.name)))
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

/// Returns the duration of the period that usage is counted for, which begins at a full hour.
fn counted(since: Nanos, now: u64) -> Nanos {
    let from = now.saturating_sub(since.0 / 1_000_000_000);
    Nanos::from_secs(now - from / HOUR * HOUR)
}

fn render(usages: &[UsageView], counted: Nanos) -> String {
    let step = format!("(of the last {}, in whole hours)\n", short(counted));
    if usages.is_empty() {
        return format!("no session used a card\n{step}");
    }
    let table = table(
        usages,
        &[
            ("SESSION", |usage| usage.session.to_string()),
            ("NAME", |usage| usage.name.clone()),
            ("STATE", |usage| if usage.alive { "alive" } else { "ended" }.to_owned()),
            ("GPU TIME", |usage| seconds(usage.gpu_time_ns)),
            ("WAITED", |usage| seconds(usage.waited_ns)),
            ("HELD", |usage| seconds(usage.held_ns)),
            ("MOVED", |usage| usage.moved_bytes.to_string()),
            ("PEAK", |usage| usage.peak_bytes.to_string()),
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

    #[test]
    fn what_is_counted_begins_with_an_hour() {
        let quarter_past = 100 * HOUR + 900;
        assert_eq!(counted(Nanos::from_secs(600), quarter_past), Nanos::from_secs(900));
        assert_eq!(counted(Nanos::from_secs(HOUR), quarter_past), Nanos::from_secs(900 + HOUR));
        assert_eq!(counted(Nanos::from_secs(960), quarter_past), Nanos::from_secs(900 + HOUR));
    }
}

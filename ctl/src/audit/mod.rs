//! Command `audit`: reads the audit log with its rotated files, without a running daemon.

mod files;
mod words;

use std::io::{self, ErrorKind, Write as _};
use std::time::{Duration, SystemTime};

use gpushare_proto::audit::{Entry, Line, Timestamp};
use gpushare_proto::lookup::SessionRef;

use crate::cli::{AuditCommand, AuditPlace, Since};
use crate::exit::CtlError;
use crate::places::Places;
use files::{Follow, Log};

/// Interval at which `audit tail --follow` reads the audit log again.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) fn audit(command: &AuditCommand, places: &Places) -> Result<(), CtlError> {
    let path = |place: &AuditPlace| {
        let default = || places.administered().audit();
        place.file.clone().unwrap_or_else(default)
    };
    match command {
        AuditCommand::Tail { lines, follow, json, place } => {
            let log = Log::open(&path(place))?;
            to_its_end(tail(log, *lines, *follow, *json))
        }
        AuditCommand::Grep { pattern, since, session, json, place } => {
            let since = since.as_ref().map(|since| earliest(since, SystemTime::now()));
            to_its_end(Log::open(&path(place))?.each(|line| {
                let wanted = matches(line, pattern, since, session.as_deref());
                if wanted { show(line, *json) } else { Ok(()) }
            }))
        }
    }
}

fn tail(log: Log, lines: usize, follow: bool, json: bool) -> Result<(), CtlError> {
    let (last, at) = log.tail(lines)?;
    last.iter().try_for_each(|line| show(line, json))?;
    if !follow {
        return Ok(());
    }
    let mut follow = Follow::new(log, at);
    loop {
        follow.more()?.iter().try_for_each(|line| show(line, json))?;
        std::thread::sleep(PAUSE);
    }
}

/// Turns the error of a closed standard output into success.
fn to_its_end(result: Result<(), CtlError>) -> Result<(), CtlError> {
    match result {
        Err(CtlError::Output(cause)) if cause.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Returns the point in time that `since` means, by the wall clock `now` of this machine.
fn earliest(since: &Since, now: SystemTime) -> Timestamp {
    match since {
        Since::At(moment) => *moment,
        Since::Ago(span) => {
            let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            let micros = now.saturating_sub(Duration::from(*span)).as_micros();
            Timestamp(u64::try_from(micros).unwrap_or(u64::MAX))
        }
    }
}

/// Returns whether a line of the log matches the filters; `pattern` in the readable form or in the JSON.
fn matches(raw: &str, pattern: &str, since: Option<Timestamp>, session: Option<&str>) -> bool {
    let line: Option<Line> = serde_json::from_str(raw).ok();
    let shown = line.as_ref().map(words::of);
    let has = raw.contains(pattern) || shown.is_some_and(|shown| shown.contains(pattern));
    let late = since.is_none_or(|since| line.as_ref().is_some_and(|line| line.at >= since));
    let about =
        session.is_none_or(|session| line.as_ref().is_some_and(|line| is_about(&line.entry, session)));
    has && late && about
}

fn is_about(entry: &Entry, which: &str) -> bool {
    let (id, name) = match entry {
        Entry::Action(act) => (act.session_id, act.session.as_deref()),
        Entry::Refusal(refusal) => (Some(refusal.session_id), Some(refusal.session.as_str())),
        Entry::Allocation(allocation) => (Some(allocation.session_id), Some(allocation.session.as_str())),
        Entry::Omitted { session_id, session, .. } => (*session_id, session.as_deref()),
        Entry::Lost { .. } => (None, None),
    };
    SessionRef::parse(which).matches(id, name)
}

/// Prints a line of the log as JSON or in readable form. Unknown lines lose their control characters.
fn show(raw: &str, json: bool) -> Result<(), CtlError> {
    let shown = match serde_json::from_str::<Line>(raw) {
        _ if json => raw.to_owned(),
        Ok(line) => words::of(&line),
        Err(_) => crate::table::harmless(raw),
    };
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{shown}")?;
    Ok(stdout.flush()?)
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Nanos;

    use super::*;

    const PAUSED: &str = r#"{"at":"2026-11-22T00:14:56.000000Z","what":"act","operation":"session.pause","uid":0,"pid":7,"session_id":3,"session":"train","old":"running","new":"paused","result":"ok"}"#;

    #[test]
    fn a_line_is_found_by_its_words_its_json_its_session_and_its_time() {
        let at = |text: &str| Some(text.parse().unwrap());
        for (pattern, since, session, found) in [
            ("running → paused", None, None, true),
            (r#""operation":"session.pause""#, None, None, true),
            ("resume", None, None, false),
            ("", None, Some("train"), true),
            ("", None, Some("s3"), true),
            ("", None, Some("3"), true),
            ("", None, Some("infer"), false),
            ("", at("2026-11-22T00:14"), None, true),
            ("", at("2026-11-22T00:15"), None, false),
        ] {
            assert_eq!(matches(PAUSED, pattern, since, session), found, "{pattern} {since:?} {session:?}");
        }
        assert!(matches("torn", "torn", None, None) && !matches("torn", "torn", at("1970-01-01"), None));
    }

    #[test]
    fn an_age_is_an_instant_by_the_clock() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(100);
        assert_eq!(earliest(&Since::Ago(Nanos::from_secs(60)), now), Timestamp(40_000_000));
        assert_eq!(earliest(&Since::Ago(Nanos::from_secs(200)), now), Timestamp(0));
        assert_eq!(earliest(&Since::At(Timestamp(5)), now), Timestamp(5));
    }
}

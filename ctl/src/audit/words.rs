//! Readable form of a line of the audit log.

use gpushare_proto::Bytes;
use gpushare_proto::audit::{Action, Entry, Line, Outcome};
use gpushare_proto::page::LimitKind;

use crate::explain::limit_name;
use crate::table::harmless;

/// Returns a line like `2026-11-22T00:14:56Z  act      user 0, pid 7: session.pause train (s3): running → paused`.
pub(super) fn of(line: &Line) -> String {
    let (kind, text) = match &line.entry {
        Entry::Action(act) => ("act", act_words(act)),
        Entry::Refusal(refusal) => {
            let why = match (refusal.by, refusal.limit) {
                (LimitKind::Session, Bytes::ZERO) => {
                    format!(", but the session was expired or revoked; it used {}", refusal.used)
                }
                _ => format!(
                    "; {} of {} of {} are in use",
                    refusal.used,
                    limit_name(refusal.by),
                    refusal.limit
                ),
            };
            let text = format!(
                "{} ({}), pid {}, user {} on {}: asked for {}{why}",
                refusal.session, refusal.session_id, refusal.pid, refusal.uid, refusal.gpu, refusal.requested
            );
            ("refused", text)
        }
        Entry::Omitted { session, uid, count, .. } => {
            let text = match (session, uid) {
                (Some(session), _) => format!("{count} more refusals of {session}"),
                (None, Some(uid)) => {
                    format!("{count} more registrations and refused requests of user {uid}")
                }
                (None, None) => format!("{count} more"),
            };
            ("more", text)
        }
        Entry::Allocation(allocation) => {
            let sampled = match allocation.one_in {
                1 => String::new(),
                one_in => format!(" (1 in {one_in} is logged)"),
            };
            let text = format!(
                "{} ({}), pid {}, user {} on {}: {}, {} leased in total{sampled}",
                allocation.session,
                allocation.session_id,
                allocation.pid,
                allocation.uid,
                allocation.gpu,
                allocation.bytes,
                allocation.leased
            );
            ("memory", text)
        }
        Entry::Lost { lines } => ("lost", format!("{lines} lines could not be written before this one")),
    };
    let at = line.at.to_string();
    let second = at.split('.').next().unwrap_or_default();
    harmless(&format!("{second}Z  {kind:<8} {text}"))
}

fn act_words(act: &Action) -> String {
    let mut text = format!("user {}, pid {}: {}", act.uid, act.pid, act.operation);
    match (&act.session, act.session_id, act.gpu) {
        (Some(name), Some(id), _) => text += &format!(" {name} ({id})"),
        (Some(name), None, _) => text += &format!(" {name}"),
        (None, _, Some(gpu)) => text += &format!(" of {gpu}"),
        (None, _, None) => {}
    }
    match (&act.old, &act.new) {
        (Some(old), Some(new)) => text += &format!(": {old} → {new}"),
        (None, Some(new)) | (Some(new), None) => text += &format!(": {new}"),
        (None, None) => {}
    }
    let failed = match act.result {
        Outcome::Ok => return text,
        Outcome::Refused => "refused",
        Outcome::Failed => "failed",
    };
    match &act.why {
        Some(why) => format!("{text}: {failed}: {why}"),
        None => format!("{text}: {failed}"),
    }
}

//! Readable form of the audit log's lines.

use gpushare_proto::audit::{Action, Allocation, Entry, Line, Outcome, Refusal};
use gpushare_proto::page::MemoryRefusal;

use crate::explain::asked;
use crate::table::harmless;

/// Returns a line like `2026-11-22T00:14:56Z  act      user 0, pid 7: session.pause train (s3): running → paused`.
pub(super) fn of(line: &Line) -> String {
    let (kind, text) = match &line.entry {
        Entry::Action(act) => ("act", act_words(act)),
        Entry::Refusal(refusal) => {
            let Refusal { session, session_id, pid, uid, gpu, .. } = refusal;
            let Refusal { requested, limit, used, by, .. } = *refusal;
            let asked = asked(&MemoryRefusal { requested, limit, used, by });
            let text = format!("{session} ({session_id}), pid {pid}, user {uid} on {gpu}: {asked}");
            ("refused", text)
        }
        Entry::Omitted { session, uid, count, .. } => {
            let text = match (session, uid) {
                (Some(session), _) => format!("{count} more refusals of {session}"),
                (None, Some(uid)) => format!("{count} more registrations and refused requests of user {uid}"),
                (None, None) => format!("{count} more"),
            };
            ("more", text)
        }
        Entry::Allocation(allocation) => {
            let sampled = match allocation.one_in {
                1 => String::new(),
                one_in => format!(" (1 in {one_in} is logged)"),
            };
            let Allocation { session, session_id, pid, uid, gpu, bytes, leased, .. } = allocation;
            let text = format!(
                "{session} ({session_id}), pid {pid}, user {uid} on {gpu}: {bytes}, {leased} leased in total{sampled}"
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

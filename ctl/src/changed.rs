//! What a command changed: the value of before and the new one, in the daemon's words, as a line or as JSON.

use std::{fmt, io};

use gpushare_proto::GpuId;
use gpushare_proto::admin::AdminReply;
use serde::Serialize;

use crate::output;
use crate::table::harmless;

/// Of whom something changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose<'a> {
    /// Of one card, or of all.
    Card(Option<GpuId>),
    /// What a session was given.
    Session(&'a str),
    /// What a session may do at all.
    State(&'a str),
}

/// One change. A card that is none is all of them; one of a session has none.
#[derive(Debug, Serialize)]
pub(crate) struct Changed<'a> {
    key: &'a str,
    #[serde(flatten)]
    whose: Named<'a>,
    old: &'a str,
    new: &'a str,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Named<'a> {
    Gpu(Option<GpuId>),
    Session(&'a str),
}

/// `quantum of gpu0`, `memory of session a`, `session a`.
struct Subject<'a>(&'a str, Whose<'a>);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(key, whose) = self;
        match whose {
            Whose::Card(None) => write!(f, "{key} of all cards"),
            Whose::Card(Some(gpu)) => write!(f, "{key} of {gpu}"),
            Whose::Session(which) => write!(f, "{key} of session {}", harmless(which)),
            Whose::State(which) => write!(f, "session {}", harmless(which)),
        }
    }
}

/// Prints `quantum of gpu0: 3s (computed) → 100ms`, or the same as one JSON object. Whether the answer was one.
pub(crate) fn print(key: &str, whose: Whose<'_>, answer: &AdminReply, json: bool) -> io::Result<bool> {
    let AdminReply::Changed { old, new } = answer else {
        return Ok(false);
    };
    let subject = Subject(key, whose);
    let whose = match whose {
        Whose::Card(gpu) => Named::Gpu(gpu),
        Whose::Session(which) | Whose::State(which) => Named::Session(which),
    };
    match json {
        true => output::print_json(&Changed { key, whose, old, new })?,
        false => output::print(&format!("{subject}: {} → {}\n", harmless(old), harmless(new)))?,
    }
    Ok(true)
}

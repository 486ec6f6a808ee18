//! Output of a change: the old and the new value in the daemon's words, as a line or as JSON.

use std::{fmt, io};

use gpushare_proto::GpuId;
use gpushare_proto::admin::AdminReply;
use serde::Serialize;

use crate::output;
use crate::table::harmless;

/// Owner of a changed value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Whose<'a> {
    /// One card; none for all cards.
    Card(Option<GpuId>),
    /// Session, by name or number, one of whose terms changed.
    Session(&'a str),
    /// Session, by name or number, whose phase or lifetime changed.
    State(&'a str),
}

/// JSON document of a change. It has the key `gpu` (null for all cards) or `session`.
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

/// Name of a changed value: `quantum of gpu0`, `memory of session a`, `session a`.
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

/// Prints a change as `quantum of gpu0: 3s (computed) → 100ms` or as JSON. Returns whether `answer` reports one.
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

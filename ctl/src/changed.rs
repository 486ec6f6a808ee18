//! Output of a change: the old and the new value in the daemon's words, as a line or as JSON.

use gpushare_proto::GpuId;
use gpushare_proto::admin::{AdminReply, AdminRequest};
use serde::Serialize;

use crate::client::{Admin, Client};
use crate::exit::CtlError;
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
struct Changed<'a> {
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

/// Sends a request that changes a value, and prints `quantum of gpu0: 3s (computed) → 100ms` or JSON.
pub(crate) fn request(
    client: &mut Client<Admin>,
    (key, whose): (&str, Whose<'_>),
    request: &AdminRequest,
    json: bool,
) -> Result<(), CtlError> {
    let AdminReply::Changed { old, new } = client.ask(request)? else {
        return Err(client.unexpected().into());
    };
    let (old, new) = (old.as_str(), new.as_str());
    let named = match whose {
        Whose::Card(gpu) => Named::Gpu(gpu),
        Whose::Session(which) | Whose::State(which) => Named::Session(which),
    };
    let subject = || match whose {
        Whose::Card(None) => format!("{key} of all cards"),
        Whose::Card(Some(gpu)) => format!("{key} of {gpu}"),
        Whose::Session(which) => format!("{key} of session {}", harmless(which)),
        Whose::State(which) => format!("session {}", harmless(which)),
    };
    let line = || format!("{}: {} → {}\n", subject(), harmless(old), harmless(new));
    Ok(output::show(json, &Changed { key, whose: named, old, new }, line)?)
}

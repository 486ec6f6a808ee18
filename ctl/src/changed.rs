//! Output of changed settings and terms: the old and the new value in the daemon's words, as lines or as
//! JSON.

use gpushare_proto::GpuId;
use gpushare_proto::admin::{AdminReply, AdminRequest, ConfigChange};
use serde::Serialize;

use crate::cli::ReloadArgs;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::table::harmless;
use gpushare_connection::{Admin, Client};

/// Card, session or user whose setting, term or phase a command changed.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Whose<'a> {
    /// A card whose setting changed; none for all cards.
    #[serde(rename = "gpu")]
    Card(Option<GpuId>),
    /// A session, by name or number, one of whose terms changed.
    Session(&'a str),
    /// A user, by name or number, whose weight changed.
    User(&'a str),
    /// A session, by name or number, whose phase or lifetime changed.
    #[serde(rename = "session")]
    State(&'a str),
}

/// JSON document of a changed value, with the key `gpu` (null for all cards), `session` or `user`.
#[derive(Debug, Serialize)]
struct Changed<'a> {
    key: &'a str,
    #[serde(flatten)]
    whose: Whose<'a>,
    old: &'a str,
    new: &'a str,
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
    let subject = || match whose {
        Whose::Card(None) => format!("{key} of all cards"),
        Whose::Card(Some(gpu)) => format!("{key} of {gpu}"),
        Whose::Session(which) => format!("{key} of session {}", harmless(which)),
        Whose::User(which) => format!("{key} of user {}", harmless(which)),
        Whose::State(which) => format!("session {}", harmless(which)),
    };
    let line = || format!("{}: {} → {}\n", subject(), harmless(old), harmless(new));
    Ok(output::show(json, &Changed { key, whose, old, new }, line)?)
}

/// Makes the daemon read its configuration again, and prints the old and the new value of each changed key.
pub(crate) fn reload(args: &ReloadArgs, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::<Admin>::connect(places.administered())?;
    let AdminReply::Reloaded(changes) = client.ask(&AdminRequest::Reload)? else {
        return Err(client.unexpected().into());
    };
    Ok(output::show(args.json, &changes, || page(&changes))?)
}

fn page(changes: &[ConfigChange]) -> String {
    if changes.is_empty() {
        return "nothing changed: the daemon already runs with the values of its configuration\n".to_owned();
    }
    let line = |ConfigChange { key, old, new, live }: &ConfigChange| {
        let when = if *live { "" } else { " (takes effect at the next start)" };
        format!("{}: {} → {}{when}\n", harmless(key), harmless(old), harmless(new))
    };
    changes.iter().map(line).collect()
}

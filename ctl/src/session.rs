//! `session`: the sessions of a daemon, all or one.

use gpushare_proto::admin::SessionView;

use crate::cli::SessionCommand;
use crate::client::Client;
use crate::exit::CtlError;
use crate::places::Places;
use crate::table::{harmless, list};
use crate::{output, status};

/// Runs one of the session commands.
pub(crate) fn session(command: &SessionCommand, places: &Places) -> Result<(), CtlError> {
    let sessions = status::fetch(&mut Client::connect(places.administered())?)?.sessions;
    match command {
        SessionCommand::List { json: true } => output::print_json(&sessions)?,
        SessionCommand::List { json: false } => output::print(&status::sessions(&sessions))?,
        SessionCommand::Show { which, json } => {
            let session = find(&sessions, which)?;
            if *json {
                output::print_json(session)?;
            } else {
                output::print(&status::one_session(session))?;
            }
        }
    }
    Ok(())
}

/// The session with this name, else with this number.
fn find<'a>(sessions: &'a [SessionView], which: &str) -> Result<&'a SessionView, CtlError> {
    let named: Vec<_> = sessions.iter().filter(|session| session.name == which).collect();
    match named[..] {
        [only] => return Ok(only),
        [] => {}
        [..] => {
            return Err(CtlError::Ambiguous {
                name: which.to_owned(),
                count: named.len(),
                numbers: list(named.iter().map(|session| session.session)),
            });
        }
    }
    let number = which.strip_prefix('s').unwrap_or(which).parse();
    sessions
        .iter()
        .find(|session| number == Ok(session.session.0))
        .ok_or_else(|| CtlError::NotFound {
            kind: "session",
            name: harmless(which),
            known: match sessions {
                [] => "the daemon has no sessions".to_owned(),
                _ => "`gpushare-ctl session list` names them".to_owned(),
            },
        })
}

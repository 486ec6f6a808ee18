//! `session`: the sessions of a daemon: to look at, to make, to change.

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest, SessionView};
use gpushare_proto::session::Binding;
use gpushare_proto::tenant::NewSession;
use serde_json::json;

use crate::cli::{CreateArgs, SessionCommand, Which};
use crate::client::{Admin, Client};
use crate::exit::CtlError;
use crate::places::Places;
use crate::run::token;
use crate::table::{harmless, list};
use crate::{output, status};

/// Runs one of the session commands.
pub(crate) fn session(command: &SessionCommand, places: &Places) -> Result<(), CtlError> {
    let mut client = Client::connect(places.administered())?;
    let request = match command {
        SessionCommand::List { json } => {
            let sessions = status::fetch(&mut client)?.sessions;
            match json {
                true => output::print_json(&sessions)?,
                false => output::print(&status::sessions(&sessions))?,
            }
            return Ok(());
        }
        SessionCommand::Show { which, json } => {
            let sessions = status::fetch(&mut client)?.sessions;
            let session = find(&sessions, which)?;
            match json {
                true => output::print_json(session)?,
                false => output::print(&status::one_session(session))?,
            }
            return Ok(());
        }
        SessionCommand::Create(args) => return create(&mut client, args, places),
        SessionCommand::Renew { which, ttl } => SessionRequest::Renew {
            which: which.clone(),
            ttl: *ttl,
        },
        SessionCommand::Revoke(Which { which }) => SessionRequest::Revoke { which: which.clone() },
        SessionCommand::Delete(Which { which }) => SessionRequest::Delete { which: which.clone() },
        SessionCommand::Pause(Which { which }) => SessionRequest::Pause { which: which.clone() },
        SessionCommand::Resume(Which { which }) => SessionRequest::Resume { which: which.clone() },
    };
    change(&mut client, "session", request)
}

/// Sends a request that changes something, and prints what it was and is.
pub(crate) fn change(
    client: &mut Client<Admin>,
    what: &str,
    request: SessionRequest,
) -> Result<(), CtlError> {
    let which = match &request {
        SessionRequest::Create { .. } => String::new(),
        SessionRequest::Change { which, .. }
        | SessionRequest::Renew { which, .. }
        | SessionRequest::Revoke { which }
        | SessionRequest::Delete { which }
        | SessionRequest::Pause { which }
        | SessionRequest::Resume { which } => harmless(which),
    };
    match client.ask(&AdminRequest::Session(request))? {
        AdminReply::Changed { old, new } => {
            output::print(&format!(
                "{what} {which}: {} → {}\n",
                harmless(&old),
                harmless(&new)
            ))?;
            Ok(())
        }
        _ => Err(client.unexpected().into()),
    }
}

fn create(client: &mut Client<Admin>, args: &CreateArgs, places: &Places) -> Result<(), CtlError> {
    let new = NewSession {
        name: Some(args.name.clone()),
        // Only what is said here: the caller's own environment is for the caller's own programs.
        terms: args.terms.terms(|_| None)?,
        oversubscribe: args.oversubscribe,
        gpu: args.gpu.clone(),
    };
    let binding = match (args.uid, &args.cgroup) {
        (Some(uid), _) => Binding::Uid(uid),
        (None, Some(path)) => Binding::Cgroup(path.clone()),
        (None, None) => Binding::Token,
    };
    let whose = binding.to_string();
    let AdminReply::Created {
        session,
        name,
        token,
        gpu,
    } = client.ask(&AdminRequest::Session(SessionRequest::Create { new, binding }))?
    else {
        return Err(client.unexpected().into());
    };
    let secrets = places.secrets(places.administered());
    let file = token
        .map(|token| token::keep(secrets, &name, args.token_file.as_deref(), &token))
        .transpose()?;
    if args.json {
        output::print_json(&json!({ "session": session, "name": name, "token_file": file, "gpu": gpu }))?;
    } else {
        let name = harmless(&name);
        output::print(&match &file {
            Some(file) => format!(
                "session {name} ({session}); its token is in {}: `gpushare-ctl run --session {name} -- PROGRAM` joins it\n",
                file.display()
            ),
            None => format!(
                "session {name} ({session}); the processes of {whose} belong to it from their next start\n"
            ),
        })?;
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

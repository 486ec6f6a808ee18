//! Command `session`: lists, shows, creates and changes the sessions of a daemon.

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest, SessionState, SessionView};
use gpushare_proto::lookup::{self, LookupError};
use gpushare_proto::session::Binding;
use gpushare_proto::tenant::NewSession;
use serde_json::json;

use crate::changed::{self, Whose};
use crate::cli::{CreateArgs, NoneOr, SessionCommand, TokenArgs, Which};
use crate::exit::CtlError;
use crate::places::Places;
use crate::run::token::{self, Draft};
use crate::table::{harmless, list};
use crate::{frost, output, status};
use gpushare_connection::{Admin, Client};

pub(crate) fn session(command: &SessionCommand, places: &Places) -> Result<(), CtlError> {
    let client = || Client::connect(places.administered());
    match command {
        SessionCommand::List { json } => {
            let sessions = status::fetch(&mut client()?)?.sessions;
            Ok(output::show(*json, &sessions, || status::sessions(&sessions))?)
        }
        SessionCommand::Show { which, json } => {
            let sessions = status::fetch(&mut client()?)?.sessions;
            let session = find(&sessions, which)?;
            Ok(output::show(*json, session, || status::one_session(session))?)
        }
        SessionCommand::Create(args) => create(&mut client()?, args, places),
        SessionCommand::Token(args) => reissue(&mut client()?, args, places),
        SessionCommand::Renew { ttl, session: Which { which, json } } => {
            let request = match ttl {
                Some(NoneOr(None)) => SessionRequest::Endless { which: which.clone() },
                ttl => SessionRequest::Renew {
                    which: which.clone(),
                    ttl: ttl.as_ref().and_then(|NoneOr(ttl)| *ttl),
                },
            };
            turn(&mut client()?, which, request, *json)
        }
        SessionCommand::Revoke(args) => {
            end(&mut client()?, |which| SessionRequest::Revoke { which }, args, places)
        }
        SessionCommand::Delete(args) => {
            end(&mut client()?, |which| SessionRequest::Delete { which }, args, places)
        }
        SessionCommand::Pause { free_memory: true, session } => frost::pause(client()?, session),
        SessionCommand::Pause { session: Which { which, json }, .. } => {
            turn(&mut client()?, which, SessionRequest::Pause { which: which.clone() }, *json)
        }
        SessionCommand::Resume(Which { which, json }) => {
            turn(&mut client()?, which, SessionRequest::Resume { which: which.clone() }, *json)
        }
        // Users may do this with sessions of their own.
        SessionCommand::Freeze(args) => frost::freeze(places, args),
        SessionCommand::Thaw(args) => frost::thaw(places, args),
    }
}

/// Changes the phase or lifetime of a session and prints the change.
fn turn(
    client: &mut Client<Admin>,
    which: &str,
    request: SessionRequest,
    json: bool,
) -> Result<(), CtlError> {
    changed::request(client, ("state", Whose::State(which)), &AdminRequest::Session(request), json)
}

/// Revokes or deletes a session and removes the session's token file.
fn end(
    client: &mut Client<Admin>,
    request: fn(String) -> SessionRequest,
    Which { which, json }: &Which,
    places: &Places,
) -> Result<(), CtlError> {
    let sessions = status::fetch(client)?.sessions;
    // Only `session create` writes a token file. The daemon reports an unknown session itself.
    let has_token = |state: &SessionState| state.kept && state.binding == Binding::Token;
    let found = find(&sessions, which).ok().filter(|session| has_token(&session.state));
    turn(client, which, request(which.clone()), *json)?;
    if let Some(session) = found {
        token::forget(places.secrets(places.administered()), &session.name);
    }
    Ok(())
}

/// Makes the daemon give a session a new token, and writes that to the token file.
fn reissue(client: &mut Client<Admin>, args: &TokenArgs, places: &Places) -> Result<(), CtlError> {
    let sessions = status::fetch(client)?.sessions;
    let session = find(&sessions, &args.which)?;
    let secrets = places.secrets(places.administered());
    let draft = Draft::new(secrets, &session.name, args.token_file.as_deref())?;
    let which = session.session.to_string();
    let AdminReply::Token { session, name, token } =
        client.ask(&AdminRequest::Session(SessionRequest::Token { which }))?
    else {
        return Err(client.unexpected().into());
    };
    // The old token is invalid already: if this fails, the user asks for another one.
    let file = draft.keep(&token)?;
    if args.json {
        output::print_json(&json!({ "session": session, "name": name, "token_file": file }))?;
    } else {
        let (name, file) = (harmless(&name), file.display());
        output::print(&format!(
            "session {name} ({session}) has a new token, in {file}; the old token is invalid\n"
        ))?;
    }
    Ok(())
}

fn create(client: &mut Client<Admin>, args: &CreateArgs, places: &Places) -> Result<(), CtlError> {
    let new = NewSession {
        name: Some(args.name.clone()),
        // Only the flags count: the caller's environment is for the caller's own programs.
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
    let secrets = places.secrets(places.administered());
    // First the file, then the session: a session whose token cannot be written could not be joined.
    let draft = match &binding {
        Binding::Token => Some(Draft::new(secrets, &args.name, args.token_file.as_deref())?),
        Binding::Uid(_) | Binding::Cgroup(_) | Binding::Pod(_) => None,
    };
    let AdminReply::Created { session, name, token, gpu } =
        client.ask(&AdminRequest::Session(SessionRequest::Create { new, binding }))?
    else {
        return Err(client.unexpected().into());
    };
    let file = match (draft, token) {
        (Some(draft), Some(token)) => match draft.keep(&token) {
            Ok(file) => Some(file),
            Err(error) => {
                let which = session.to_string();
                // The failure to write the token is the error to report, whether or not the deletion succeeds.
                let _ = client.ask(&AdminRequest::Session(SessionRequest::Delete { which }));
                return Err(error.into());
            }
        },
        _ => None,
    };
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
                "session {name} ({session}); processes of {whose} that start from now on belong to it\n"
            ),
        })?;
    }
    Ok(())
}

/// Returns the session whose number or name is `which`.
fn find<'a>(sessions: &'a [SessionView], which: &str) -> Result<&'a SessionView, CtlError> {
    let all = || {
        sessions
            .iter()
            .map(|session| (session.session, session.name.as_str(), session.state.kept))
    };
    let not_found = || CtlError::NotFound {
        kind: "session",
        name: harmless(which),
        known: match sessions {
            [] => "the daemon has no sessions".to_owned(),
            _ => "`gpushare-ctl session list` names them".to_owned(),
        },
    };
    match lookup::find(which, all()) {
        Ok(id) => sessions.iter().find(|session| session.session == id).ok_or_else(not_found),
        Err(LookupError::NotFound) => Err(not_found()),
        Err(LookupError::Ambiguous(found)) => {
            Err(CtlError::Ambiguous { name: which.to_owned(), count: found.len(), numbers: list(found) })
        }
    }
}

//! Command `own`: shows the session of the process that calls it, and changes that session's memory limit.
//!
//! It asks on the tenant socket, as any user may, and the daemon finds the session by the caller's parents.

use gpushare_proto::SessionId;
use gpushare_proto::admin::{ResidenceView, SessionView};
use gpushare_proto::follow::Increment;
use gpushare_proto::tenant::{OwnWait, TenantReply, TenantRequest};
use serde::Serialize;

use crate::cli::OwnArgs;
use crate::exit::{CommandError, CtlError};
use crate::places::Places;
use crate::run::start;
use crate::table::{harmless, list, short};
use crate::{exit, output, status};
use gpushare_connection::{Client, ClientError, Tenant};

/// Reason why the command has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OwnError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("no daemon runs; `gpushare-ctl run` starts one")]
    NoDaemon,
    #[error("this process has no session; start it by `gpushare-ctl run`")]
    NoSession,
}

impl CommandError for OwnError {
    fn code(&self) -> u8 {
        match self {
            Self::Client(error) => error.code(),
            Self::NoDaemon => exit::DAEMON_DOWN,
            Self::NoSession => exit::NOT_FOUND,
        }
    }
}

/// The caller's session, the places of its remapped memory, its wait, and the change that was asked for.
#[derive(Debug, Serialize)]
struct Own {
    session: Box<SessionView>,
    residences: Vec<ResidenceView>,
    wait: Option<OwnWait>,
    changed: Option<Changed>,
}

/// Change of the memory limit, in words.
#[derive(Debug, Serialize)]
struct Changed {
    old: String,
    new: String,
}

pub(crate) fn own(args: &OwnArgs, places: &Places) -> Result<(), CtlError> {
    let own = ask(args, places)?;
    output::show(args.json, &own, || words(&own))?;
    Ok(())
}

fn ask(args: &OwnArgs, places: &Places) -> Result<Own, OwnError> {
    let (_, mut client) = start::running(places)?.ok_or(OwnError::NoDaemon)?;
    let changed = match &args.memory {
        None => None,
        Some(limit) => match client.ask(&TenantRequest::Resize(limit.0.clone()))? {
            TenantReply::Resized { old, new } => Some(Changed { old, new }),
            _ => return Err(client.unexpected().into()),
        },
    };
    let TenantReply::OwnSession(session) = client.ask(&TenantRequest::OwnSession)? else {
        return Err(client.unexpected().into());
    };
    let session = session.ok_or(OwnError::NoSession)?;
    let residences = residences(&mut client, session.session)?;
    Ok(Own { wait: wait(&mut client)?, session, residences, changed })
}

/// Returns the places of the remapped memory of a session.
fn residences(client: &mut Client<Tenant>, of: SessionId) -> Result<Vec<ResidenceView>, OwnError> {
    let TenantReply::OwnSessions(increments) = client.ask(&TenantRequest::OwnSessions)? else {
        return Err(client.unexpected().into());
    };
    let places = increments.changes.into_iter().filter_map(|change| match change {
        Increment::Residence { session, places } if session == of => Some(places),
        _ => None,
    });
    Ok(places.flatten().collect())
}

fn wait(client: &mut Client<Tenant>) -> Result<Option<OwnWait>, OwnError> {
    match client.ask(&TenantRequest::OwnWait)? {
        TenantReply::OwnWait(wait) => Ok(wait),
        _ => Err(client.unexpected().into()),
    }
}

fn words(own: &Own) -> String {
    let mut text = match &own.changed {
        Some(Changed { old, new }) => return format!("memory {new} (was {old})\n"),
        None => status::one_session(&own.session),
    };
    for ResidenceView { gpu, resident_bytes, hosted_bytes, moving_bytes, .. } in &own.residences {
        text += &format!("\n{resident_bytes} on {gpu}, {hosted_bytes} in host memory");
        if !moving_bytes.is_zero() {
            text += &format!(", {moving_bytes} moving");
        }
        text.push('\n');
    }
    if let Some(OwnWait { ahead, own, about_ns }) = &own.wait {
        text += &format!("\nwaits for the GPU: {ahead} before it");
        if !own.is_empty() {
            text += &format!(", yours: {}", list(own.iter().map(|name| harmless(name))));
        }
        if let Some(about) = about_ns {
            text += &format!(", about {}", short(*about));
        }
        text.push('\n');
    }
    text
}

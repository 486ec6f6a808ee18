//! Sessions of the node's daemon: their present state, and acts on them.

use std::collections::BTreeMap;

use gpushare_connection::{Admin, Client, ClientError};
use gpushare_proto::admin::{AdminReply, AdminRequest, SessionRequest};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::session::Binding;
use gpushare_proto::{Bytes, GpuUuid};

use super::plan::{Act, Held};

/// Sessions and cards of the daemon, as far as they matter for pods.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Sessions of pods.
    pub(crate) held: Vec<Held>,
    /// Names of the other sessions that last.
    pub(crate) names: Vec<String>,
    /// Memory of each card.
    pub(crate) cards: BTreeMap<GpuUuid, Bytes>,
}

/// Asks the daemon for its state.
pub(crate) fn state(dir: &RuntimeDir) -> Result<State, ClientError> {
    let mut client = Client::<Admin>::connect(dir)?;
    let AdminReply::Status(status) = client.ask(&AdminRequest::Status)? else {
        return Err(client.unexpected());
    };
    let others = status.sessions.iter().filter(|session| Held::of(session).is_none());
    Ok(State {
        held: status.sessions.iter().filter_map(Held::of).collect(),
        names: others
            .filter(|session| session.state.kept)
            .map(|session| session.name.clone())
            .collect(),
        cards: status.gpus.iter().map(|gpu| (gpu.uuid, gpu.total_bytes)).collect(),
    })
}

/// Carries out acts one after another. Returns those that failed, with the reason.
pub(crate) fn carry_out(dir: &RuntimeDir, acts: Vec<Act>) -> Result<Vec<(Act, ClientError)>, ClientError> {
    let mut client = Client::<Admin>::connect(dir)?;
    let mut failed = Vec::new();
    for act in acts {
        match client.ask(&AdminRequest::Session(request(&act))) {
            Ok(_) => {}
            Err(refused @ ClientError::Refused(_)) => failed.push((act, refused)),
            Err(broken) => return Err(broken),
        }
    }
    Ok(failed)
}

fn request(act: &Act) -> SessionRequest {
    match act {
        Act::Create { new, pod } => {
            SessionRequest::Create { new: (**new).clone(), binding: Binding::Pod(pod.clone()) }
        }
        Act::Change { session, change } => {
            SessionRequest::Change { which: session.clone(), change: change.clone() }
        }
        Act::Delete { session } => SessionRequest::Delete { which: session.clone() },
    }
}

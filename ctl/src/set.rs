//! `set`: changes one setting of the running daemon and says what it was and is.

use gpushare_proto::GpuId;
use gpushare_proto::admin::{AdminReply, AdminRequest, Change, Knob, SessionRequest, Setting};
use gpushare_proto::session::Quota;

use crate::cli::{ChangeSession, GpuName, Limit, NoneOr, SetCommand};
use crate::client::{Admin, Client};
use crate::exit::CtlError;
use crate::places::Places;
use crate::table::{harmless, list};
use crate::{output, session, status};

/// Changes the setting and prints `quantum of gpu0: 3s (computed) → 100ms`.
pub(crate) fn set(command: &SetCommand, places: &Places) -> Result<(), CtlError> {
    let (name, gpu, knob) = match command {
        SetCommand::Quantum(change) => (
            "quantum",
            change.gpu.clone(),
            Knob::Quantum(change.value.0.map(|quantum| quantum.0)),
        ),
        SetCommand::Mode(change) => ("mode", change.gpu.clone(), Knob::Mode(change.value.0)),
        SetCommand::Capacity(change) => {
            let capacity = change.value.0.map(|memory| memory.0);
            ("capacity", change.gpu.clone(), Knob::Capacity(capacity))
        }
        SetCommand::ManagedLimit(change) => (
            "managed-limit",
            change.gpu.clone(),
            Knob::ManagedLimit(change.value.0),
        ),
        SetCommand::WindowTarget(change) => (
            "window-target",
            change.gpu.clone(),
            Knob::WindowTarget(change.value),
        ),
        SetCommand::Epsilon(change) => ("epsilon", change.gpu.clone(), Knob::Epsilon(change.value.0)),
        SetCommand::Memory(ChangeSession {
            value,
            session: which,
        }) => {
            return of_session(places, "memory of session", which, Change::Memory(quota(value)));
        }
        SetCommand::Compute(ChangeSession {
            value,
            session: which,
        }) => {
            return of_session(places, "compute of session", which, Change::Compute(quota(value)));
        }
        SetCommand::Weight(ChangeSession {
            value,
            session: which,
        }) => {
            return of_session(places, "weight of session", which, Change::Weight(*value));
        }
        SetCommand::Priority(ChangeSession {
            value,
            session: which,
        }) => {
            return of_session(places, "priority of session", which, Change::Priority(*value));
        }
    };
    let mut client = Client::connect(places.administered())?;
    let gpu = gpu.map(|gpu| number(&mut client, gpu)).transpose()?;
    match client.ask(&AdminRequest::Set(Setting { gpu, knob }))? {
        AdminReply::Changed { old, new } => {
            let of = gpu.map_or("all cards".to_owned(), |gpu| gpu.to_string());
            output::print(&format!(
                "{name} of {of}: {} → {}\n",
                harmless(&old),
                harmless(&new)
            ))?;
            Ok(())
        }
        _ => Err(client.unexpected().into()),
    }
}

fn of_session(places: &Places, what: &str, which: &str, change: Change) -> Result<(), CtlError> {
    let mut client = Client::connect(places.administered())?;
    let which = which.to_owned();
    session::change(&mut client, what, SessionRequest::Change { which, change })
}

fn quota(NoneOr(limit): &NoneOr<Limit>) -> Quota {
    limit.clone().map(|limit| limit.0).unwrap_or_default()
}

/// The daemon's number of a card that exists.
fn number(client: &mut Client<Admin>, wanted: GpuName) -> Result<GpuId, CtlError> {
    let gpus = status::fetch(client)?.gpus;
    let mut found = gpus.iter().filter(|gpu| match &wanted {
        GpuName::Index(index) => gpu.gpu == GpuId(*index),
        GpuName::Uuid(uuid) => gpu.uuid == *uuid,
        GpuName::Prefix(prefix) => gpu.uuid.begins_with(prefix),
    });
    // A beginning that fits two cards names neither.
    let only = found.next().filter(|_| found.next().is_none());
    only.map(|gpu| gpu.gpu).ok_or_else(|| CtlError::NotFound {
        kind: "card",
        name: match wanted {
            GpuName::Index(index) => GpuId(index).to_string(),
            GpuName::Uuid(uuid) => uuid.to_string(),
            GpuName::Prefix(prefix) => prefix,
        },
        known: match &gpus[..] {
            [] => "the daemon knows none yet".to_owned(),
            gpus => format!("the daemon knows {}", list(gpus.iter().map(|gpu| gpu.gpu))),
        },
    })
}

//! `set`: changes one setting of the running daemon and prints the old and the new value.

use gpushare_proto::GpuId;
use gpushare_proto::admin::{AdminRequest, Change, Knob, SessionRequest, Setting};
use gpushare_proto::session::Quota;

use crate::changed::{self, Whose};
use crate::cli::{ChangeSession, GpuName, Limit, NoneOr, SetArgs, SetCommand};
use crate::client::{Admin, Client};
use crate::exit::CtlError;
use crate::places::Places;
use crate::table::list;
use crate::{session, status};

/// Changes the setting and prints `quantum of gpu0: 3s (computed) → 100ms`.
pub(crate) fn set(args: &SetArgs, places: &Places) -> Result<(), CtlError> {
    let json = args.json;
    let (name, gpu, knob) = match &args.command {
        SetCommand::Quantum(change) => {
            ("quantum", change.gpu.clone(), Knob::Quantum(change.value.0.map(|quantum| quantum.0)))
        }
        SetCommand::Mode(change) => ("mode", change.gpu.clone(), Knob::Mode(change.value.0)),
        SetCommand::Capacity(change) => {
            let capacity = change.value.0.map(|memory| memory.0);
            ("capacity", change.gpu.clone(), Knob::Capacity(capacity))
        }
        SetCommand::ManagedLimit(change) => {
            ("managed-limit", change.gpu.clone(), Knob::ManagedLimit(change.value.0))
        }
        SetCommand::WindowTarget(change) => {
            ("window-target", change.gpu.clone(), Knob::WindowTarget(change.value))
        }
        SetCommand::Epsilon(change) => ("epsilon", change.gpu.clone(), Knob::Epsilon(change.value.0)),
        SetCommand::Memory(ChangeSession { value, session: which }) => {
            return of_session(places, "memory", which, json, Change::Memory(quota(value)));
        }
        SetCommand::Compute(ChangeSession { value, session: which }) => {
            return of_session(places, "compute", which, json, Change::Compute(quota(value)));
        }
        SetCommand::Weight(ChangeSession { value, session: which }) => {
            return of_session(places, "weight", which, json, Change::Weight(*value));
        }
        SetCommand::Priority(ChangeSession { value, session: which }) => {
            return of_session(places, "priority", which, json, Change::Priority(*value));
        }
    };
    let mut client = Client::connect(places.administered())?;
    let gpu = gpu.map(|gpu| number(&mut client, gpu)).transpose()?;
    let answer = client.ask(&AdminRequest::Set(Setting { gpu, knob }))?;
    match changed::print(name, Whose::Card(gpu), &answer, json)? {
        true => Ok(()),
        false => Err(client.unexpected().into()),
    }
}

fn of_session(places: &Places, key: &str, which: &str, json: bool, change: Change) -> Result<(), CtlError> {
    let mut client = Client::connect(places.administered())?;
    let request = SessionRequest::Change { which: which.to_owned(), change };
    session::change(&mut client, (key, Whose::Session(which)), request, json)
}

fn quota(NoneOr(limit): &NoneOr<Limit>) -> Quota {
    limit.clone().map(|limit| limit.0).unwrap_or_default()
}

/// Returns the daemon's number of the card that the user named.
fn number(client: &mut Client<Admin>, wanted: GpuName) -> Result<GpuId, CtlError> {
    let gpus = status::fetch(client)?.gpus;
    let mut found = gpus.iter().filter(|gpu| match &wanted {
        GpuName::Index(index) => gpu.gpu == GpuId(*index),
        GpuName::Uuid(uuid) => gpu.uuid == *uuid,
        GpuName::Prefix(prefix) => gpu.uuid.begins_with(prefix),
    });
    // A prefix that fits two cards is ambiguous.
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

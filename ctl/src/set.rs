//! Command `set`: changes one setting of the running daemon and prints the old and the new value.

use gpushare_proto::GpuId;
use gpushare_proto::admin::{AdminRequest, Change as Term, GpuView, Knob, SessionRequest, Setting};
use gpushare_proto::session::Quota;
use gpushare_proto::tenant::GpuChoice;

use crate::changed::{self, Whose};
use crate::cli::{Change, ChangeSession, ChangeWeight, NoneOr, SetArgs, SetCommand};
use crate::exit::{self, CommandError, CtlError};
use crate::places::Places;
use crate::status;
use crate::table::list;
use crate::users;
use gpushare_connection::{Admin, Client};

/// Card or session to change, with the new value.
enum Target<'a> {
    Card(&'a Option<GpuChoice>, Knob),
    Session(&'a str, Term),
    /// Weight of a user.
    User(&'a str, u32),
}

/// Error for a new weight without a session or a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a weight is that of a session or of a user; write `set weight {0} --session NAME-OR-ID` or \
     `set weight {0} --user USER`"
)]
struct NoOwner(u32);

impl CommandError for NoOwner {
    fn code(&self) -> u8 {
        exit::USAGE
    }
}

/// Changes a setting and prints the old and the new value, like `quantum of gpu0: 3s (computed) → 100ms`.
pub(crate) fn set(args: &SetArgs, places: &Places) -> Result<(), CtlError> {
    use SetCommand as Set;
    use Target::{Card, Session, User};
    let (key, target) = match &args.command {
        Set::Quantum(Change { value, gpu }) => {
            ("quantum", Card(gpu, Knob::Quantum(value.0.map(|time| time.0))))
        }
        Set::Mode(Change { value, gpu }) => ("mode", Card(gpu, Knob::Mode(value.0))),
        Set::Capacity(Change { value, gpu }) => {
            ("capacity", Card(gpu, Knob::Capacity(value.0.map(|size| size.0))))
        }
        Set::ManagedLimit(Change { value, gpu }) => ("managed-limit", Card(gpu, Knob::ManagedLimit(value.0))),
        Set::WindowTarget(Change { value, gpu }) => ("window-target", Card(gpu, Knob::WindowTarget(value.0))),
        Set::ContextReserve(Change { value, gpu }) => {
            ("context-reserve", Card(gpu, Knob::ContextReserve(value.0)))
        }
        Set::Epsilon(Change { value, gpu }) => ("epsilon", Card(gpu, Knob::Epsilon(value.0))),
        Set::Memory(ChangeSession { value, session }) => {
            ("memory", Session(session, Term::Memory(or_none(value, |limit| limit.0))))
        }
        Set::Compute(ChangeSession { value, session }) => {
            ("compute", Session(session, Term::Compute(or_none(value, |limit| limit.0))))
        }
        Set::Weight(ChangeWeight { value, user: Some(user), .. }) => ("weight", User(user, value.0)),
        Set::Weight(ChangeWeight { value, session: Some(session), .. }) => {
            ("weight", Session(session, Term::Weight(value.0)))
        }
        Set::Weight(ChangeWeight { value, .. }) => return Err(NoOwner(value.0).into()),
        Set::Priority(ChangeSession { value, session }) => {
            ("priority", Session(session, Term::Priority(*value)))
        }
        Set::FreezeAfter(ChangeSession { value, session }) => {
            ("freeze-after", Session(session, Term::FreezeAfter(*value)))
        }
    };
    let mut client = Client::connect(places.administered())?;
    let (request, whose) = match target {
        Card(gpu, knob) => {
            let gpu = gpu.as_ref().map(|gpu| number(&mut client, gpu)).transpose()?;
            (AdminRequest::Set(Setting { gpu, knob }), Whose::Card(gpu))
        }
        Session(which, change) => {
            let request = SessionRequest::Change { which: which.to_owned(), change };
            (AdminRequest::Session(request), Whose::Session(which))
        }
        User(which, weight) => {
            let user = users::number(which)?;
            (AdminRequest::UserWeight { user, weight }, Whose::User(which))
        }
    };
    changed::request(&mut client, (key, whose), &request, args.json)
}

fn or_none<L: Clone>(NoneOr(limit): &NoneOr<L>, quota: impl Fn(L) -> Quota) -> Quota {
    limit.clone().map(quota).unwrap_or_default()
}

/// Returns whether the user's `choice` (a number, a UUID or the beginning of one) means this card.
pub(crate) fn names(choice: &GpuChoice, card: &GpuView) -> bool {
    match choice {
        GpuChoice::Auto => false,
        GpuChoice::Index(index) => GpuId(*index) == card.gpu,
        GpuChoice::Uuid(uuid) => *uuid == card.uuid,
        GpuChoice::Prefix(prefix) => card.uuid.begins_with(prefix),
    }
}

/// Returns the number that the daemon assigned to the card that the user chose.
fn number(client: &mut Client<Admin>, wanted: &GpuChoice) -> Result<GpuId, CtlError> {
    let gpus = status::fetch(client)?.gpus;
    let mut found = gpus.iter().filter(|gpu| names(wanted, gpu));
    // A prefix that fits two cards is ambiguous.
    let only = found.next().filter(|_| found.next().is_none());
    only.map(|gpu| gpu.gpu).ok_or_else(|| CtlError::NotFound {
        kind: "card",
        name: match wanted {
            GpuChoice::Index(index) => GpuId(*index).to_string(),
            other => other.to_string(),
        },
        known: match &gpus[..] {
            [] => "the daemon knows none yet".to_owned(),
            gpus => format!("the daemon knows {}", list(gpus.iter().map(|gpu| gpu.gpu))),
        },
    })
}

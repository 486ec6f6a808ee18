//! Commands `session freeze` and `session thaw`: ask the daemon, and wait until the driver has moved all memory.

use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest, FrostStage, FrostView, SessionRequest};
use gpushare_proto::tenant::{Failure, FailureCode, TenantReply, TenantRequest};
use serde_json::json;

use crate::cli::Which;
use crate::exit::CtlError;
use crate::output;
use crate::places::Places;
use crate::run::start;
use crate::table::harmless;
use gpushare_connection::{Admin, Client, ClientError, Tenant};

/// Longest wait for the driver. It moves some gigabytes each second, one process after the other.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a process that has not said yet what stands in the way. One with an older library never says it.
const EXAMINATION: Duration = Duration::from_secs(2);
/// Longest wait for a process to say that what stood in the way is gone.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// Pause between two questions to the daemon.
const PAUSE: Duration = Duration::from_millis(20);

/// Connection on which the command asks: an administrator's, or that of the session's own user.
enum Asker {
    Administrator(Client<Admin>),
    User(Client<Tenant>),
}

/// Change that a command asks for.
#[derive(Clone, Copy)]
enum Wish {
    Freeze,
    Thaw,
}

impl Asker {
    /// Connects as an administrator, or as a user who may not be one.
    fn connect(places: &Places) -> Result<Self, CtlError> {
        let refused = match Client::<Admin>::connect(places.administered()) {
            Ok(client) => return Ok(Self::Administrator(client)),
            Err(error) => error,
        };
        let is_user = match &refused {
            ClientError::Denied(_) => true,
            ClientError::Refused(failure) => failure.code == FailureCode::Permission,
            // A container has only the tenant socket.
            ClientError::Absent(_) => !places.administered().admin_socket().exists(),
            _ => false,
        };
        match start::running(places)? {
            Some((_, client)) if is_user => Ok(Self::User(client)),
            _ => Err(refused.into()),
        }
    }

    /// Asks for a change. Returns the stage before it, in words.
    fn begin(&mut self, which: &str, wish: Wish) -> Result<String, CtlError> {
        let which = which.to_owned();
        match self {
            Self::Administrator(client) => begin(client, which, wish),
            Self::User(client) => {
                let request = match wish {
                    Wish::Freeze => TenantRequest::Freeze { which },
                    Wish::Thaw => TenantRequest::Thaw { which },
                };
                match client.ask(&request)? {
                    TenantReply::FrostChanged { old, .. } => Ok(old),
                    _ => Err(client.unexpected().into()),
                }
            }
        }
    }

    fn view(&mut self, which: &str) -> Result<FrostView, CtlError> {
        let which = which.to_owned();
        match self {
            Self::Administrator(client) => match client.ask(&AdminRequest::Frost { which })? {
                AdminReply::Frost(view) => Ok(view),
                _ => Err(client.unexpected().into()),
            },
            Self::User(client) => match client.ask(&TenantRequest::Frost { which })? {
                TenantReply::Frost(view) => Ok(view),
                _ => Err(client.unexpected().into()),
            },
        }
    }

    /// Freezes a session. Returns the stage before, in words.
    fn freeze(&mut self, which: &str) -> Result<String, CtlError> {
        examine(self, which)?;
        let old = self.begin(which, Wish::Freeze)?;
        let view = wait(self, which, |stage| stage == FrostStage::Freezing)?;
        match view.stage {
            FrostStage::Frozen => Ok(old),
            FrostStage::Freezing => {
                self.begin(which, Wish::Thaw)?;
                Err(failed(which, "was not frozen", &view))
            }
            _ => Err(failed(which, "was not frozen", &view)),
        }
    }
}

fn begin(client: &mut Client<Admin>, which: String, wish: Wish) -> Result<String, CtlError> {
    let request = match wish {
        Wish::Freeze => SessionRequest::Freeze { which },
        Wish::Thaw => SessionRequest::Thaw { which },
    };
    change(client, request)
}

/// Sends an administrator's request. Returns the old value, in words.
fn change(client: &mut Client<Admin>, request: SessionRequest) -> Result<String, CtlError> {
    match client.ask(&AdminRequest::Session(request))? {
        AdminReply::Changed { old, .. } => Ok(old),
        _ => Err(client.unexpected().into()),
    }
}

pub(crate) fn freeze(places: &Places, args: &Which) -> Result<(), CtlError> {
    let old = Asker::connect(places)?.freeze(&args.which)?;
    show(args, &old, "frozen")
}

pub(crate) fn thaw(places: &Places, args: &Which) -> Result<(), CtlError> {
    let mut asker = Asker::connect(places)?;
    let old = asker.begin(&args.which, Wish::Thaw)?;
    let view = wait(&mut asker, &args.which, |stage| stage == FrostStage::Thawing)?;
    match view.stage {
        FrostStage::Warm | FrostStage::Unexamined => show(args, &old, "running"),
        _ => Err(failed(&args.which, "was frozen again", &view)),
    }
}

/// Pauses a session and frees its memory on the cards. If it cannot be frozen, it is paused all the same.
pub(crate) fn pause(mut client: Client<Admin>, args: &Which) -> Result<(), CtlError> {
    let old = change(&mut client, SessionRequest::Pause { which: args.which.clone() })?;
    match Asker::Administrator(client).freeze(&args.which) {
        Ok(_) => show(args, &old, "paused and frozen"),
        Err(error) => {
            show(args, &old, "paused")?;
            Err(error)
        }
    }
}

/// Lets the processes of a session say what stands in the way, which each question makes them look at.
fn examine(asker: &mut Asker, which: &str) -> Result<(), CtlError> {
    let began = Instant::now();
    loop {
        let view = asker.view(which)?;
        let patience = match (view.stage, view.obstacle) {
            (FrostStage::Unexamined, _) => EXAMINATION,
            (_, Some(_)) => SECOND_LOOK,
            (_, None) => return Ok(()),
        };
        if began.elapsed() >= patience {
            return Ok(());
        }
        thread::sleep(PAUSE);
    }
}

/// Asks for the stage of a session while `goes_on` says that it is under way.
fn wait(asker: &mut Asker, which: &str, goes_on: impl Fn(FrostStage) -> bool) -> Result<FrostView, CtlError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let view = asker.view(which)?;
        if !goes_on(view.stage) || Instant::now() >= until {
            return Ok(view);
        }
        thread::sleep(PAUSE);
    }
}

fn failed(which: &str, what: &str, view: &FrostView) -> CtlError {
    let reason = match (&view.obstacle, view.stage) {
        (Some(obstacle), _) => harmless(obstacle),
        (None, FrostStage::Freezing | FrostStage::Thawing) => {
            format!("its work, or the driver, has not ended after {} s", PATIENCE.as_secs())
        }
        (None, _) => {
            "it has work, its driver was busy, or its card had no memory for the trial of a freeze; try again when it \
             is idle"
                .to_owned()
        }
    };
    let message = format!("session {} {what}: {reason}", harmless(which));
    ClientError::Refused(Failure { code: FailureCode::Unavailable, message }).into()
}

fn show(Which { which, json }: &Which, old: &str, new: &str) -> Result<(), CtlError> {
    let document = json!({ "key": "state", "session": which, "old": old, "new": new });
    let line = || format!("session {}: {} → {new}\n", harmless(which), harmless(old));
    Ok(output::show(*json, &document, line)?)
}

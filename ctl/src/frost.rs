//! Commands `session freeze` and `session thaw`: ask the daemon, and wait until the driver has moved all memory.

use std::thread;
use std::time::{Duration, Instant};

use gpushare_proto::admin::{AdminReply, AdminRequest, FrostStage, FrostView, SessionRequest};
use gpushare_proto::tenant::{Failure, FailureCode};
use serde_json::json;

use crate::cli::Which;
use crate::exit::CtlError;
use crate::output;
use crate::table::harmless;
use gpushare_connection::{Admin, Client, ClientError};

/// Longest wait for the driver. It moves some gigabytes each second, one process after the other.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for a process that has not said yet what stands in the way. One with an older library never says it.
const EXAMINATION: Duration = Duration::from_secs(2);
/// Longest wait for a process to say that what stood in the way is gone.
const SECOND_LOOK: Duration = Duration::from_millis(50);
/// Pause between two questions to the daemon.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn freeze(client: &mut Client<Admin>, args: &Which) -> Result<(), CtlError> {
    examine(client, &args.which)?;
    let old = begin(client, SessionRequest::Freeze { which: args.which.clone() })?;
    let view = wait(client, &args.which, |stage| stage == FrostStage::Freezing)?;
    match view.stage {
        FrostStage::Frozen => show(args, &old, "frozen"),
        FrostStage::Freezing => {
            begin(client, SessionRequest::Thaw { which: args.which.clone() })?;
            Err(failed(&args.which, "was not frozen", &view))
        }
        _ => Err(failed(&args.which, "was not frozen", &view)),
    }
}

pub(crate) fn thaw(client: &mut Client<Admin>, args: &Which) -> Result<(), CtlError> {
    let old = begin(client, SessionRequest::Thaw { which: args.which.clone() })?;
    let view = wait(client, &args.which, |stage| stage == FrostStage::Thawing)?;
    match view.stage {
        FrostStage::Warm | FrostStage::Unexamined => show(args, &old, "running"),
        _ => Err(failed(&args.which, "was frozen again", &view)),
    }
}

/// Sends a request. Returns the stage before it, in words.
fn begin(client: &mut Client<Admin>, request: SessionRequest) -> Result<String, CtlError> {
    match client.ask(&AdminRequest::Session(request))? {
        AdminReply::Changed { old, .. } => Ok(old),
        _ => Err(client.unexpected().into()),
    }
}

fn ask(client: &mut Client<Admin>, which: &str) -> Result<FrostView, CtlError> {
    match client.ask(&AdminRequest::Frost { which: which.to_owned() })? {
        AdminReply::Frost(view) => Ok(view),
        _ => Err(client.unexpected().into()),
    }
}

/// Lets the processes of a session say what stands in the way, which each question makes them look at.
fn examine(client: &mut Client<Admin>, which: &str) -> Result<(), CtlError> {
    let began = Instant::now();
    loop {
        let view = ask(client, which)?;
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
fn wait(
    client: &mut Client<Admin>,
    which: &str,
    goes_on: impl Fn(FrostStage) -> bool,
) -> Result<FrostView, CtlError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let view = ask(client, which)?;
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
        (None, _) => "it has work, or its driver was busy; try again when it is idle".to_owned(),
    };
    let message = format!("session {} {what}: {reason}", harmless(which));
    ClientError::Refused(Failure { code: FailureCode::Unavailable, message }).into()
}

fn show(Which { which, json }: &Which, old: &str, new: &str) -> Result<(), CtlError> {
    let document = json!({ "key": "state", "session": which, "old": old, "new": new });
    let line = || format!("session {}: {} → {new}\n", harmless(which), harmless(old));
    Ok(output::show(*json, &document, line)?)
}

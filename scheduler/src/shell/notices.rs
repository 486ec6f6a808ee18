//! The core's notices as records in the log.

use gpushare_core::Notice;
use gpushare_proto::audit::Outcome;
use gpushare_proto::page::LimitKind;

use super::Shell;
use super::refusing::RESERVE;
use crate::operation::Operation;

/// Says it, with the names that only the shell knows.
pub(super) fn log(notice: &Notice, shell: &Shell) {
    let named = |session| shell.sessions.name(session);
    match notice {
        Notice::ModeChanged { gpu, mode, reason } => Operation::done("gpu.mode")
            .on(*gpu)
            .info(format_args!("{gpu} is {mode} now: {reason}")),
        Notice::Granted { session, quantum, waited, .. } => {
            let name = named(*session);
            Operation::done("lock.grant")
                .of(*session, &name)
                .debug(format_args!("{name} got the lock for {quantum}, {waited} after it asked"));
        }
        Notice::Entered { session, handoff, .. } => {
            let name = named(*session);
            Operation::done("lock.enter")
                .of(*session, &name)
                .debug(format_args!("{name} goes on; the handoff took {handoff}"));
        }
        Notice::Dropped { session, drain, .. } => {
            let name = named(*session);
            let record = Operation::done("lock.drop").of(*session, &name);
            match drain {
                Some(drain) => record.debug(format_args!("{name} let go after {drain}")),
                None => record.debug(format_args!("{name} let go of its own accord")),
            }
        }
        Notice::DropReopened { session, tries } => {
            let name = named(*session);
            let record = Operation::done("lock.drop").of(*session, &name);
            record.failed(Outcome::Failed, "reopened").info(format_args!(
                "{name} got its gate back: work in flight seems to wait for a thread there (try {tries})"
            ));
        }
        Notice::Stuck { session, reason } => {
            let name = named(*session);
            let stopped = shell.stopped(*session);
            let stopped = stopped.map_or(String::new(), |stopped| format!("; {stopped}"));
            let record = Operation::done("lock.drop").of(*session, &name);
            record
                .failed(Outcome::Failed, "stuck")
                .warn(format_args!("{name} does not let go: {reason}{stopped}"));
        }
        Notice::Refused { client, session, gpu, refusal } => {
            let name = named(*session);
            let peer = shell.clients.get(client).map(|client| (client.peer.pid, client.peer.uid));
            let (pid, uid) = peer.unwrap_or_default();
            let record = Operation::done(RESERVE).of(*session, &name).process(pid).user(uid);
            let why = match refusal.is_permanent() {
                true => format!("its time is over or it was revoked, and it uses {}", refusal.used),
                false => {
                    format!("{} of {} are used under {}", refusal.used, refusal.limit, limit_name(refusal.by))
                }
            };
            record.on(*gpu).refused(*refusal).warn(format_args!(
                "refused {} to {name} on {gpu}: {why} ({session}, pid {pid})",
                refusal.requested
            ));
        }
        Notice::Overdue { client, after } => shell.overdue(*client, *after),
        Notice::Recovered { after } => Operation::done("daemon.recover").info(format_args!(
            "all processes of the last daemon are back or gone after {after}; grants begin"
        )),
    }
}

fn limit_name(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Session => "its quota",
        LimitKind::Capacity => "the card's capacity",
        LimitKind::ManagedLimit => "the card's managed limit",
    }
}

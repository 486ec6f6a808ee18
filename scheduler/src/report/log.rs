//! Log records about notices of the decision machine, and about processes.

use gpushare_core::config::StuckPolicy;
use gpushare_core::{Core, Notice};
use gpushare_proto::admin::CapacityView;
use gpushare_proto::audit::Outcome;
use gpushare_proto::handoff::Handoff;
use gpushare_proto::page::LimitKind;
use gpushare_proto::{GpuId, Nanos, SessionId};
use gpushare_sys::process;

use crate::clients::awaited::stopped;
use crate::clients::table::Clients;
use crate::operation::{self, Operation};
use crate::registry::ClientEntry;
use crate::sessions::{Session, Sessions};

pub(crate) fn notice(notice: &Notice, sessions: &Sessions, clients: &Clients, core: &Core) {
    let session = match notice {
        Notice::ModeChanged { gpu, mode, reason } => {
            Operation::done("gpu.mode")
                .on(*gpu)
                .info(format_args!("{gpu} is {mode} now: {reason}"));
            return;
        }
        Notice::Recovered { after } => {
            Operation::done("daemon.recover").info(format_args!(
                "all processes of the last daemon are back or gone after {after}; grants begin"
            ));
            return;
        }
        Notice::HandedOver(handoff) => {
            if operation::are_debug_records_written() {
                let Handoff { gpu, took_ns, out, into, overlap, .. } = &**handoff;
                let (out, into) = (out.bytes, into.bytes);
                Operation::done("memory.handoff").on(*gpu).debug(format_args!(
                    "{out} left {gpu} and {into} came in within {took_ns}, both ways at once for {overlap} of it"
                ));
            }
            return;
        }
        // Its record needs the registry's entry (see `overdue`).
        Notice::Overdue { .. } => return,
        Notice::Granted { session, .. }
        | Notice::Entered { session, .. }
        | Notice::Dropped { session, .. }
        | Notice::DropReopened { session, .. }
        | Notice::Stuck { session, .. }
        | Notice::Spared { session, .. }
        | Notice::Frozen { session, .. }
        | Notice::Thawed { session, .. }
        | Notice::FreezeRefused { session, .. }
        | Notice::FreezeBrokeOff { session, .. }
        | Notice::FrostKilled { session, .. }
        | Notice::Refused { session, .. } => *session,
    };
    let is_of_every_turn =
        matches!(notice, Notice::Granted { .. } | Notice::Entered { .. } | Notice::Dropped { .. });
    if is_of_every_turn && !operation::are_debug_records_written() {
        return;
    }
    let name = sessions.name(session);
    let uid = sessions.get(session).map(Session::uid);
    let record = |operation| {
        let record = Operation::of(operation, session, &name);
        uid.map_or(record, |uid| record.user(uid))
    };
    match notice {
        Notice::Granted { quantum, waited, .. } => {
            record("lock.grant")
                .debug(format_args!("{name} got the lock for {quantum}, {waited} after it asked"));
        }
        Notice::Entered { handoff, .. } => {
            record("lock.enter").debug(format_args!("{name} goes on; the handoff took {handoff}"));
        }
        Notice::Dropped { drain: Some(drain), .. } => {
            record("lock.drop").debug(format_args!("{name} let go after {drain}"));
        }
        Notice::Dropped { drain: None, .. } => {
            record("lock.drop").debug(format_args!("{name} let go of its own accord"));
        }
        Notice::DropReopened { tries, .. } => {
            record("lock.drop").failed(Outcome::Failed, "reopened").info(format_args!(
                "{name} got its gate back: work in flight seems to wait for a thread there (try {tries})"
            ));
        }
        Notice::Stuck { reason, .. } => {
            let stopped = stopped_clients(clients, session);
            let stopped = stopped.map_or(String::new(), |stopped| format!("; {stopped}"));
            record("lock.drop")
                .failed(Outcome::Failed, "stuck")
                .warn(format_args!("{name} does not let go: {reason}{stopped}"));
        }
        Notice::Spared { client, .. } => {
            record("process.kill").failed(Outcome::Failed, "spared").warn(format_args!(
                "{client} of {name} is not killed, because the driver has frozen it before or does so now"
            ));
        }
        Notice::Frozen { client, bytes, .. } => {
            record("process.freeze")
                .info(format_args!("{client} of {name} is frozen: {bytes} left its cards"));
        }
        Notice::Thawed { client, .. } => {
            record("process.thaw").info(format_args!("{client} of {name} is back from the freeze"));
        }
        Notice::FreezeRefused { client, obstacle, .. } => {
            record("process.freeze")
                .failed(Outcome::Failed, "refused")
                .info(format_args!("{name} is not frozen, because of {client}: {obstacle}"));
        }
        Notice::FreezeBrokeOff { client, .. } => {
            record("process.freeze")
                .failed(Outcome::Failed, "broke_off")
                .warn(format_args!("the freeze of {client} of {name} broke off; it is thawed"));
        }
        Notice::FrostKilled { client, .. } => {
            record("process.thaw").failed(Outcome::Failed, "lost").warn(format_args!(
                "{client} of {name} did not come back from the freeze; the driver refuses all its calls"
            ));
        }
        Notice::Refused { client, gpu, refusal, .. } => {
            let peer = clients.get(*client).map(|client| (client.peer.pid, client.peer.uid));
            let (pid, uid) = peer.unwrap_or_default();
            let used = refusal.used;
            let why = match refusal.is_permanent() {
                true => format!("its time is over or it was revoked, and it uses {used}"),
                false => {
                    let of = if refusal.by == LimitKind::Capacity {
                        capacity_parts(core, *gpu)
                    } else {
                        None
                    };
                    let of = of.unwrap_or_default();
                    format!("{used} of {} are used under {}{of}", refusal.limit, limit_name(refusal.by))
                }
            };
            record("memory.reserve")
                .process(pid)
                .user(uid)
                .on(*gpu)
                .refused(*refusal)
                .warn(format_args!(
                    "refused {} to {name} on {gpu}: {why} ({session}, pid {pid})",
                    refusal.requested
                ));
        }
        Notice::ModeChanged { .. }
        | Notice::Recovered { .. }
        | Notice::Overdue { .. }
        | Notice::HandedOver(_) => {}
    }
}

/// Returns in words what the capacity of a card consists of, apart from the session's own fixed memory.
fn capacity_parts(core: &Core, gpu: GpuId) -> Option<String> {
    let CapacityView { total_bytes, set_bytes, contexts_bytes, fixed_bytes, .. } =
        core.capacities().into_iter().find(|card| card.gpu == gpu)?;
    Some(match set_bytes {
        Some(set) => format!(" (set to {set}; {fixed_bytes} on the card cannot move)"),
        None => format!(
            " (the card's {total_bytes} less {contexts_bytes} for contexts; {fixed_bytes} on the card cannot move)"
        ),
    })
}

fn limit_name(limit: LimitKind) -> &'static str {
    match limit {
        LimitKind::Session => "its quota",
        LimitKind::Capacity => "the card's capacity",
        LimitKind::ManagedLimit => "the card's managed limit",
        LimitKind::HostMemory => "the card's capacity and the host memory together",
    }
}

/// Largest number of processes of one session that are examined for a message.
const EXAMINED: usize = 16;

/// Names the stopped and the disconnected processes of a session; none if there are no such processes.
pub(crate) fn stopped_clients(clients: &Clients, session: SessionId) -> Option<String> {
    let words = clients.of(session).take(EXAMINED).filter_map(|client| {
        let pid = client.peer.pid;
        match client.connection {
            None => Some(format!("pid {pid} hung up and lives")),
            Some(_) if process::is_held_by_tracer(pid) => {
                Some(format!("pid {pid} is held by a tracer (TracerPid in /proc/{pid}/status), which to end"))
            }
            Some(_) => process::is_stopped(pid).then(|| format!("pid {pid} is stopped")),
        }
    });
    let words: Vec<String> = words.collect();
    (!words.is_empty()).then(|| words.join(", "))
}

/// Warns that a living client of the last daemon has not reconnected.
pub(crate) fn overdue(entry: &ClientEntry, name: &str, policy: StuckPolicy, after: Nanos) {
    let pid = entry.process.pid;
    let is_nowhere = entry.cards.is_empty();
    let cards = if is_nowhere { "no card".to_owned() } else { cards_in_words(entry, "of") };
    let policy = match policy {
        StuckPolicy::Kill if entry.frozen => {
            "it is not ended, because the driver has frozen it before, and nothing is granted there until it comes back or \
             ends: let it go on, or end its program"
        }
        StuckPolicy::Kill => "it is ended",
        _ if is_nowhere => "others run",
        StuckPolicy::RunOthers => "others run that fit beside that",
        StuckPolicy::Wait => "nothing is granted there until it comes back or ends",
    };
    Operation::of("process.return", entry.session, name)
        .process(pid)
        .always()
        .failed(Outcome::Failed, "overdue")
        .warn(format_args!(
            "pid {pid} of {name}, a process of the last daemon{}, is not back after {after} and used {cards}; \
             {policy}",
            stopped(pid)
        ));
}

/// Warns that a card keeps the memory of a dead process.
pub(crate) fn memory_kept(entry: &ClientEntry, name: &str) {
    let pid = entry.process.pid;
    let cards = cards_in_words(entry, "on");
    Operation::of("memory.return", entry.session, name)
        .process(pid)
        .failed(Outcome::Failed, "kept")
        .warn(format_args!(
            "pid {pid} of {name} is dead and the card keeps its memory ({cards}): a process that it forked has the \
             card's files open. It counts as the session's until that one ends; `fuser -v /dev/nvidia*` names it"
        ));
}

fn cards_in_words(entry: &ClientEntry, preposition: &str) -> String {
    let cards = entry.cards.iter();
    let words = cards.map(|of| format!("{} {preposition} {}", of.used, of.card.uuid));
    words.collect::<Vec<String>>().join(", ")
}

//! Requests about freezing, and what is examined before the decision machine is asked.

use std::fs;

use gpushare_core::{Event, Obstacle};
use gpushare_proto::admin::{FreezingView, FrostStage, FrostView};
use gpushare_proto::names::FREEZE_UNTRIED;
use gpushare_proto::tenant::{Failure, FailureCode, FreezeObstacle};
use gpushare_proto::{ClientId, GpuId, SessionId};
use gpushare_sys::{clock, process};
use rustix::thread::{CapabilitySet, capabilities};

use crate::config::Owner;
use crate::engine::Engine;
use crate::freeze::tried::untried_driver;
use crate::memory::host::tell_budget;
use crate::memory::room;
use crate::operation::{bad_request, failure};

/// Returns the word of the decision machine for what a process says of itself.
const fn obstacle_of(told: FreezeObstacle) -> Obstacle {
    match told {
        FreezeObstacle::Managed => Obstacle::Managed,
        FreezeObstacle::HostHandles => Obstacle::HostHandles,
        FreezeObstacle::Shared => Obstacle::Shared,
        FreezeObstacle::Peers => Obstacle::Peers,
        FreezeObstacle::Unseen => Obstacle::Unseen,
        FreezeObstacle::Driver => Obstacle::Driver,
        FreezeObstacle::HostMemory => Obstacle::HostMemory,
    }
}

/// Begins to freeze a session, unless something stands in the way. Returns its stages before and after, in words.
pub(super) fn freeze(engine: &mut Engine, id: SessionId) -> Result<(String, String), Failure> {
    let name = engine.sessions.name(id);
    if let Some(obstacle) = obstacle(engine, id) {
        return Err(bad_request(format!("session {name} cannot be frozen: {obstacle}")));
    }
    let uses = engine
        .machine
        .session_sight(id)
        .is_some_and(|sight| sight.clients().next().is_some());
    if !uses {
        return Err(bad_request(format!("session {name} has no process that uses a card")));
    }
    if engine.is_stopping {
        return Err(failure(FailureCode::Unavailable, "the daemon ends; nothing is frozen any more"));
    }
    let old = words(engine.machine.frost_stage(id));
    // The driver moves the memory there.
    tell_budget(engine);
    engine.feed(Event::Freeze { session: id, wanted: true });
    Ok((old, words(engine.machine.frost_stage(id))))
}

/// Lets the processes of a session come back. Returns its stages before and after, in words.
pub(super) fn thaw(engine: &mut Engine, id: SessionId) -> (String, String) {
    let old = words(engine.machine.frost_stage(id));
    engine.feed(Event::Freeze { session: id, wanted: false });
    (old, words(engine.machine.frost_stage(id)))
}

/// Lets the processes of a session come back, as [`thaw`] does, for its own user, who must not undo a pause.
pub(super) fn thaw_own(engine: &mut Engine, id: SessionId) -> Result<(String, String), Failure> {
    if engine.sessions.get(id).is_some_and(|session| session.paused) {
        let name = engine.sessions.name(id);
        let message = format!("session {name} is paused; an administrator resumes it");
        return Err(failure(FailureCode::Permission, message));
    }
    Ok(thaw(engine, id))
}

/// Returns how far a session is frozen, and what stands in the way of it.
pub(super) fn view(engine: &mut Engine, id: SessionId) -> FrostView {
    if untried_driver().is_none() {
        room::ask(engine);
    }
    // Its processes look again at what stands in the way, which the next question finds.
    for client in engine
        .machine
        .session_sight(id)
        .into_iter()
        .flat_map(gpushare_core::SessionSight::clients)
    {
        if let Some(client) = engine.clients.get(client) {
            client.page.ring();
        }
    }
    let is_unexamined = matches!(engine.machine.frost_obstacle(id), Some((_, Obstacle::Unexamined)))
        && untried_driver().is_none();
    let stage = match engine.machine.frost_stage(id) {
        FrostStage::Warm if is_unexamined => FrostStage::Unexamined,
        stage => stage,
    };
    let freeze_after = engine.sessions.get(id).map(|session| session.terms.freeze_after);
    FrostView {
        stage,
        obstacle: obstacle(engine, id).or_else(|| lacks_host_memory(engine, id)),
        freeze_after_ns: freeze_after.and_then(|after| after.in_force(engine.settings.freeze_after)),
        idle_ns: engine.machine.idle_for(id, clock::monotonic()),
    }
}

/// Returns what keeps processes from being frozen, whatever they do. The cards are asked again for the next answer.
pub(super) fn freezing(engine: &mut Engine) -> FreezingView {
    room::ask(engine);
    let untried = untried_driver().map(|version| {
        format!(
            "{} (version {version}); {FREEZE_UNTRIED}=1 in the daemon's environment freezes all the same",
            Obstacle::Driver
        )
    });
    let without = engine.rooms.without_persistence.iter();
    let cards = without.map(|gpu| format!("{gpu} is not in persistence mode; `nvidia-smi -pm 1` sets it"));
    let trials = engine.trials.failures().map(|(gpu, reason)| {
        format!("the trial of a freeze on {gpu} failed: {reason}; a new daemon makes another one")
    });
    let obstacles = untried
        .into_iter()
        .chain(cards)
        .chain(trials)
        .chain(privileges(&Privileges::of(engine)))
        .collect();
    FreezingView { obstacles, freeze_after_ns: engine.settings.freeze_after }
}

/// Facts about this daemon on which depends whose processes its helpers can freeze.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Privileges {
    is_root: bool,
    /// Whether a helper may take another user and other groups.
    may_change_user: bool,
    /// Whether the daemon serves processes of other users.
    serves_others: bool,
    /// Whether a helper may see a process with capabilities that the daemon lacks.
    may_see_all: bool,
}

impl Privileges {
    fn of(engine: &Engine) -> Self {
        let has = |wanted| capabilities(None).is_ok_and(|own| own.effective.contains(wanted));
        Self {
            is_root: rustix::process::geteuid().is_root(),
            may_change_user: has(CapabilitySet::SETUID | CapabilitySet::SETGID),
            serves_others: engine.settings.owner == Owner::System,
            may_see_all: has(CapabilitySet::SYS_PTRACE),
        }
    }
}

/// Returns what the daemon's user and capabilities keep its helpers from.
fn privileges(of: &Privileges) -> Vec<String> {
    let user = match of {
        Privileges { serves_others: false, .. } | Privileges { is_root: true, may_change_user: true, .. } => None,
        Privileges { is_root: false, .. } => {
            Some("this daemon is not root's, so it freezes processes of its own user only".to_owned())
        }
        Privileges { may_change_user: false, .. } => Some(
            "this daemon lacks CAP_SETUID or CAP_SETGID, so it freezes processes of root only; its unit or container must allow both"
                .to_owned(),
        ),
    };
    let sight = (of.serves_others && of.is_root && !of.may_see_all).then(|| {
        "this daemon lacks CAP_SYS_PTRACE, so it does not freeze processes with more capabilities than its own, such as root's in containers"
            .to_owned()
    });
    user.into_iter().chain(sight).collect()
}

/// Returns what the kernel says of a process that keeps it from being frozen now. No process is told of it.
pub(crate) fn outer_obstacle(engine: &Engine, client: ClientId) -> Option<Obstacle> {
    match &engine.clients.get(client)?.peer.id {
        None => Some(Obstacle::Elsewhere),
        // The first thread has ended, and others go on.
        Some(id) if process::is_dead(id.pid) => Some(Obstacle::FirstThread),
        Some(id) => is_traced(id.pid).then_some(Obstacle::Debugger),
    }
}

/// Returns the obstacle of a process that says that it has none, or what it says.
pub(super) fn obstacle_with_outer(
    engine: &Engine,
    client: ClientId,
    told: Option<FreezeObstacle>,
) -> Option<Obstacle> {
    if untried_driver().is_some() {
        return Some(Obstacle::Driver);
    }
    let outer = || outer_obstacle(engine, client).filter(|obstacle| obstacle.is_lasting());
    told.map(obstacle_of).or_else(outer)
}

fn words(stage: FrostStage) -> String {
    match stage {
        FrostStage::Warm | FrostStage::Unexamined => "running",
        FrostStage::Freezing => "freezing",
        FrostStage::Frozen => "frozen",
        FrostStage::Thawing => "thawing",
    }
    .to_owned()
}

/// Returns the first reason why a session cannot be frozen, with the process that it is about.
fn obstacle(engine: &Engine, id: SessionId) -> Option<String> {
    let pid = |client| engine.clients.get(client).map_or(0, |client| client.peer.pid);
    if let Some(version) = untried_driver() {
        return Some(format!("{} (version {version})", Obstacle::Driver));
    }
    if let Some((client, obstacle)) = engine.machine.frost_obstacle(id) {
        let mut failures = engine.trials.failures();
        let page = engine.clients.get(client).map(|client| &client.page);
        let is_on = |&(gpu, _): &(GpuId, &str)| page.is_some_and(|page| page.is_on(gpu));
        let failure = failures.find(is_on).filter(|_| obstacle == Obstacle::Trial);
        let why = failure.map_or(String::new(), |(gpu, reason)| format!(" ({gpu}: {reason})"));
        return Some(format!("process {}: {obstacle}{why}", pid(client)));
    }
    let mut clients = engine
        .machine
        .session_sight(id)
        .into_iter()
        .flat_map(gpushare_core::SessionSight::clients);
    let (client, obstacle) = clients.find_map(|client| Some((client, outer_obstacle(engine, client)?)))?;
    Some(format!("process {}: {obstacle}", pid(client)))
}

/// Returns that a session that is to be frozen waits for host memory, if it does.
fn lacks_host_memory(engine: &Engine, id: SessionId) -> Option<String> {
    let lacks = engine.machine.freeze_lacks_host_memory(id);
    lacks.then(|| {
        "the machine has no room for what the driver moves into host memory; end programs that use much of it, and if \
         host_budget is set, raise it"
            .to_owned()
    })
}

fn is_traced(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    tracer.is_some_and(|tracer| tracer.trim() != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_says_whose_processes_it_cannot_freeze() {
        let of = |is_root, serves_others, may_see_all| {
            privileges(&Privileges { is_root, may_change_user: is_root, serves_others, may_see_all })
        };
        assert_eq!(of(true, true, true), Vec::<String>::new());
        assert_eq!(of(false, false, false), Vec::<String>::new(), "it serves its own user only");
        assert!(of(false, true, false)[0].contains("of its own user only"));
        assert!(of(true, true, false)[0].starts_with("this daemon lacks CAP_SYS_PTRACE"));
        let restricted =
            Privileges { is_root: true, may_change_user: false, serves_others: true, may_see_all: false };
        let [first, second] = privileges(&restricted).try_into().unwrap();
        assert!(first.contains("processes of root only") && second.contains("CAP_SYS_PTRACE"));
    }

    #[test]
    fn a_process_without_debugger_is_not_traced() {
        assert!(!is_traced(std::process::id()));
    }
}

//! Requests about freezing: an administrator's, and what is examined before the decision machine is asked.

use std::fs;

use gpushare_core::{Event, Obstacle};
use gpushare_proto::SessionId;
use gpushare_proto::admin::{AdminReply, FrostStage, FrostView};
use gpushare_proto::tenant::{Failure, FailureCode, FreezeObstacle};

use super::sessions::named;
use crate::engine::Engine;
use crate::freeze::tried::untried_driver;
use crate::memory::host::tell_budget;
use crate::operation::{bad_request, failure};

/// Returns the word of the decision machine for what a process says of itself.
pub(super) const fn obstacle_of(told: FreezeObstacle) -> Obstacle {
    match told {
        FreezeObstacle::Managed => Obstacle::Managed,
        FreezeObstacle::HostHandles => Obstacle::HostHandles,
        FreezeObstacle::Shared => Obstacle::Shared,
        FreezeObstacle::Peers => Obstacle::Peers,
        FreezeObstacle::Unseen => Obstacle::Unseen,
        FreezeObstacle::Driver => Obstacle::Driver,
    }
}

/// Begins to freeze a session, unless something stands in the way.
pub(super) fn freeze(engine: &mut Engine, which: &str) -> Result<AdminReply, Failure> {
    let id = named(&engine.sessions, which)?;
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
    Ok(AdminReply::Changed { old, new: words(engine.machine.frost_stage(id)) })
}

/// Lets the processes of a session come back.
pub(super) fn thaw(engine: &mut Engine, which: &str) -> Result<AdminReply, Failure> {
    let id = named(&engine.sessions, which)?;
    let old = words(engine.machine.frost_stage(id));
    engine.feed(Event::Freeze { session: id, wanted: false });
    Ok(AdminReply::Changed { old, new: words(engine.machine.frost_stage(id)) })
}

/// Returns how far a session is frozen, and what stands in the way of it.
pub(super) fn view(engine: &Engine, which: &str) -> Result<FrostView, Failure> {
    let id = named(&engine.sessions, which)?;
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
    Ok(FrostView { stage, obstacle: obstacle(engine, id) })
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
        return Some(format!("process {}: {obstacle}", pid(client)));
    }
    let clients = engine
        .machine
        .session_sight(id)
        .into_iter()
        .flat_map(gpushare_core::SessionSight::clients);
    let traced = clients.map(pid).find(|&pid| pid != 0 && is_traced(pid))?;
    Some(format!("process {traced}: {}", Obstacle::Debugger))
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
    fn a_process_without_debugger_is_not_traced() {
        assert!(!is_traced(std::process::id()));
    }
}

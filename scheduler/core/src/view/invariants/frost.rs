//! Invariants of frozen processes (`session/frost.rs`), checked after every event.

use gpushare_proto::{Bytes, ClientId, GpuId};

use super::{Broken, hold};
use crate::events::Effect;
use crate::machine::Core;
use crate::machine::thaws::needs_as_much;
use crate::session::client::Client;
use crate::session::frost::Stage;
use crate::session::gate::Passage;
use crate::values::gpu_set::GpuSet;

/// Checks all of them.
pub(super) fn check(core: &Core) -> Result<(), Broken> {
    for (id, session) in core.view.sessions.iter() {
        let listed = core.view.cold.contains(&id);
        let has_cold = session.clients.values().any(|process| process.frost.is_cold());
        hold("sessions with frost are listed", listed == (session.wants_frost || has_cold), || {
            format!("{id} among {:?}", core.view.cold)
        })?;
        hold("a session knows that a process is cold", session.may_be_cold || !has_cold, || id.to_string())?;
        for (client, process) in session.clients.iter() {
            let stays = session.wants_frost;
            of_process(client, process, stays)?;
        }
    }
    let frozen: Bytes = all(core).map(|(_, process)| process.frost.host_bytes()).sum();
    hold("the host keeps room for what is frozen", core.view.host.frozen() == frozen, || {
        format!("{frozen} are frozen: {:?}", core.view.host)
    })
}

/// Checks the steps that begin with an event. A process may announce more cards while the driver moves it.
pub(super) fn steps_begin_one_by_one(core: &Core, effects: &[Effect]) -> Result<(), Broken> {
    for effect in effects {
        let (Effect::Freeze { client } | Effect::Thaw { client }) = *effect else {
            continue;
        };
        let process = core.view.sessions.client(client);
        let begins = process.is_some_and(|process| process.frost.is_under_way());
        hold("the driver moves a process once at a time", begins, || format!("{effect:?}"))?;
        let cards: GpuSet = process.into_iter().flat_map(|process| process.books.keys()).collect();
        let beside = |(other, process): &(ClientId, &Client)| {
            let shares = process.books.keys().any(|gpu| cards.contains(gpu));
            *other != client && process.frost.is_under_way() && shares
        };
        let beside = all(core).find(beside).map(|(other, _)| other);
        hold("the driver moves one process at a time on a card", beside.is_none(), || {
            format!("{effect:?} beside {beside:?}")
        })?;
        if let Some(Stage::Thawing(ticket)) = process.map(|process| process.frost.stage()) {
            let overtaken = |(earlier, process): &(ClientId, &Client)| {
                let shares = process.books.keys().any(|gpu| cards.contains(gpu));
                let is_next = |of| (of, *earlier) < (ticket, client) && !pauses(core, *earlier, of);
                matches!(process.frost.stage(), Stage::Due(of, _) if shares && is_next(of))
            };
            let overtaken = all(core).find(overtaken).map(|(earlier, _)| earlier);
            hold(
                "a process whose thaw is due is overtaken only while it pauses",
                overtaken.is_none(),
                || format!("{effect:?} before {overtaken:?}"),
            )?;
        }
    }
    Ok(())
}

/// Whether a process with this ticket pauses: after an attempt, or since an earlier one pauses that found too little
/// memory and needs no more.
fn pauses(core: &Core, client: ClientId, ticket: u64) -> bool {
    let paused = |process: &Client| match process.frost.stage() {
        Stage::Due(ticket, after) if after > core.view.now => Some(ticket),
        _ => None,
    };
    all(core).any(|(other, process)| {
        let holds_back = || {
            let needs = (core.bytes_to_thaw(client), core.bytes_to_thaw(other));
            process.frost.lacks_memory() && needs_as_much(&needs.0, &needs.1)
        };
        paused(process).is_some_and(|of| other == client || ((of, other) < (ticket, client) && holds_back()))
    })
}

/// Checks that no process is killed that must not be.
pub(super) fn nobody_is_killed_who_is_spared(core: &Core, effects: &[Effect]) -> Result<(), Broken> {
    for effect in effects {
        let Effect::Kill { client } = *effect else { continue };
        let process = core.view.sessions.client(client);
        let is_spared =
            process.is_some_and(|process| process.frost.is_spared()) || core.view.recovery.spares(client);
        hold("no process is killed that the driver has frozen", !is_spared, || client.to_string())?;
    }
    Ok(())
}

/// All processes.
fn all(core: &Core) -> impl Iterator<Item = (ClientId, &Client)> {
    core.view.sessions.values().flat_map(|session| session.clients.iter())
}

/// Checks one process, which `stays` cold if its session still wishes so.
fn of_process(client: ClientId, process: &Client, stays: bool) -> Result<(), Broken> {
    let (frost, said) = (&process.frost, || format!("{client}: {:?}", process.frost));
    let is_shut = process.gate.passage() == Passage::Shut;
    hold("no gate of a frozen process is open", is_shut || !frost.bars(), said)?;
    let away = |(_, book): (GpuId, &crate::memory::book::Book)| book.is_away == frost.is_away();
    hold("memory of frozen processes is away, and of no others", process.books.iter().all(away), said)?;
    let returns = !matches!(frost.stage(), Stage::Parking(_) | Stage::Parked | Stage::Frozen);
    hold("a process comes back once its session does not wish to be frozen", stays || returns, said)
}

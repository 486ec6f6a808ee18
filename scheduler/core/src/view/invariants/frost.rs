//! Invariants of frozen processes (`session/frost.rs`), checked after every event.

use gpushare_proto::{Bytes, ClientId, GpuId};

use super::{Broken, hold};
use crate::machine::Core;
use crate::session::client::Client;
use crate::session::frost::Stage;
use crate::session::gate::Passage;

/// Checks all of them.
pub(super) fn check(core: &Core) -> Result<(), Broken> {
    for (id, session) in core.view.sessions.iter() {
        let listed = core.view.cold.contains(&id);
        hold("sessions with frost are listed", listed == session.is_cold(), || {
            format!("{id} among {:?}", core.view.cold)
        })?;
        for (client, process) in session.clients.iter() {
            let stays = session.wants_frost;
            of_process(client, process, stays)?;
        }
    }
    let all = || core.view.sessions.values().flat_map(|session| session.clients.iter());
    for gpu in core.view.cards.keys() {
        let moving =
            |(_, process): &(ClientId, &Client)| process.frost.is_under_way() && process.books.contains(gpu);
        let moving: Vec<ClientId> = all().filter(moving).map(|(client, _)| client).collect();
        hold("the driver moves one process at a time on a card", moving.len() <= 1, || {
            format!("{moving:?} on {gpu}")
        })?;
    }
    let frozen: Bytes = all().map(|(_, process)| process.frost.host_bytes()).sum();
    hold("the host keeps room for what is frozen", core.view.host.frozen() == frozen, || {
        format!("{frozen} are frozen: {:?}", core.view.host)
    })
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

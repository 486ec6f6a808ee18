//! Clients that disconnected while their processes live, and their return.
//!
//! A process may close its connection at any time; only the kernel reports its death. Until then the process
//! may use everything that it was given. So it keeps its leases, its cards, and the lock or its place in
//! line.
//!
//! A killed process closes its sockets while the kernel ends it. It is dead some 60 ms later, when the driver
//! has released its cards. In between, the kernel reports each of its threads as ending. The daemon treats
//! that as the end, because the process will use nothing more.
//!
//! ```text
//!   client ── hang-up, process alive ─▶ away ── the same process says who it was ──▶ client, with a new page
//!      │                                 │
//!      └── dead, or on no card ──▶ gone ◀┴── dead, or it runs another program
//! ```
//!
//! The decision machine treats a client that is away like a stopped one. Its gate closes, and its free lease
//! is taken back. A drop (request for the lock) that it does not answer is stuck. On its return it is booked
//! with at least the bytes known before.
//!
//! A process that does not name its earlier client becomes a second client beside it. After an `exec` the
//! first client is over when NVML, which listed the process on each of its cards, twice omits it. Without
//! NVML the first client lasts as long as the process.

use std::os::fd::OwnedFd;

use gpushare_core::Event;
use gpushare_proto::tenant::{Failure, FailureCode, Returning};
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId};

use super::join::{add_cards, credible_bytes, welcome};
use super::leave::{add_dead_of_last_daemon, close_connection, remove_client};
use super::page::ClientPage;
use super::table::Client;
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::input::Watched;
use crate::memory::reserve::give_up;
use crate::nvml::Usages;
use crate::operation::{Operation, failure};
use crate::registry::ClientEntry;

/// Largest number of disconnected clients of one process. Each costs a shared page.
const MOST_AWAY: usize = 64;

/// Ends a client's connection. The client is away afterwards if its process is alive and uses a card.
pub(super) fn hang_up(engine: &mut Engine, id: ClientId) {
    engine.clients.disconnect(id);
    let Some(client) = engine.clients.get(id) else {
        return;
    };
    let has_nothing = client.page.gpus().next().is_none();
    // An unproven claim must not keep a card from others for as long as its process likes.
    if has_nothing || client.peer.is_ending() || engine.machine.is_unproven(id) {
        return remove_client(engine, id);
    }
    let name = engine.sessions.name(client.session);
    Operation::of("process.hangup", client.session, &name)
        .peer(&client.peer)
        // At debug level, since every end of a process begins like this. `status` shows clients that stay
        // away.
        .debug(format_args!(
            "pid {} of {name} hung up and lives: what {id} has stays its own until it is back or dead",
            client.peer.pid
        ));
    watch_away(engine, id);
    engine.update_poll();
}

fn watch_away(engine: &mut Engine, id: ClientId) {
    let client = engine.clients.get(id).filter(|client| client.away.watch.is_none());
    if let Some(pidfd) = client.map(|client| client.peer.pidfd.clone()) {
        let watch = engine.watch(pidfd, Watched::Away(id));
        if let Some(client) = engine.clients.get_mut(id) {
            client.away.watch = Some(watch);
        }
    }
}

/// Returns the earlier client to which a process returns. Closes the client's old connection, if any.
pub(super) fn returning_client(
    engine: &mut Engine,
    peer: &PeerProcess,
    returning: &Returning,
) -> Option<ClientId> {
    let client = engine.clients.get(returning.client)?;
    if !client.peer.is(peer) {
        return None;
    }
    // The process lost its connection before the daemon noticed.
    if let Some(connection) = client.connection {
        close_connection(engine, connection);
    }
    // A client on no card ended with its connection.
    engine.clients.get(returning.client).map(|_| returning.client)
}

/// Refuses a new client if its process, or its user and container, has the most disconnected clients already.
///
/// Each disconnected client costs descriptors, as a connection does. So the limit of connections applies.
pub(super) fn check_away_limit(engine: &Engine, peer: &PeerProcess) -> Result<(), Failure> {
    let principal = &peer.principal;
    let away = || engine.clients.away().map(|(_, client)| &client.peer);
    let own = away().filter(|process| process.is(peer)).count();
    let of_principal = away().filter(|process| process.principal == *principal).count();
    let refused = |message| Err(failure(FailureCode::Unavailable, message));
    if own >= MOST_AWAY {
        return refused(format!(
            "the process hung up {MOST_AWAY} times and may still use what it had each time; end it"
        ));
    }
    if !engine.limit.allows(principal, of_principal) {
        return refused(format!(
            "processes of {principal} hung up {} times and may still use what they had each time; end them",
            engine.limit.most
        ));
    }
    Ok(())
}

/// Gives a returning client its new connection and shared page, and books the bytes that it claims to use.
pub(super) fn come_back(
    engine: &mut Engine,
    connection: ConnectionId,
    (id, peer): (ClientId, &PeerProcess),
    returning: &Returning,
    (file, page): (OwnedFd, ClientPage),
) -> Result<(), Failure> {
    let gpus = add_cards(engine, peer, &returning.gpus)?;
    engine.read_page(id);
    let Some(client) = engine.clients.get_mut(id) else {
        return Ok(());
    };
    page.hold_back(engine.restores.held_back(), 0);
    page.carry_creations(&client.page);
    let before = std::mem::replace(&mut client.page, page);
    before.close();
    let session = client.session;
    engine.clients.reconnect(id, connection, peer);
    let name = welcome(engine, connection, (id, session), gpus.clone(), file);
    for gpu in before.gpus() {
        let known = engine.machine.used_bytes(id, gpu).unwrap_or_default();
        let claim = gpus.iter().zip(&returning.gpus).find(|(of, _)| **of == gpu);
        let claim =
            claim.map_or(Bytes::ZERO, |(_, had)| had.used.min(credible_bytes(engine, session, gpu, false)));
        if let Some(client) = engine.clients.get_mut(id) {
            client.page.attach(gpu, known.max(claim));
            client.away.surplus.insert(gpu, known - claim);
        }
        engine.utilization.write(&engine.clients, id, gpu);
    }
    Operation::of("process.return", session, &name)
        .peer(peer)
        .debug(format_args!("{id} (pid {}) of {name} is back", peer.pid));
    engine.feed(Event::ClientReturned { client: id, waiting: returning.waiting });
    for (gpu, had) in gpus.into_iter().zip(&returning.gpus) {
        match engine.clients.get(id).and_then(|client| client.page.leased(gpu)) {
            Some(bytes) => engine.feed(Event::StillUses { client: id, gpu, bytes }),
            None => {
                let used = had.used.min(credible_bytes(engine, session, gpu, false));
                engine.attach(id, gpu, used);
            }
        }
        engine.feed(Event::Contexts { client: id, gpu, live: had.contexts });
    }
    engine.persistence.client_changed(id);
    engine.metering.measure_soon();
    engine.update_poll();
    Ok(())
}

/// Frees bytes booked for a returned client beyond its requests, once it has repeated all requests.
///
/// The client returned these bytes on its last connection, and the message was lost.
pub(crate) fn all_repeated(engine: &mut Engine, id: ClientId) {
    let client = engine.clients.get_mut(id);
    let surplus = client
        .map(|client| std::mem::take(&mut client.away.surplus))
        .unwrap_or_default();
    for (gpu, bytes) in surplus {
        give_up(engine, id, gpu, bytes);
    }
}

/// Turns an awaited client into a disconnected one: its process connected without naming that client.
///
/// Forgets a client whose cards are not known.
pub(super) fn becomes_away(engine: &mut Engine, entry: ClientEntry, peer: &PeerProcess) {
    let (id, session) = (entry.client, entry.session);
    let page = ClientPage::create().map(|(_, page)| page);
    let (Ok(page), false) = (page, entry.cards.is_empty()) else {
        engine.feed(Event::ExpectedGone { client: id });
        return add_dead_of_last_daemon(engine, entry);
    };
    let remaps = entry.remaps;
    engine
        .clients
        .insert(id, Client { remaps, ..Client::new(session, peer, page, true) });
    watch_away(engine, id);
    // The registry does not say whether it held the lock, so it may have.
    engine.feed(Event::ClientJoined { client: id, session, holding: Some(Epoch::default()) });
    if remaps {
        engine.feed(Event::Remaps { client: id });
    }
    if entry.frozen {
        engine.feed(Event::FrozenBefore { client: id });
    }
    for of in entry.cards {
        if let Ok(gpu) = engine.add_card(&of.card) {
            engine.attach(id, gpu, of.used);
        }
    }
}

/// Removes disconnected clients whose processes run another program: NVML lists them on none of their cards.
pub(crate) fn remove_unlisted(engine: &mut Engine, usages: &Usages) {
    let mut over = Vec::new();
    let away: Vec<ClientId> = engine.clients.away().map(|(id, _)| id).collect();
    for id in away {
        // NVML lists no frozen process.
        if engine.machine.is_frozen(id) {
            continue;
        }
        let Some(client) = engine.clients.get_mut(id) else { continue };
        let pid = client.peer.pid;
        let ended = |gpu: GpuId| {
            let was_listed = client.overheads.get(&gpu).is_some_and(|overhead| overhead.listed);
            let card = engine.cards.get(gpu).and_then(|card| usages.get(&card.info.uuid));
            let listed = card.and_then(Option::as_ref);
            was_listed && listed.is_some_and(|listed| !listed.contains_key(&pid))
        };
        let unlisted = client.page.gpus().all(ended);
        if client.away.is_over(unlisted) {
            over.push(id);
        }
    }
    over.into_iter().for_each(|id| remove_client(engine, id));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::bench::{Bench, GPU, usages};

    const PID: u32 = 70;
    const OTHER: (u32, Bytes) = (71, Bytes::mib(500));

    /// A client without a connection, which NVML has listed once.
    fn away(bench: &mut Bench) -> ClientId {
        let client = bench.client(PID, Bytes::gib(4));
        let known = bench.engine.clients.get_mut(client).unwrap();
        known.overheads.entry(GPU).or_default().listed = true;
        client
    }

    #[tokio::test]
    async fn a_frozen_process_that_hung_up_is_not_taken_for_ended() {
        let mut bench = Bench::new();
        let client = away(&mut bench);
        bench.freeze(client);
        for _ in 0..3 {
            remove_unlisted(&mut bench.engine, &usages(&[OTHER]));
            assert!(bench.engine.clients.get(client).is_some(), "NVML lists no frozen process");
        }
        bench.thaw(client);
        remove_unlisted(&mut bench.engine, &usages(&[OTHER]));
        assert!(bench.engine.clients.get(client).is_some(), "answers of before do not count");
    }

    #[tokio::test]
    async fn a_process_that_runs_another_program_is_gone_after_two_answers() {
        let mut bench = Bench::new();
        let client = away(&mut bench);
        let is_client = [&[(PID, Bytes::mib(500)), OTHER][..], &[OTHER], &[OTHER]].map(|listed| {
            remove_unlisted(&mut bench.engine, &usages(listed));
            bench.engine.clients.get(client).is_some()
        });
        assert_eq!(is_client, [true, true, false]);
    }
}

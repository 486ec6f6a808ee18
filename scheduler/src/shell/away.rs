//! Processes that hung up and live. A connection is the process's to end; its death is the kernel's to tell. Until then it may
//! use whatever it was given, so it keeps all of it: leases, cards, the lock or its place in the queue.
//!
//! A process that is killed closes its sockets while the kernel ends it, and is dead when the driver has let go of its cards, some
//! 60 ms later. In between the kernel says of each of its threads that it is ending: that is the end, as it will use nothing more.
//!
//! ```text
//!   client ── hang-up, and the kernel says alive ─▶ away ── the same process says who it was ──▶ client, with a new page
//!      │                                             │
//!      └── dead, or nothing was given to it ──▶ gone ◀┴── dead, or it runs another program
//! ```
//!
//! To the core one that is away is like one that is stopped: its page still closes its gate and gives free lease back,
//! and a drop that it does not answer is stuck, with all that follows. When it is back it has at least what was known of
//! it. So an answer that may have been lost with the connection is remembered: the library asks again under the same number and is
//! told the same, without a second booking. When it has asked for all of them it says so, and what is booked beyond is free: it gave
//! that back, and nobody heard.
//!
//! A process that comes without saying who it was is another client beside the one that is away, even where an `exec` makes it
//! another program: that one is over when NVML, which listed the process on each of its cards, twice does so no more. Without
//! NVML it lasts as long as the process.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use gpushare_core::Event;
use gpushare_proto::tenant::{
    Failure, FailureCode, PROTOCOL, Returning, TenantReply, TenantRequest, Welcome,
};
use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, RequestId};

use super::measuring::Overhead;
use super::unknown::UnknownFunctions;
use super::{Client, ConnectionRole, Shell, failure};
use crate::connections::ConnectionId;
use crate::identity::{PeerProcess, Watch};
use crate::input::Watched;
use crate::nvml::Usages;
use crate::operation::Operation;
use crate::pages::ClientPage;
use crate::registry::ClientEntry;

/// So many answers can be lost with a connection, about: one for each thread that waits.
const ANSWERS: usize = 64;
/// So many clients of one process may be away; each costs a page.
const MOST_AWAY: usize = 64;
/// So many answers of NVML in a row say that a process runs another program.
const UNLISTED: u32 = 2;

/// Bytes of a card that were given for a request.
type Answer = (RequestId, GpuId, Bytes);

/// What must outlive a client's connection.
#[derive(Debug, Default)]
pub(super) struct Away {
    /// The latest answers on this connection, and those on earlier ones that may be asked for again.
    answers: VecDeque<Answer>,
    repeats: VecDeque<Answer>,
    /// What is booked beyond what it said on its return, by card, and not asked for again yet.
    surplus: BTreeMap<GpuId, Bytes>,
    /// Reports its death.
    watch: Option<Watch>,
    /// How often in a row NVML did not list it.
    unlisted: u32,
}

impl Away {
    pub(super) fn answered(&mut self, answer: Answer) {
        if self.answers.len() == ANSWERS {
            self.answers.pop_front();
        }
        self.answers.push_back(answer);
    }

    /// On the new connection what was answered on the old one may be asked again, as may what was not asked on that for
    /// want of time.
    fn ended(&mut self) {
        self.repeats.append(&mut self.answers);
        let forgotten = self.repeats.len().saturating_sub(ANSWERS);
        self.repeats.drain(..forgotten);
        self.unlisted = 0;
    }

    /// Takes an answer of NVML in: whether so many in a row did not list the process that it runs another program.
    fn is_over(&mut self, unlisted: bool) -> bool {
        self.unlisted = if unlisted { self.unlisted + 1 } else { 0 };
        self.unlisted >= UNLISTED
    }

    /// Whether a request was answered on an earlier connection; no third time.
    fn repeats(&mut self, answer: Answer) -> bool {
        let found = self.repeats.iter().position(|of| *of == answer);
        let repeated = found.and_then(|at| self.repeats.remove(at)).is_some();
        if repeated && let Some(surplus) = self.surplus.get_mut(&answer.1) {
            *surplus -= answer.2;
        }
        repeated
    }
}

impl Shell {
    /// A client's connection is over.
    pub(super) fn hung_up(&mut self, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.connection = None;
        client.away.ended();
        let has_nothing = client.page.gpus().next().is_none();
        // A stranger's word must not keep a card from the others for as long as its process likes.
        if has_nothing || client.peer.is_ending() || self.core.is_unproven(id) {
            return self.client_gone(id);
        }
        let (session, peer) = (client.session, client.peer.clone());
        let name = self.sessions.name(session);
        Operation::done("process.hangup")
            .of(session, &name)
            .process(peer.pid)
            .user(peer.uid)
            // Every end of a process begins like this: `status` shows who stays like this.
            .debug(format_args!(
                "pid {} of {name} hung up and lives: what {id} has stays its own until it is back or dead",
                peer.pid
            ));
        self.watch_away(id);
        self.note_sharing();
    }

    fn watch_away(&mut self, id: ClientId) {
        let unwatched = |client: &&Client| client.away.watch.is_none();
        let Some(client) = self.clients.get(&id).filter(unwatched) else {
            return;
        };
        let watch = self.watch(client.peer.pidfd.clone(), Watched::Away(id));
        if let Some(client) = self.clients.get_mut(&id) {
            client.away.watch = Some(watch);
        }
    }

    /// Who of this process is away, or else is about to be replaced by this connection.
    pub(super) fn who_returns(&mut self, peer: &PeerProcess, returning: &Returning) -> Option<ClientId> {
        let client = self.clients.get(&returning.client)?;
        if !client.peer.is(peer) {
            return None;
        }
        // It lost its connection before we noticed.
        if let Some(connection) = client.connection {
            self.drop_connection(connection);
        }
        // One that was on no card ended with that.
        self.clients.contains_key(&returning.client).then_some(returning.client)
    }

    /// Whether a process or its principal has so many clients that are away that it gets no more. Each costs descriptors, as a
    /// connection does: so a principal has as many at most.
    pub(super) fn may_join(&self, peer: &PeerProcess) -> Result<(), Failure> {
        let away = || self.clients.values().filter(|client| client.connection.is_none());
        let own = away().filter(|client| client.peer.is(peer)).count();
        let principal = &peer.principal;
        let of_principal = away().filter(|client| client.peer.principal == *principal).count();
        let refused = |message| Err(failure(FailureCode::Unavailable, message));
        match () {
            () if own >= MOST_AWAY => refused(format!(
                "the process hung up {MOST_AWAY} times and may still use what it had each time; end it"
            )),
            () if !self.limit.allows(principal, of_principal) => refused(format!(
                "processes of {principal} hung up {} times and may still use what they had each time; end them",
                self.limit.most()
            )),
            () => Ok(()),
        }
    }

    /// A client that was away is back.
    pub(super) fn come_back(
        &mut self,
        connection: ConnectionId,
        (id, peer): (ClientId, &PeerProcess),
        returning: &Returning,
        (file, page): (OwnedFd, ClientPage),
    ) -> Result<(), Failure> {
        let gpus = self.cards_of(&returning.gpus)?;
        self.look_at_page(id);
        let Some(client) = self.clients.get_mut(&id) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut client.page, page);
        before.close();
        client.connection = Some(connection);
        client.peer = peer.clone();
        // What was granted while it was away was answered to nobody.
        client.away.ended();
        let session = client.session;
        let name = self.sessions.name(session);
        let welcome = TenantReply::Welcome(Welcome {
            protocol: PROTOCOL,
            client: id,
            session,
            name: name.clone(),
            gpus: gpus.clone(),
        });
        self.push(connection, |outbox| outbox.send_with(&welcome, file));
        if let Some(open) = self.connections.get_mut(&connection) {
            open.role = ConnectionRole::Client(id);
        }
        for gpu in before.gpus() {
            let known = self.core.used_bytes(id, gpu).unwrap_or_default();
            let says = gpus.iter().zip(&returning.gpus).find(|(of, _)| **of == gpu);
            let says = says.map_or(Bytes::ZERO, |(_, had)| had.used.min(self.credible(session, gpu, false)));
            if let Some(client) = self.clients.get_mut(&id) {
                client.page.attach(gpu, known.max(says));
                client.away.surplus.insert(gpu, known - says);
                self.cards.aim(&client.page);
            }
        }
        Operation::done("process.return")
            .of(session, &name)
            .process(peer.pid)
            .user(peer.uid)
            // Every end of a process begins like this: `status` shows who stays like this.
            .debug(format_args!("{id} (pid {}) of {name} is back", peer.pid));
        self.feed(Event::ClientReturned { client: id, waiting: returning.waiting });
        for (gpu, had) in gpus.into_iter().zip(&returning.gpus) {
            match self.clients.get(&id).and_then(|client| client.page.leased(gpu)) {
                Some(bytes) => self.feed(Event::StillUses { client: id, gpu, bytes }),
                None => {
                    let used = had.used.min(self.credible(session, gpu, false));
                    self.attach(id, gpu, used);
                }
            }
            self.feed(Event::Contexts { client: id, gpu, live: had.contexts });
        }
        self.keeping.changed();
        self.measure_soon();
        self.note_sharing();
        Ok(())
    }

    /// Answers a request that was answered on the last connection of a client, and counts there.
    pub(super) fn repeats(
        &mut self,
        connection: ConnectionId,
        client: ClientId,
        asks: &TenantRequest,
    ) -> bool {
        let (TenantRequest::Reserve { request, gpu, bytes }
        | TenantRequest::ReserveFixed { request, gpu, bytes }) = *asks
        else {
            return false;
        };
        let process = self.clients.get_mut(&client);
        let repeated = process.is_some_and(|process| process.away.repeats((request, gpu, bytes)));
        if repeated {
            self.reply(connection, &TenantReply::Reserved { request, bytes });
        }
        repeated
    }

    /// A client that came back has asked again for all that it asked for before. What it gave back on its last connection and
    /// nobody heard is free: no answer that it waits for has these bytes.
    pub(super) fn settle_return(&mut self, client: ClientId) {
        let surplus = self
            .clients
            .get_mut(&client)
            .map(|process| std::mem::take(&mut process.away.surplus));
        for (gpu, bytes) in surplus.into_iter().flatten() {
            self.give_up(client, gpu, bytes);
        }
    }

    /// Bytes that a client has leased and neither uses nor has in its page are nobody's.
    pub(super) fn give_up(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.look_at(client, gpu);
        let page = self.clients.get_mut(&client).map(|client| &mut client.page);
        let bytes = page.map_or(Bytes::ZERO, |page| page.give_up(gpu, bytes));
        self.feed(Event::Returned { client, gpu, bytes });
    }

    /// A process that is awaited, and came without saying who it was: what it had is away from now on. Where nobody knows what
    /// that was it is forgotten.
    pub(super) fn becomes_away(&mut self, id: ClientId, entry: ClientEntry, peer: &PeerProcess) {
        let page = ClientPage::create().map(|(_, page)| page);
        let (Ok(page), false) = (page, entry.cards.is_empty()) else {
            self.expected.insert(id, entry);
            return self.expected_gone(id);
        };
        let session = entry.session;
        self.clients.insert(
            id,
            Client {
                session,
                connection: None,
                peer: peer.clone(),
                away: Away::default(),
                restored: true,
                page,
                overheads: BTreeMap::new(),
                unknown: UnknownFunctions::default(),
            },
        );
        self.watch_away(id);
        // Whether it held the lock is not written down: it may have.
        self.feed(Event::ClientJoined { client: id, session, holding: Some(Epoch::default()) });
        for of in entry.cards {
            if let Ok(gpu) = self.add_card(&of.card) {
                self.attach(id, gpu, of.used);
            }
        }
    }

    /// Those who are away and were on cards on which they are no more run other programs by now.
    pub(super) fn bury_unlisted(&mut self, usages: &Usages) {
        let mut over = Vec::new();
        for (&id, client) in &mut self.clients {
            if client.connection.is_some() {
                continue;
            }
            let pid = client.peer.pid;
            let ended = |gpu: GpuId| {
                let was = client.overheads.get(&gpu).is_some_and(Overhead::was_listed);
                let card = self.cards.get(gpu).and_then(|card| usages.get(&card.info.uuid));
                let listed = card.and_then(Option::as_ref);
                was && listed.is_some_and(|listed| !listed.contains_key(&pid))
            };
            let unlisted = client.page.gpus().all(ended);
            if client.away.is_over(unlisted) {
                over.push(id);
            }
        }
        over.into_iter().for_each(|id| self.client_gone(id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_given_again_once_and_on_a_later_connection_only() {
        let answer = (RequestId(7), GpuId(0), Bytes(5));
        let mut away = Away::default();
        away.answered(answer);
        assert!(!away.repeats(answer), "nobody hung up");
        away.ended();
        assert!(!away.repeats((RequestId(7), GpuId(0), Bytes(6))));
        assert!(away.repeats(answer));
        assert!(!away.repeats(answer));
    }

    #[test]
    fn who_hangs_up_again_before_it_asks_is_answered_on_the_connection_after_that() {
        let answer = (RequestId(7), GpuId(0), Bytes(5));
        let mut away = Away::default();
        away.answered(answer);
        away.ended();
        away.ended();
        assert!(away.repeats(answer));
        assert!(!away.repeats(answer));
    }

    #[test]
    fn one_answer_that_does_not_list_a_process_is_no_end_of_its_program() {
        let mut away = Away::default();
        let over = [true, false, true, true].map(|unlisted| away.is_over(unlisted));
        assert_eq!(over, [false, false, false, true]);
        away.ended();
        assert!(!away.is_over(true), "it was back, and is away anew");
    }

    #[test]
    fn the_latest_answers_are_remembered() {
        let mut away = Away::default();
        let answer = |n| (RequestId(n), GpuId(0), Bytes(n));
        (0..=ANSWERS as u64).for_each(|n| away.answered(answer(n)));
        away.ended();
        assert!(!away.repeats(answer(0)));
        assert!(away.repeats(answer(1)) && away.repeats(answer(ANSWERS as u64)));
    }
}

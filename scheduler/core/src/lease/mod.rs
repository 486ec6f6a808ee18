//! Leases: how bytes of quota get into a process's page and back.
//!
//! ```text
//!   Reserve ──▶ within the limits? ──yes──▶ Lease{bytes, extra}
//!                  ▲      │ no
//!                  │      ▼
//!      Recalled ───┴── Recall from the next process that may have free lease ── none left ──▶ Refuse
//! ```
//!
//! What lies free in a page is known only as last seen, so every process under the limit is asked, the one with the most
//! free lease first, and only for what is missing. Nobody is refused while room exists.

mod limits;

use std::collections::{BTreeMap, BTreeSet};

use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::{Bytes, ClientId, GpuId, RequestId, SessionId};

use crate::core::Core;
use crate::event::{Effect, Notice};
use crate::session::client::Book;
use limits::{Excess, Limits, Scope};

/// So many chunks of free lease a process may have before it offers some back.
const KEPT_CHUNKS: u64 = 2;

/// Open questions about leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recalls {
    /// The request that waits for what is being recalled.
    request: Option<Request>,
    /// What was asked of a page and is not answered yet. An answer is believed up to this, and once.
    asked: BTreeMap<(ClientId, GpuId), Bytes>,
}

impl Recalls {
    /// Whether a request waits for an answer that the shell owes us.
    pub(crate) fn is_waiting(&self) -> bool {
        self.request.is_some()
    }

    /// Everybody who is spoken of.
    pub(crate) fn clients(&self) -> impl Iterator<Item = ClientId> {
        let asker = self.request.iter().map(|request| request.client);
        asker.chain(self.asked.keys().map(|&(client, _)| client))
    }

    /// Nothing is expected of a dead client.
    pub(crate) fn forget(&mut self, client: ClientId) {
        self.asked.retain(|&(asked, _), _| asked != client);
        self.request = self.request.take().filter(|request| request.client != client);
    }
}

/// A [`crate::Event::Reserve`] that is being decided.
#[derive(Clone, Debug)]
struct Request {
    session: SessionId,
    client: ClientId,
    gpu: GpuId,
    id: RequestId,
    bytes: Bytes,
    kind: Kind,
    tried: BTreeSet<ClientId>,
}

/// What the bytes of a request become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Managed memory, as far as we know.
    Movable,
    /// Something that never moves.
    Fixed,
}

impl Core {
    /// A process asks for `bytes` beyond its lease.
    pub(crate) fn reserve(&mut self, client: ClientId, gpu: GpuId, id: RequestId, bytes: Bytes, kind: Kind) {
        let Some(session) = self.session_of(client) else {
            return;
        };
        self.recalls.request =
            Some(Request { session, client, gpu, id, bytes, kind, tried: BTreeSet::new() });
        self.decide_request(true);
    }

    /// The shell took `bytes` out of a page.
    pub(crate) fn recalled(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(asked) = self.recalls.asked.remove(&(client, gpu)) else {
            return;
        };
        self.change_book(client, gpu, |book| {
            let taken = bytes.min(asked).min(book.leased);
            book.leased -= taken;
            book.free = match taken < asked {
                true => Bytes::ZERO,
                false => book.free - taken,
            };
        });
        self.decide_request(true);
    }

    /// The free lease of a page, as the shell saw it.
    pub(crate) fn lease_seen(&mut self, client: ClientId, gpu: GpuId, free: Bytes) {
        let Some(id) = self.session_of(client) else { return };
        let grew = self.change_book(client, gpu, |book| {
            let before = book.used();
            book.free = free.min(book.leased);
            book.used() > before
        });
        if grew == Some(true) {
            self.grown = Some(id);
        }
        self.recall_unused_of(id, client, gpu);
    }

    /// A session that has more than it may have gives back what lies unused in its pages: it would be memory that it got
    /// afterwards.
    pub(crate) fn recall_unused(&mut self, id: SessionId) {
        let clients = self.sessions.get(id).into_iter().flat_map(|session| session.clients.iter());
        let books: Vec<(ClientId, GpuId)> = clients
            .flat_map(|(client, process)| process.books.keys().map(move |gpu| (client, gpu)))
            .collect();
        for (client, gpu) in books {
            self.recall_unused_of(id, client, gpu);
        }
    }

    fn recall_unused_of(&mut self, id: SessionId, client: ClientId, gpu: GpuId) {
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let excess = match session.may_grow() {
            true => session.sums(gpu).leased.get() - session.limit(gpu),
            false => Bytes::MAX,
        };
        let free = self.book(client, gpu).map_or(Bytes::ZERO, |book| book.free);
        let bytes = free.min(excess);
        if !bytes.is_zero() && !self.recalls.asked.contains_key(&(client, gpu)) {
            self.recall(client, gpu, bytes);
        }
    }

    /// How many of a process's bytes never move. They leave the card's capacity, and the managed limit.
    pub(crate) fn fixed(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.change_book(client, gpu, |book| book.fixed = bytes.min(book.leased));
    }

    /// Bytes that never moved came back. A little goes into the page, where the next allocation takes it without a
    /// question, if the managed limit allows that it becomes managed memory.
    pub(crate) fn returned(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(session) = self.session_of(client) else {
            return;
        };
        let back = self.change_book(client, gpu, |book| {
            let bytes = bytes.min(book.used());
            book.leased -= bytes;
            book.fixed -= bytes;
            (bytes, book.free)
        });
        let Some((bytes, free)) = back else { return };
        let request = Request {
            session,
            client,
            gpu,
            id: RequestId(0),
            bytes: Bytes::ZERO,
            kind: Kind::Movable,
            tried: BTreeSet::new(),
        };
        let Some(limits) = self.limits(session, gpu, Kind::Movable) else {
            return;
        };
        let most = Bytes(self.config.lease_chunk.0.saturating_mul(KEPT_CHUNKS));
        let room = self.extra(&request, limits, most).min(bytes);
        let again = room.min(most - free);
        if again.is_zero() {
            return;
        }
        self.change_book(client, gpu, |book| {
            book.leased += again;
            book.free += again;
        });
        self.effects.push_back(Effect::Extend { client, gpu, bytes: again });
    }

    /// A process has more free lease than is useful: all but one chunk comes back.
    pub(crate) fn trim(&mut self, client: ClientId, gpu: GpuId) {
        let keep = self.config.lease_chunk;
        let Some(book) = self.book(client, gpu) else {
            return;
        };
        let bytes = book.free - keep;
        if !bytes.is_zero() {
            self.recall(client, gpu, bytes);
        }
    }

    /// Decides the open request: grants it, asks for another lease back if `may_recall`, or refuses it.
    pub(crate) fn decide_request(&mut self, may_recall: bool) {
        let Some(mut request) = self.recalls.request.take() else {
            return;
        };
        let attached = self.book(request.client, request.gpu).is_some();
        let limits = self.limits(request.session, request.gpu, request.kind);
        let Some(limits) = limits.filter(|_| attached) else {
            return self.refuse(&request, limits::NOT_ATTACHED);
        };
        let Some(excess) = limits.excess(request.bytes) else {
            return self.lease(&request, limits);
        };
        match self.lender(&request, &excess).filter(|_| may_recall) {
            Some(lender) => {
                request.tried.insert(lender);
                let gpu = request.gpu;
                self.recalls.request = Some(request);
                self.recall(lender, gpu, excess.bytes);
            }
            None => self.refuse(&request, excess),
        }
    }

    /// The limit that keeps `bytes` from a process; none where there is room, or may be when free lease is asked back, where there never
    /// will be, and for a card that it did not attach.
    #[must_use]
    pub fn limit_in_the_way(
        &self,
        client: ClientId,
        gpu: GpuId,
        bytes: Bytes,
        kind: Kind,
    ) -> Option<LimitKind> {
        self.book(client, gpu)?;
        let session = self.session_of(client)?;
        let excess = self.limits(session, gpu, kind)?.excess(bytes)?;
        let free: Bytes = self.books_in(excess.scope(), session, gpu).map(|(_, book)| book.free).sum();
        // The card's room is another one when others have less.
        let never = excess.by == LimitKind::Session && bytes > excess.limit;
        (free < excess.bytes && !never).then_some(excess.by)
    }

    fn limits(&self, id: SessionId, gpu: GpuId, kind: Kind) -> Option<Limits> {
        let session = self.sessions.get(id)?;
        let card = self.cards.get(gpu)?;
        let sums = session.sums(gpu);
        Some(Limits {
            quota: if session.may_grow() { session.limit(gpu) } else { Bytes::ZERO },
            ceiling: session.ceiling(gpu, card),
            managed: card.managed_limit(),
            session_leased: sums.leased.get(),
            session_charged: sums.charged.get(),
            card_managed: card.census.sums.managed.get(),
            kind,
        })
    }

    /// The process that is asked next for free lease: the one with the most, as last seen.
    fn lender(&self, request: &Request, excess: &Excess) -> Option<ClientId> {
        self.books_in(excess.scope(), request.session, request.gpu)
            .filter(|(client, book)| !book.leased.is_zero() && !request.tried.contains(client))
            .filter(|(client, _)| !self.recalls.asked.contains_key(&(*client, request.gpu)))
            .max_by_key(|(client, book)| (book.free, std::cmp::Reverse(*client)))
            .map(|(client, _)| client)
    }

    /// The books on a card whose free lease counts against a session's limit.
    fn books_in(
        &self,
        scope: Scope,
        session: SessionId,
        gpu: GpuId,
    ) -> impl Iterator<Item = (ClientId, &Book)> {
        let everybody = self.cards.get(gpu).map(|card| card.census.members.iter());
        everybody
            .into_iter()
            .flatten()
            .filter(move |id| scope == Scope::Card || **id == session)
            .filter_map(|id| self.sessions.get(*id))
            .flat_map(move |session| session.books(gpu))
    }

    fn recall(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.recalls.asked.insert((client, gpu), bytes);
        self.effects.push_back(Effect::Recall { client, gpu, bytes });
    }

    fn lease(&mut self, request: &Request, limits: Limits) {
        let extra = self.extra(request, limits, self.config.lease_chunk);
        let booked = self.change_book(request.client, request.gpu, |book| {
            book.leased += request.bytes + extra;
            book.free += extra;
            if request.kind == Kind::Fixed {
                book.fixed = book.fixed() + request.bytes;
            }
        });
        if booked.is_none() {
            return;
        }
        if let Some(client) = self.client_mut(request.client) {
            client.unproven = false;
        }
        self.grown = Some(request.session);
        self.effects.push_back(Effect::Lease {
            client: request.client,
            gpu: request.gpu,
            request: request.id,
            bytes: request.bytes,
            extra,
        });
    }

    /// What is leased beyond the question, at most `most`. Unused leases alone must not fill the card where the working sets fit.
    fn extra(&self, request: &Request, limits: Limits, most: Bytes) -> Bytes {
        let Some(card) = self.cards.get(request.gpu) else {
            return Bytes::ZERO;
        };
        let fits = card.needed() + request.bytes <= card.capacity();
        let session = self.sessions.get(request.session);
        limits.extra(
            request.bytes,
            most,
            if fits { card.capacity() } else { Bytes::MAX },
            session.map_or(0, |session| session.sums(request.gpu).processes),
            card.census.sums.processes,
        )
    }

    /// A process refused `bytes` without a question. Where its quota is less, that is one more refusal of the session's, as
    /// if it had asked; else it means nothing.
    pub(crate) fn refused_here(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(id) = self.session_of(client) else { return };
        let attached = self.book(client, gpu).is_some();
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if !attached || bytes <= session.limit(gpu) {
            return;
        }
        session.refusals += 1;
        let refusal = MemoryRefusal {
            requested: bytes,
            limit: session.limit(gpu),
            used: session.sums(gpu).used.get() + session.sums(gpu).charged.get(),
            by: LimitKind::Session,
        };
        self.notice(Notice::Refused { client, session: id, gpu, refusal });
    }

    fn refuse(&mut self, request: &Request, excess: Excess) {
        let Some(session) = self.sessions.get_mut(request.session) else {
            return;
        };
        session.refusals += 1;
        let sums = session.sums(request.gpu);
        let card = self.cards.get(request.gpu);
        let used = match excess.by {
            LimitKind::Session => sums.used.get() + sums.charged.get(),
            LimitKind::Capacity => sums.used.get(),
            LimitKind::ManagedLimit => card.map_or(Bytes::ZERO, |card| card.census.sums.used.get()),
        };
        let refusal = MemoryRefusal { requested: request.bytes, limit: excess.limit, used, by: excess.by };
        self.effects.push_back(Effect::Refuse {
            client: request.client,
            gpu: request.gpu,
            request: request.id,
            refusal,
        });
        self.effects.push_back(Effect::Notice(Notice::Refused {
            client: request.client,
            session: request.session,
            gpu: request.gpu,
            refusal,
        }));
    }
}

//! Leases: bytes of quota on the way into the page that a process shares with the daemon, and back.
//!
//! ```text
//!   Reserve ──▶ within the limits? ──yes──▶ Lease{bytes, extra}
//!                  ▲      │ no
//!                  │      ▼
//!      Recalled ───┴── Recall from the next process that may have free lease ── none left ──▶ Refuse
//! ```
//!
//! The decision machine knows the free lease of a process only as last seen. So it asks every process of the
//! session for the missing bytes, the one with the most free lease first. Of other sessions it asks those that
//! were last seen with free lease. It refuses a request only when all of these have answered. So a refusal
//! costs the same however many sessions there are.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use gpushare_proto::page::{LimitKind, MemoryRefusal};
use gpushare_proto::{Bytes, ClientId, GpuId, RequestId, SessionId};

use crate::card::Card;
use crate::events::{Effect, Notice};
use crate::machine::Core;
use crate::memory::limits::{Excess, Limits, NOT_ATTACHED, Scope};
use crate::memory::recalls::{Kind, Request};
use crate::memory::sums::Total;
use crate::view::View;

/// Largest number of chunks of free lease that a process keeps before it offers some back.
const KEPT_CHUNKS: u64 = 2;

impl View {
    /// Largest sum of remapped memory that may be leased on a card: what the card has, and what the other cards
    /// leave of the host memory.
    fn host_limit(&self, gpu: GpuId) -> Bytes {
        let over = |(_, card): (GpuId, &Card)| card.index.sums.remapped.get() - card.admits_remapped();
        let others = self.cards.iter().filter(|&(other, _)| other != gpu).map(over).sum();
        let here = self.cards.get(gpu).map_or(Bytes::ZERO, Card::admits_remapped);
        let books: u64 = self.cards.values().map(|card| card.index.sums.remapping).sum();
        here + (self.host.admitted(books) - others)
    }

    /// Limits of a request of a process for memory.
    fn limits(&self, client: ClientId, gpu: GpuId, kind: Kind) -> Option<Limits> {
        let session = self.sessions.get(self.session_of(client)?)?;
        let remaps = self.remaps(client);
        let card = self.cards.get(gpu)?;
        // Fixed memory takes room from the remapped memory of others.
        let evicts = kind == Kind::Fixed && card.index.sums.remapped != Total::default();
        let (sums, mut bare) = (session.sums(gpu), session.sums(gpu));
        let book = self.book(client, gpu).copied().unwrap_or_default();
        bare.rounding -= book.rounding().into();
        let may_oversubscribe = session.quota.may_oversubscribe();
        Some(Limits {
            quota: if session.may_grow() { session.quota.on(gpu) } else { Bytes::ZERO },
            ceiling: card.ceiling(&sums, may_oversubscribe),
            managed: if remaps { Bytes::MAX } else { card.managed_limit() },
            host: if remaps || evicts { self.host_limit(gpu) } else { Bytes::MAX },
            session_leased: sums.leased.get(),
            session_charged: sums.beside_leases(),
            card_managed: card.index.sums.managed.get(),
            card_remapped: card.index.sums.remapped.get(),
            book,
            bare_ceiling: card.ceiling(&bare, may_oversubscribe),
            kind,
        })
    }

    /// Number of bytes of chunks in which a process is believed that says that it has `said` on a card: what its
    /// leased bytes take, or what it was believed before, and beyond that what it could lease now.
    pub(crate) fn believed_chunks(&self, client: ClientId, gpu: GpuId, said: Bytes) -> Bytes {
        let most = self
            .book(client, gpu)
            .map_or(Bytes::ZERO, |book| book.most_chunks().max(book.chunks));
        if said <= most {
            return said;
        }
        let limits = self.limits(client, gpu, Kind::Movable);
        let room = limits.map_or(Bytes::ZERO, |limits| limits.room());
        said.min(most + room)
    }

    /// Number of bytes, at most `most`, that are leased beyond the requested `bytes`. Where the working sets
    /// fit the card, unused leases alone must not fill it.
    fn extra(&self, id: SessionId, gpu: GpuId, bytes: Bytes, limits: Limits, most: Bytes) -> Bytes {
        let Some(card) = self.cards.get(gpu) else {
            return Bytes::ZERO;
        };
        let fits = card.needed() + bytes <= card.capacity();
        let session = self.sessions.get(id);
        limits.extra(
            bytes,
            most,
            if fits { card.capacity() } else { Bytes::MAX },
            session.map_or(0, |session| session.sums(gpu).processes),
            card.index.sums.processes,
        )
    }
}

impl Core {
    /// Handles a process's request for `bytes` beyond its lease.
    pub(crate) fn reserve(&mut self, client: ClientId, gpu: GpuId, id: RequestId, bytes: Bytes, kind: Kind) {
        let Some(session) = self.view.session_of(client) else {
            return;
        };
        let (siblings, tried) = (None, BTreeSet::new());
        self.recalls
            .suspend(Request { session, client, gpu, id, bytes, kind, siblings, tried });
        self.decide_request(true);
    }

    /// Handles the daemon's report that it took `bytes` of free lease back from a process.
    pub(crate) fn recalled(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(asked) = self.recalls.answered(client, gpu) else {
            return;
        };
        self.change_book(client, gpu, |book| {
            let taken = bytes.min(asked).min(book.leased);
            book.leased -= taken;
            book.fixed = book.fixed();
            book.free = match taken < asked {
                true => Bytes::ZERO,
                false => book.free - taken,
            };
        });
        self.decide_request(true);
    }

    /// Handles the daemon's report that `free` leased bytes of a process are unused.
    pub(crate) fn lease_seen(&mut self, client: ClientId, gpu: GpuId, free: Bytes) {
        let Some(id) = self.view.session_of(client) else { return };
        let grew = self.change_book(client, gpu, |book| {
            let before = book.used();
            book.free = free.min(book.leased);
            book.used() > before
        });
        if grew == Some(true) {
            self.grown = Some(id);
        }
        self.recall_excess_of(id, client, gpu);
    }

    /// Asks a session's free lease beyond its quota back, or all of it if the session may not grow.
    pub(crate) fn recall_excess(&mut self, id: SessionId) {
        let clients = self
            .view
            .sessions
            .get(id)
            .into_iter()
            .flat_map(|session| session.clients.iter());
        let books: Vec<(ClientId, GpuId)> = clients
            .flat_map(|(client, process)| process.books.keys().map(move |gpu| (client, gpu)))
            .collect();
        for (client, gpu) in books {
            self.recall_excess_of(id, client, gpu);
        }
    }

    fn recall_excess_of(&mut self, id: SessionId, client: ClientId, gpu: GpuId) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        let excess = match session.may_grow() {
            true => session.sums(gpu).leased.get() - session.quota.on(gpu),
            false => Bytes::MAX,
        };
        let free = self.view.book(client, gpu).map_or(Bytes::ZERO, |book| book.free);
        let bytes = free.min(excess);
        if !bytes.is_zero() && !self.recalls.is_asked(client, gpu) {
            self.recall(client, gpu, bytes);
        }
    }

    /// Handles a process's report of how many of its bytes are fixed. Fixed bytes are subtracted from the
    /// card's capacity and from the managed bytes.
    pub(crate) fn fixed(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.change_book(client, gpu, |book| book.fixed = bytes.min(book.leased));
    }

    /// Handles a process's return of fixed bytes. As far as the managed limit allows, some become free lease,
    /// so that the next allocation needs no request.
    pub(crate) fn returned(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        let Some(session) = self.view.session_of(client) else {
            return;
        };
        let back = self.change_book(client, gpu, |book| {
            let bytes = bytes.min(book.used());
            book.leased -= bytes;
            book.fixed -= bytes;
            (bytes, book.free)
        });
        let Some((bytes, free)) = back else { return };
        let Some(limits) = self.view.limits(client, gpu, Kind::Movable) else {
            return;
        };
        let most = Bytes(self.view.config.lease_chunk.0.saturating_mul(KEPT_CHUNKS));
        let extra = self.view.extra(session, gpu, Bytes::ZERO, limits, most);
        let again = extra.min(bytes).min(most - free);
        if again.is_zero() {
            return;
        }
        self.change_book(client, gpu, |book| {
            book.leased += again;
            book.free += again;
        });
        self.effects.push_back(Effect::Extend { client, gpu, bytes: again });
    }

    /// Handles a process's offer of surplus free lease: all but one chunk is asked back.
    pub(crate) fn trim(&mut self, client: ClientId, gpu: GpuId) {
        let Some(book) = self.view.book(client, gpu) else {
            return;
        };
        let bytes = book.free - self.view.config.lease_chunk;
        if !bytes.is_zero() {
            self.recall(client, gpu, bytes);
        }
    }

    /// Decides the open request: grants it, asks for another lease back if `may_recall`, or refuses it.
    pub(crate) fn decide_request(&mut self, may_recall: bool) {
        let Some(mut request) = self.recalls.resume() else {
            return;
        };
        let attached = self.view.book(request.client, request.gpu).is_some();
        let limits = self.view.limits(request.client, request.gpu, request.kind);
        let Some(limits) = limits.filter(|_| attached) else {
            return self.refuse(&request, NOT_ATTACHED);
        };
        let Some(excess) = limits.excess(request.bytes) else {
            return self.lease(&request, limits);
        };
        match may_recall.then(|| self.next_lender(&mut request, &excess)).flatten() {
            Some(lender) => {
                let gpu = request.gpu;
                self.recalls.suspend(request);
                self.recall(lender, gpu, excess.bytes);
            }
            None => self.refuse(&request, excess),
        }
    }

    /// Returns the limit that a request of a process for `bytes` exceeds now, but may fit later.
    ///
    /// `None` if the bytes fit, or if free lease that can be asked back may make room. Also `None` if they
    /// are more than the session's whole quota, or the process did not announce the card.
    #[must_use]
    pub fn limit_in_the_way(
        &self,
        client: ClientId,
        gpu: GpuId,
        bytes: Bytes,
        kind: Kind,
    ) -> Option<LimitKind> {
        self.view.book(client, gpu)?;
        let session = self.view.session_of(client)?;
        let excess = self.view.limits(client, gpu, kind)?.excess(bytes)?;
        let sums = match excess.scope() {
            Scope::Session => self.view.sessions.get(session)?.sums(gpu),
            Scope::Card => self.view.cards.get(gpu)?.index.sums,
        };
        let free = sums.leased.get() - sums.used.get();
        let never = excess.by == LimitKind::Session && bytes > excess.limit;
        (free < excess.bytes && !never).then_some(excess.by)
    }

    /// Process that is asked next for free lease: of the session, else of the card's other sessions, the one
    /// that was last seen with the most.
    fn next_lender(&self, request: &mut Request, excess: &Excess) -> Option<ClientId> {
        let gpu = request.gpu;
        let session = self.view.sessions.get(request.session)?;
        let siblings = request.siblings.get_or_insert_with(|| {
            let books = session.books(gpu).filter(|(_, book)| !book.leased.is_zero());
            let mut siblings: Vec<_> = books.map(|(id, book)| (book.free, Reverse(id))).collect();
            siblings.sort_unstable();
            siblings.into_iter().map(|(_, Reverse(id))| id).collect()
        });
        while let Some(sibling) = siblings.pop() {
            if !self.recalls.is_asked(sibling, gpu) {
                return Some(sibling);
            }
        }
        let others = self.view.cards.get(gpu).filter(|_| excess.scope() == Scope::Card)?;
        let mut others = others.index.lenders.iter().map(|&(_, Reverse(id))| id).rev();
        let lender = others.find(|id| !request.tried.contains(id) && !self.recalls.is_asked(*id, gpu))?;
        request.tried.insert(lender);
        Some(lender)
    }

    fn recall(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.recalls.ask(client, gpu, bytes);
        self.effects.push_back(Effect::Recall { client, gpu, bytes });
    }

    fn lease(&mut self, request: &Request, limits: Limits) {
        let &Request { session, client, gpu, bytes, .. } = request;
        let extra = self.view.extra(session, gpu, bytes, limits, self.view.config.lease_chunk);
        let booked = self.change_book(client, gpu, |book| {
            book.leased += bytes + extra;
            book.free += extra;
            if request.kind == Kind::Fixed {
                book.fixed = book.fixed() + bytes;
            }
        });
        if booked.is_none() {
            return;
        }
        if let Some(process) = self.client_mut(client) {
            process.unproven = false;
        }
        self.grown = Some(session);
        self.effects
            .push_back(Effect::Lease { client, gpu, request: request.id, bytes, extra });
    }

    /// Handles a process's report that it refused `bytes` and further requests, `times` in all, without
    /// asking. The session's count of refusals grows only if `bytes` exceed the quota.
    pub(crate) fn refused_here(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes, times: u64) {
        let Some(id) = self.view.session_of(client) else { return };
        let attached = self.view.book(client, gpu).is_some();
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        if !attached || bytes <= session.quota.on(gpu) {
            return;
        }
        session.usage.add_refusals(times);
        let refusal = MemoryRefusal {
            requested: bytes,
            limit: session.quota.on(gpu),
            used: session.sums(gpu).used.get() + session.sums(gpu).beside_leases(),
            by: LimitKind::Session,
        };
        self.notice(Notice::Refused { client, session: id, gpu, refusal, times });
    }

    fn refuse(&mut self, request: &Request, excess: Excess) {
        let &Request { session: id, client, gpu, .. } = request;
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        session.usage.add_refusals(1);
        let sums = session.sums(gpu);
        let card = self.view.cards.get(gpu);
        let used = match excess.by {
            LimitKind::Session => sums.used.get() + sums.beside_leases(),
            LimitKind::Capacity => sums.used.get(),
            LimitKind::ManagedLimit => card.map_or(Bytes::ZERO, |card| card.index.sums.used.get()),
            LimitKind::HostMemory => card.map_or(Bytes::ZERO, |card| card.index.sums.remapped.get()),
        };
        let refusal = MemoryRefusal { requested: request.bytes, limit: excess.limit, used, by: excess.by };
        self.effects
            .push_back(Effect::Refuse { client, gpu, request: request.id, refusal });
        self.notice(Notice::Refused { client, session: id, gpu, refusal, times: 1 });
    }
}

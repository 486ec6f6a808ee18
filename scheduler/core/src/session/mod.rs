//! A session: its processes, their common lock, and what it used.
//!
//! The unit of scheduling is the session: all gates of its processes open and close together, because the
//! processes may wait for each other.

pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod drop;
pub(crate) mod gate;
pub(crate) mod lock;

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::{Bytes, ClientId, Epoch, GpuId};

use crate::event::{Effect, Standing};
use crate::gpu::Card;
use crate::stopwatch::Stopwatch;
use client::{Book, Client};
use gate::Passage;
use lock::Lock;

/// A tenant.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    /// Quota on each card that has none of its own; [`Bytes::MAX`] for none.
    pub(crate) limit: Bytes,
    /// Quotas of single cards.
    pub(crate) quotas: BTreeMap<GpuId, Bytes>,
    pub(crate) standing: Standing,
    /// Whether it may be larger than a card's capacity.
    pub(crate) oversubscribe: bool,
    /// Whether it gets no more clients.
    pub(crate) closed: bool,
    pub(crate) clients: BTreeMap<ClientId, Client>,
    pub(crate) lock: Lock,
    pub(crate) waited: Stopwatch,
    pub(crate) held: Stopwatch,
    /// Runs while it could submit work: with the lock, and not known to be idle.
    pub(crate) gpu_time: Stopwatch,
    /// Bytes brought in on grants.
    pub(crate) moved: Bytes,
    pub(crate) refusals: u64,
    /// The most that was ever allocated, per card.
    pub(crate) peaks: BTreeMap<GpuId, Bytes>,
}

/// What a session's processes have on one card.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub(crate) fixed: Bytes,
    pub(crate) movable: Bytes,
    pub(crate) charged: Bytes,
}

impl Session {
    pub(crate) fn new(limit: Option<Bytes>, oversubscribe: bool) -> Self {
        Self {
            limit: limit.unwrap_or(Bytes::MAX),
            quotas: BTreeMap::new(),
            standing: Standing::Good,
            oversubscribe,
            closed: false,
            clients: BTreeMap::new(),
            lock: Lock::Idle,
            waited: Stopwatch::default(),
            held: Stopwatch::default(),
            gpu_time: Stopwatch::default(),
            moved: Bytes::ZERO,
            refusals: 0,
            peaks: BTreeMap::new(),
        }
    }

    /// Its quota on one card; [`Bytes::MAX`] for none.
    pub(crate) fn limit(&self, gpu: GpuId) -> Bytes {
        self.quotas.get(&gpu).copied().unwrap_or(self.limit)
    }

    /// Whether it may be granted anything.
    pub(crate) fn may_run(&self) -> bool {
        self.standing == Standing::Good
    }

    /// Whether it may get more memory.
    pub(crate) fn may_grow(&self) -> bool {
        self.standing != Standing::Over
    }

    /// Its processes that use a card.
    pub(crate) fn attached(&self) -> impl Iterator<Item = (ClientId, &Client)> {
        let clients = self.clients.iter().map(|(&id, client)| (id, client));
        clients.filter(|(_, client)| client.is_attached())
    }

    fn attached_mut(&mut self) -> impl Iterator<Item = (ClientId, &mut Client)> {
        let clients = self.clients.iter_mut().map(|(&id, client)| (id, client));
        clients.filter(|(_, client)| client.is_attached())
    }

    /// The books of its processes on one card.
    pub(crate) fn books(&self, gpu: GpuId) -> impl Iterator<Item = (ClientId, &Book)> {
        let clients = self.clients.iter();
        clients.filter_map(move |(&id, client)| Some((id, client.books.get(&gpu)?)))
    }

    /// Bytes leased on one card, used or not.
    pub(crate) fn leased(&self, gpu: GpuId) -> Bytes {
        self.books(gpu).map(|(_, book)| book.leased).sum()
    }

    /// Bytes allocated on one card.
    pub(crate) fn used(&self, gpu: GpuId) -> Bytes {
        self.books(gpu).map(|(_, book)| book.used()).sum()
    }

    /// Bytes on one card that nobody leased and that count against the quota all the same: what the driver keeps for its
    /// processes beyond an allowance. It leaves less to be leased, and takes back nothing that was.
    pub(crate) fn charged(&self, gpu: GpuId) -> Bytes {
        self.books(gpu).map(|(_, book)| book.charged()).sum()
    }

    /// What its processes are told follows from these, after every event: in one look at the books.
    pub(crate) fn sums(&self, gpu: GpuId) -> Sums {
        let mut sums = Sums::default();
        for (_, book) in self.books(gpu) {
            sums.fixed += book.fixed();
            sums.movable += book.movable();
            sums.charged += book.charged();
        }
        sums
    }

    /// The bytes on one card that never move.
    pub(crate) fn fixed(&self, gpu: GpuId) -> Bytes {
        self.books(gpu).map(|(_, book)| book.fixed()).sum()
    }

    /// Bytes leased on one card that may be managed memory.
    pub(crate) fn managed(&self, gpu: GpuId) -> Bytes {
        self.books(gpu).map(|(_, book)| book.managed()).sum()
    }

    /// The most that it may use on `card`, number `gpu`, quota or not: what the others' fixed memory leaves of it.
    pub(crate) fn ceiling(&self, gpu: GpuId, card: &Card) -> Bytes {
        self.ceiling_beside(self.fixed(gpu), card)
    }

    fn ceiling_beside(&self, fixed: Bytes, card: &Card) -> Bytes {
        match self.oversubscribe {
            true => Bytes::MAX,
            false => card.capacity_beside(fixed),
        }
    }

    /// [`Self::ceiling`], and what the managed limit leaves beside the `fixed` memory of its own that is not managed.
    pub(crate) fn reach(&self, fixed: Bytes, card: &Card) -> Bytes {
        let managed = card.managed_limit() + fixed;
        self.ceiling_beside(fixed, card).min(managed)
    }

    /// Remembers the most that was ever allocated.
    pub(crate) fn note_peak(&mut self, gpu: GpuId) {
        let used = self.used(gpu);
        let peak = self.peaks.entry(gpu).or_default();
        *peak = used.max(*peak);
    }

    /// Whether a thread of any of its processes sleeps at the gate.
    pub(crate) fn has_sleeper(&self) -> bool {
        self.attached().any(|(_, client)| client.gate.waiting())
    }

    /// Whether the lock is back: the drop is complete, or, where it `takes_turns`, every process went idle
    /// on its own.
    pub(crate) fn has_let_go(&self, takes_turns: impl FnOnce() -> bool) -> bool {
        match self.lock {
            Lock::Idle | Lock::Waiting(_) => false,
            Lock::Dropping(..) => self.attached().all(|(_, client)| client.gate.let_go()),
            Lock::Holding(_) => {
                let idle = |client: &Client| client.gate.passage() == Passage::Idle && !client.gate.waiting();
                self.attached().all(|(_, client)| idle(client)) && takes_turns()
            }
        }
    }

    /// Whether any of its processes still brings its memory in.
    pub(crate) fn is_moving(&self) -> bool {
        self.clients.values().any(|client| client.gate.is_moving())
    }

    /// Whether it holds the lock and any of its processes is not known to be idle.
    pub(crate) fn may_be_working(&self) -> bool {
        self.lock.grant().is_some() && self.in_flight().next().is_some()
    }

    /// Processes whose work is still in flight, as far as we know.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = ClientId> {
        self.attached()
            .filter(|(_, client)| !client.gate.let_go())
            .map(|(id, _)| id)
    }

    /// Opens every gate that is not open, for `epoch`. Where memory `moves`, processes that have some bring it in first.
    pub(crate) fn open(&mut self, epoch: Epoch, moves: bool, effects: &mut VecDeque<Effect>) {
        for (id, client) in self.attached_mut() {
            if !client.gate.passes() {
                let moving = moves && !client.movable().is_zero();
                let word = client.gate.open(moving);
                effects.push_back(Effect::Gate {
                    client: id,
                    word,
                    epoch,
                });
            }
        }
    }

    /// Opens the gates of a holder's processes that came after the grant, or went idle and have work again; in parallel mode
    /// also those that are merely idle.
    pub(crate) fn open_joiners(
        &mut self,
        takes_turns: impl FnOnce() -> bool,
        effects: &mut VecDeque<Effect>,
    ) {
        let Lock::Holding(grant) = self.lock else { return };
        let joins = |client: &Client| matches!(client.gate.passage(), Passage::Shut | Passage::Idle);
        if !self.attached().any(|(_, client)| joins(client)) {
            return;
        }
        let takes_turns = takes_turns();
        for (id, client) in self.attached_mut() {
            let opens = match client.gate.passage() {
                Passage::Shut => true,
                Passage::Idle => !takes_turns || client.gate.waiting(),
                Passage::Closing | Passage::Moving | Passage::Open => false,
            };
            if opens {
                let word = client.gate.open(false);
                effects.push_back(Effect::Gate {
                    client: id,
                    word,
                    epoch: grant.epoch,
                });
            }
        }
    }

    /// Closes every gate that threads may pass, and asks for the drains.
    pub(crate) fn close(&mut self, epoch: Epoch, effects: &mut VecDeque<Effect>) {
        for (id, client) in self.attached_mut() {
            if client.gate.passes() {
                let word = client.gate.close();
                effects.push_back(Effect::Gate {
                    client: id,
                    word,
                    epoch,
                });
            }
        }
    }

    /// Closes the gates of these processes as if they had been open, and asks for the drains.
    pub(crate) fn close_those(
        &mut self,
        claimants: &[ClientId],
        epoch: Epoch,
        effects: &mut VecDeque<Effect>,
    ) {
        for &client in claimants {
            if let Some(process) = self.clients.get_mut(&client) {
                let word = process.gate.close();
                effects.push_back(Effect::Gate { client, word, epoch });
            }
        }
    }

    /// The lock is back, or nobody is left to hold it: idle processes are closed like the others from now on.
    pub(crate) fn shut(&mut self) {
        self.lock = Lock::Idle;
        for client in self.clients.values_mut() {
            client.gate.shut();
        }
    }
}

//! First come, first served, one session at a time on each card: what others do.
//!
//! | | quantum | where everybody fits |
//! |---|---|---|
//! | as nvshare | 30 s | takes turns all the same |
//! | as XPUShare | 5 s for each GB of the session | runs all at once, until they do not fit once: that overload never ends |
//!
//! Both let an idle holder go after 5 s. A session of several cards takes all of them at once and keeps
//! those behind it from any of them, so that it is not passed for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use gpushare_proto::{Bytes, GpuId, Nanos};

use super::{Policy, Who, Word};
use crate::sim::tenant::Tenant;
use crate::sim::trace::Machine;

/// How long a turn is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantum {
    Fixed(Nanos),
    /// For each 10⁹ bytes of the session's memory.
    PerGigabyte(Nanos),
}

impl Quantum {
    fn of(self, memory: Bytes) -> Nanos {
        match self {
            Self::Fixed(quantum) => quantum,
            Self::PerGigabyte(each) => {
                let nanos = u128::from(each.0) * u128::from(memory.0) / 1_000_000_000;
                Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
            }
        }
    }
}

/// A session that is there.
#[derive(Debug)]
struct Guest {
    gpus: Vec<GpuId>,
    memory: Bytes,
    /// When its turn ends; none without one.
    until: Option<Nanos>,
    shut: bool,
}

/// A queue over all cards.
#[derive(Debug)]
pub(crate) struct Fifo {
    name: &'static str,
    quantum: Quantum,
    /// Whether cards that were never overloaded take no turns.
    shares: bool,
    capacity: Bytes,
    guests: BTreeMap<Who, Guest>,
    queue: VecDeque<Who>,
    holders: BTreeSet<Who>,
    demand: BTreeMap<GpuId, Bytes>,
    overloaded: BTreeSet<GpuId>,
    told: BTreeSet<Who>,
    words: VecDeque<Word>,
    handoffs: u64,
}

/// How long both look at an idle holder.
const GRACE: Nanos = Nanos::from_secs(5);

impl Fifo {
    /// Scheduler with the rule of nvshare.
    pub(crate) fn fixed(machine: &Machine) -> Self {
        let quantum = Quantum::Fixed(Nanos::from_secs(30));
        Self::new("FCFS, 30 s", quantum, false, machine)
    }

    /// Scheduler with the rule of XPUShare.
    pub(crate) fn per_gigabyte(machine: &Machine) -> Self {
        let quantum = Quantum::PerGigabyte(Nanos::from_secs(5));
        Self::new("5 s per GB", quantum, true, machine)
    }

    fn new(name: &'static str, quantum: Quantum, shares: bool, machine: &Machine) -> Self {
        Self {
            name,
            quantum,
            shares,
            capacity: machine.capacity,
            guests: BTreeMap::new(),
            queue: VecDeque::new(),
            holders: BTreeSet::new(),
            demand: BTreeMap::new(),
            overloaded: BTreeSet::new(),
            told: BTreeSet::new(),
            words: VecDeque::new(),
            handoffs: 0,
        }
    }

    fn takes_turns(&self, who: Who) -> bool {
        let gpus = self.guests.get(&who).map(|guest| &guest.gpus);
        !self.shares || gpus.is_some_and(|gpus| gpus.iter().any(|gpu| self.overloaded.contains(gpu)))
    }

    fn settle(&mut self, now: Nanos) {
        self.admit(now);
        let wanted: BTreeSet<GpuId> =
            self.queue.iter().flat_map(|who| self.guests[who].gpus.clone()).collect();
        for &who in &self.holders {
            let Some(guest) = self.guests.get_mut(&who) else {
                continue;
            };
            let is_wanted = guest.gpus.iter().any(|gpu| wanted.contains(gpu));
            let news = if is_wanted { self.told.insert(who) } else { self.told.remove(&who) };
            if news {
                self.words.push_back(Word::Wanted { who, wanted: is_wanted });
            }
            if is_wanted && !guest.shut && guest.until.is_some_and(|until| until <= now) {
                guest.shut = true;
                self.words.push_back(Word::Shut { who });
            }
        }
    }

    /// Starts each session whose cards are all free and not reserved by an earlier session.
    fn admit(&mut self, now: Nanos) {
        let of = |who: &Who| self.guests[who].gpus.iter().copied();
        let mut taken: BTreeSet<GpuId> =
            self.holders.iter().filter(|who| self.takes_turns(**who)).flat_map(of).collect();
        let mut admitted = Vec::new();
        for who in &self.queue {
            let turns = self.takes_turns(*who);
            if !turns || of(who).all(|gpu| !taken.contains(&gpu)) {
                admitted.push((*who, turns));
            }
            if turns {
                taken.extend(of(who));
            }
        }
        for (who, turns) in admitted {
            self.queue.retain(|waiting| *waiting != who);
            self.holders.insert(who);
            self.handoffs += u64::from(turns);
            if let Some(guest) = self.guests.get_mut(&who) {
                guest.until = turns.then(|| now + self.quantum.of(guest.memory));
                guest.shut = false;
            }
            self.words.push_back(Word::Pass { who, moves: turns });
        }
    }

    /// Lets the sessions that ran side by side take turns from now on.
    fn overload(&mut self, now: Nanos, gpu: GpuId) {
        if !self.shares || !self.overloaded.insert(gpu) {
            return;
        }
        for who in &self.holders {
            let Some(guest) = self.guests.get_mut(who).filter(|guest| guest.gpus.contains(&gpu)) else {
                continue;
            };
            guest.until = guest.until.or(Some(now));
            if !guest.shut {
                guest.shut = true;
                self.words.push_back(Word::Shut { who: *who });
            }
        }
    }

    fn free(&mut self, who: Who) {
        self.holders.remove(&who);
        if self.told.remove(&who) {
            self.words.push_back(Word::Wanted { who, wanted: false });
        }
    }
}

impl Policy for Fifo {
    fn name(&self) -> &'static str {
        self.name
    }

    fn lets_go_at(&self, _: Nanos, idle: Nanos, _: Nanos) -> Nanos {
        idle + GRACE
    }

    fn arrives(&mut self, now: Nanos, who: Who, tenant: &Tenant) {
        let guest = Guest { gpus: tenant.gpus.clone(), memory: tenant.memory, until: None, shut: false };
        self.guests.insert(who, guest);
        for &gpu in &tenant.gpus {
            let demand = self.demand.entry(gpu).or_default();
            *demand += tenant.memory;
            if *demand > self.capacity {
                self.overload(now, gpu);
            }
        }
    }

    fn wants(&mut self, now: Nanos, who: Who) {
        self.queue.push_back(who);
        self.settle(now);
    }

    fn entered(&mut self, _: Nanos, _: Who, _: Bytes, _: Nanos) {}

    fn let_go(&mut self, now: Nanos, who: Who, _: Nanos) {
        self.free(who);
        self.settle(now);
    }

    fn leaves(&mut self, now: Nanos, who: Who) {
        self.free(who);
        self.queue.retain(|waiting| *waiting != who);
        if let Some(guest) = self.guests.remove(&who) {
            for gpu in guest.gpus {
                *self.demand.entry(gpu).or_default() -= guest.memory;
            }
        }
        self.settle(now);
    }

    fn deadline(&self) -> Option<Nanos> {
        let ending = self.holders.iter().filter(|who| self.told.contains(who));
        let guests = ending.filter_map(|who| self.guests.get(who));
        guests.filter(|guest| !guest.shut).filter_map(|guest| guest.until).min()
    }

    fn wake(&mut self, now: Nanos) {
        self.settle(now);
    }

    fn poll(&mut self) -> Option<Word> {
        self.words.pop_front()
    }

    fn handoffs(&self) -> u64 {
        self.handoffs
    }
}

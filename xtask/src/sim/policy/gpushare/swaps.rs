//! Remapped memory of simulated processes, which moves by the goals of the core over the links of the cards.
//!
//! ```text
//!   goal, gate ─▶ next chunk ─▶ its way of the link is free ─▶ it has moved ─▶ report ─▶ next chunk, if there is one
//! ```
//!
//! Each card has a link with two ways, which are busy at once. Chunks wait for their way in the order in which
//! they were planned.

use std::collections::{BTreeMap, BTreeSet};

use gpushare_core::Event;
use gpushare_proto::page::GoalNumber;
use gpushare_proto::tenant::Residence;
use gpushare_proto::{Bytes, GpuId, Nanos};

use crate::sim::policy::Who;

/// Bytes that move at once.
const CHUNK: Bytes = Bytes::mib(128);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    Out,
    In,
}

/// Phase of a process, which decides in what direction its memory may move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its gate is closed, and no work is in flight: memory leaves.
    Idle,
    /// Work is in flight behind a closed gate: nothing moves.
    Draining,
    /// It runs or is to run: memory comes in.
    Runs,
}

/// Memory of one process on one card.
#[derive(Clone, Copy, Debug, Default)]
struct Swap {
    whole: Bytes,
    resident: Bytes,
    hosted: Bytes,
    copied_out: Bytes,
    number: GoalNumber,
    goal: Bytes,
    /// Whether the goal was not reported yet.
    is_unseen: bool,
    /// Whether a step is on the agenda, and the chunk that moves in it.
    step: Option<Option<(Way, Bytes)>>,
}

/// Memory of all processes.
#[derive(Debug)]
pub(super) struct Swaps {
    bandwidth: Bytes,
    all: BTreeMap<(Who, GpuId), Swap>,
    agenda: BTreeSet<(Nanos, Who, GpuId)>,
    /// Time from which each way of a link is free.
    links: BTreeMap<(GpuId, Way), Nanos>,
    came_in: BTreeMap<Who, Bytes>,
}

impl Swaps {
    /// Creates the memory of no process yet, on links that move so many bytes a second each way.
    pub(super) fn new(bandwidth: Bytes) -> Self {
        let (all, agenda, links) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { bandwidth, all, agenda, links, came_in: BTreeMap::new() }
    }

    /// Gives a process addresses without memory on a card, and returns its first report.
    pub(super) fn begin(&mut self, who: Who, gpu: GpuId, whole: Bytes) -> Event {
        let swap = Swap { whole, ..Swap::default() };
        self.all.insert((who, gpu), swap);
        swap.report(who, gpu)
    }

    /// Ends the memory of a process.
    pub(super) fn end(&mut self, who: Who) {
        self.all.retain(|&(of, _), _| of != who);
        self.agenda.retain(|&(_, of, _)| of != who);
    }

    /// Sets the goal of a process on a card.
    pub(super) fn order(&mut self, who: Who, gpu: GpuId, number: GoalNumber, goal: Bytes) {
        if let Some(swap) = self.all.get_mut(&(who, gpu)) {
            (swap.number, swap.goal, swap.is_unseen) = (number, goal, true);
        }
    }

    /// Whether all memory of a process is on its cards.
    pub(super) fn is_whole(&self, who: Who) -> bool {
        let swaps = self.all.range((who, GpuId(0))..=(who, GpuId(u8::MAX)));
        swaps.into_iter().all(|(_, swap)| swap.resident >= swap.whole)
    }

    /// Bytes of a process that have come to cards so far.
    pub(super) fn came_in(&self, who: Who) -> Bytes {
        self.came_in.get(&who).copied().unwrap_or_default()
    }

    /// Bytes that have come to cards so far.
    pub(super) fn moved(&self) -> Bytes {
        self.came_in.values().copied().sum()
    }

    /// Time of the next step.
    pub(super) fn next(&self) -> Option<Nanos> {
        self.agenda.first().map(|&(at, ..)| at)
    }

    /// Plans the next step of a process on each of its cards, unless one is planned.
    pub(super) fn plan(&mut self, now: Nanos, who: Who, phase: Phase) {
        let Self { bandwidth, all, agenda, links, .. } = self;
        for (&(_, gpu), swap) in all.range_mut((who, GpuId(0))..=(who, GpuId(u8::MAX))) {
            let Some(chunk) = swap.next(phase).filter(|_| swap.step.is_none()) else { continue };
            let at = chunk.map_or(now, |(way, bytes)| {
                let nanos = u128::from(bytes.0) * 1_000_000_000 / u128::from(bandwidth.0);
                let free = links.entry((gpu, way)).or_default();
                *free = now.max(*free) + Nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
                *free
            });
            swap.step = Some(chunk);
            agenda.insert((at, who, gpu));
        }
    }

    /// Takes the next step that is due, and returns whose it was and its report.
    pub(super) fn take(&mut self, now: Nanos) -> Option<(Who, Event)> {
        let &(at, who, gpu) = self.agenda.first().filter(|&&(at, ..)| at <= now)?;
        self.agenda.remove(&(at, who, gpu));
        let swap = self.all.get_mut(&(who, gpu))?;
        match swap.step.take().flatten() {
            Some((Way::Out, bytes)) => {
                swap.resident -= bytes;
                swap.hosted += bytes;
                swap.copied_out += bytes;
            }
            Some((Way::In, bytes)) => {
                swap.resident += bytes;
                swap.hosted -= bytes.min(swap.hosted);
                *self.came_in.entry(who).or_default() += bytes;
            }
            None => {}
        }
        swap.is_unseen = false;
        Some((who, swap.report(who, gpu)))
    }
}

impl Swap {
    /// The next step: a chunk that moves, or none for a report alone.
    fn next(&self, phase: Phase) -> Option<Option<(Way, Bytes)>> {
        let most = self.goal.min(self.whole);
        match phase {
            Phase::Idle if self.resident > most => Some(Some((Way::Out, CHUNK.min(self.resident - most)))),
            Phase::Runs if self.resident < most => Some(Some((Way::In, CHUNK.min(most - self.resident)))),
            Phase::Idle | Phase::Draining | Phase::Runs => self.is_unseen.then_some(None),
        }
    }

    fn report(&self, who: Who, gpu: GpuId) -> Event {
        let Self { whole, resident, hosted, copied_out, number, .. } = *self;
        let unbacked = whole - resident - hosted;
        let residence = Residence { resident, hosted, unbacked, copied_out, ..Residence::default() };
        Event::Resides { client: super::client(who), gpu, seen: number, residence }
    }
}

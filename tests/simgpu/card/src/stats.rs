//! Statistics: counters of every process and of all together, and intervals of computing.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::constants::Constants;
use crate::wire::{ProcessState, Refusable, Sticky};

/// How many turns the timeline keeps; older ones are dropped and counted.
const TIMELINE: usize = 50_000;

/// How many processes that have ended are kept; the totals keep all.
pub(crate) const ENDED_KEPT: usize = 1_000;

/// Two turns of one process with less than this between them are drawn as one.
const GAP_NANOS: u64 = 20_000;

/// The counters of one process. Bytes unless said otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Pages (2 MiB) that came in because a kernel touched them.
    pub faults: u64,
    /// The bytes of those pages.
    pub fault_bytes: u64,
    /// Pages of this process that had to leave for somebody else's or its own.
    pub evictions: u64,
    /// The bytes of those pages.
    pub evicted_bytes: u64,
    /// Prefetched to a GPU.
    pub prefetched_in: u64,
    /// Prefetched to the host.
    pub prefetched_out: u64,
    /// Copied in from pageable memory.
    pub uploaded_bytes: u64,
    /// Copied out to pageable memory.
    pub downloaded_bytes: u64,
    /// Copied between pinned, managed and device memory.
    pub copied_bytes: u64,
    /// Copies whose bytes other work of the process used at the same time (`race.rs` says when exactly).
    pub raced_copies: u64,
    /// Calls that failed because an observer wanted it.
    pub refused: Refused,
    /// Managed ranges that were advised to be on a GPU.
    pub advised_location: u64,
    /// Managed ranges that were advised to be reachable from a GPU.
    pub advised_access: u64,
    /// Kernels that have ended.
    pub kernels: u64,
    /// Time with the compute engine, in nanoseconds.
    pub compute_nanos: u64,
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.faults += other.faults;
        self.fault_bytes += other.fault_bytes;
        self.evictions += other.evictions;
        self.evicted_bytes += other.evicted_bytes;
        self.prefetched_in += other.prefetched_in;
        self.prefetched_out += other.prefetched_out;
        self.uploaded_bytes += other.uploaded_bytes;
        self.downloaded_bytes += other.downloaded_bytes;
        self.copied_bytes += other.copied_bytes;
        self.raced_copies += other.raced_copies;
        self.refused.add(&other.refused);
        self.advised_location += other.advised_location;
        self.advised_access += other.advised_access;
        self.kernels += other.kernels;
        self.compute_nanos += other.compute_nanos;
    }

    /// All bytes that came to the card: faults, prefetches and copies in.
    pub fn bytes_in(&self) -> u64 {
        self.fault_bytes + self.prefetched_in + self.uploaded_bytes
    }

    /// All bytes that left the card: evictions, prefetches and copies out.
    pub fn bytes_out(&self) -> u64 {
        self.evicted_bytes + self.prefetched_out + self.downloaded_bytes
    }
}

/// Calls that failed because an observer wanted it, by their kinds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// `cuMemCreate` on a GPU.
    pub create_on_gpu: u64,
    /// `cuMemCreate` on the host.
    pub create_on_host: u64,
    /// `cuMemMap`.
    pub map: u64,
    /// `cuMemHostRegister`.
    pub register: u64,
    /// `cuMemAllocManaged`.
    pub allocate_managed: u64,
}

impl Refused {
    pub(crate) fn of(&mut self, call: Refusable) -> &mut u64 {
        match call {
            Refusable::CreateOnGpu => &mut self.create_on_gpu,
            Refusable::CreateOnHost => &mut self.create_on_host,
            Refusable::Map => &mut self.map,
            Refusable::Register => &mut self.register,
            Refusable::AllocateManaged => &mut self.allocate_managed,
        }
    }

    fn add(&mut self, other: &Self) {
        self.create_on_gpu += other.create_on_gpu;
        self.create_on_host += other.create_on_host;
        self.map += other.map;
        self.register += other.register;
        self.allocate_managed += other.allocate_managed;
    }
}

/// The card's whole story so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    /// The numbers the card ran with.
    pub constants: Constants,
    /// Nanoseconds since the card was switched on, on the card's clock.
    pub now_nanos: u64,
    /// `CLOCK_MONOTONIC` when the card was switched on, in nanoseconds.
    pub started_nanos: u64,
    /// By how much the card's clock was held back because the host was too slow, in nanoseconds: much of it
    /// compared to `now_nanos` means that the durations are the host's and not the model's.
    pub held_back_nanos: u64,
    /// The GPUs.
    pub gpus: Vec<GpuStats>,
    /// Bytes of the host that are kept in place, for everybody.
    pub host_bytes: u64,
    /// The processes, also those that have ended.
    pub processes: Vec<ProcessStats>,
    /// All processes together, also forgotten ones.
    pub total: Counters,
    /// Intervals in which processes computed, oldest first.
    pub timeline: Vec<Interval>,
    /// How many older intervals were dropped.
    pub timeline_dropped: u64,
}

impl Stats {
    /// The share of the time since `since` (nanoseconds on the card's clock) in which each living process
    /// computed on a GPU, in percent; processes without any are left out. At most the last second counts,
    /// as far as a monitor's samples reach back.
    pub fn shares_since(&self, gpu: u32, since: u64) -> Vec<(u32, u32)> {
        const REACH_NANOS: u64 = 1_000_000_000;
        let since = since.max(self.now_nanos.saturating_sub(REACH_NANOS));
        let window = self.now_nanos.saturating_sub(since).max(1);
        let living = self.processes.iter().filter(|process| process.alive);
        let share = |pid: u32| {
            let own = self.timeline.iter().filter(|turn| (turn.gpu, turn.pid) == (gpu, pid));
            let past: u64 = own.map(|turn| turn.to.saturating_sub(turn.from.max(since))).sum();
            let running = self.gpus.get(gpu as usize).filter(|gpu| gpu.running == Some(pid));
            let present =
                running.map_or(0, |gpu| self.now_nanos.saturating_sub(gpu.running_since.max(since)));
            u32::try_from((past + present).min(window) * 100 / window).unwrap_or(100)
        };
        living
            .map(|process| (process.pid, share(process.pid)))
            .filter(|(_, share)| *share > 0)
            .collect()
    }
}

impl ProcessStats {
    /// Bytes of the process on one GPU, without managed memory.
    pub fn bytes_on(&self, gpu: u32) -> u64 {
        let found = self.gpus.iter().zip(&self.gpu_bytes).find(|(index, _)| **index == gpu);
        found.map_or(0, |(_, bytes)| *bytes)
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStats {
    /// For people.
    pub name: String,
    /// `GPU-...`.
    pub uuid: String,
    /// Memory of the GPU, in bytes.
    pub total: u64,
    /// Free memory of the GPU, in bytes.
    pub free: u64,
    /// How long anybody has computed, in nanoseconds.
    pub busy_nanos: u64,
    /// The process that computes now.
    pub running: Option<u32>,
    /// Since when, in nanoseconds on the card's clock.
    pub running_since: u64,
    /// Temperature in degrees Celsius.
    pub degrees: u32,
    /// Power draw.
    pub milliwatts: u32,
    /// Whether the GPU is in persistence mode.
    pub persistence: bool,
    /// Whether the GPU has fallen off the bus.
    pub lost: bool,
    /// Xids that the GPU has reported, the oldest first.
    pub xids: Vec<u64>,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessStats {
    /// Process id.
    pub pid: u32,
    /// Whether it is connected.
    pub alive: bool,
    /// Its state with regard to checkpoints. While it is checkpointed it has nothing on any GPU.
    pub state: ProcessState,
    /// Whether a step of its checkpoint is under way.
    pub steps: bool,
    /// The GPUs on which it has contexts.
    pub gpus: Vec<u32>,
    /// Bytes of its contexts.
    pub context_bytes: u64,
    /// Bytes of memory that cannot move: `cuMemAlloc`, what pools have reserved, physical memory with
    /// handles.
    pub device_bytes: u64,
    /// Bytes of managed memory.
    pub managed_bytes: u64,
    /// Bytes of managed memory that are on a card now.
    pub resident_bytes: u64,
    /// Bytes of memory of the host that the card keeps in place: pinned, registered, physical memory with handles.
    pub host_bytes: u64,
    /// The error from which the process does not recover.
    pub lost: Option<Sticky>,
    /// Bytes of contexts and of memory that cannot move, on each of `gpus` in that order.
    pub gpu_bytes: Vec<u64>,
    /// Counters of the process.
    pub counters: Counters,
}

/// One process had the compute engine of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// The GPU.
    pub gpu: u32,
    /// The process.
    pub pid: u32,
    /// From, in nanoseconds on the card's clock.
    pub from: u64,
    /// To.
    pub to: u64,
}

/// The intervals kept so far.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    intervals: VecDeque<Interval>,
    pub(crate) dropped: u64,
}

impl Timeline {
    pub(crate) fn push(&mut self, interval: Interval) {
        if let Some(last) = self.intervals.back_mut()
            && (last.gpu, last.pid) == (interval.gpu, interval.pid)
            && interval.from.saturating_sub(last.to) < GAP_NANOS
        {
            last.to = interval.to;
            return;
        }
        if self.intervals.len() == TIMELINE {
            self.intervals.pop_front();
            self.dropped += 1;
        }
        self.intervals.push_back(interval);
    }

    pub(crate) fn to_vec(&self) -> Vec<Interval> {
        self.intervals.iter().copied().collect()
    }
}

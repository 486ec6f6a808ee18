//! The statistics, from everybody's counters and the turns.

use crate::ids::{ClientId, GpuIndex};
use crate::machine::client::Client;
use crate::machine::{Card, Gpu, nanos};
use crate::stats::{GpuStats, ProcessStats, Stats};
use crate::wire::{Kind, Role};

impl Card {
    pub(super) fn process_stats(&self, id: ClientId, client: &Client) -> ProcessStats {
        let away = client.checkpoint.is_away();
        let contexts = if away { 0 } else { client.contexts.len() as u64 };
        let mut gpus: Vec<u32> = client.contexts.values().map(|gpu| gpu.0).filter(|_| !away).collect();
        gpus.sort_unstable();
        gpus.dedup();
        let mut counters = self.memory.counters.get(&id).copied().unwrap_or_default();
        counters.compute_nanos += self.gpus.iter().map(|gpu| self.turn_so_far(gpu, Some(id))).sum::<u64>();
        ProcessStats {
            pid: client.pid,
            alive: !client.dead,
            state: client.checkpoint.state,
            steps: client.checkpoint.busy,
            gpu_bytes: gpus.iter().map(|gpu| self.bytes_on(GpuIndex(*gpu), id, client)).collect(),
            gpus,
            context_bytes: contexts * self.memory.constants.context_memory,
            device_bytes: if away { 0 } else { self.memory.fixed_of(id) },
            managed_bytes: self.memory.usage(id, Kind::Managed),
            host_bytes: self.memory.host_of(id) + client.checkpoint.host_bytes(),
            lost: client.poisoned,
            resident_bytes: self.memory.resident_of(id),
            counters,
        }
    }

    /// Bytes of a process on one GPU, without managed memory.
    fn bytes_on(&self, gpu: GpuIndex, id: ClientId, client: &Client) -> u64 {
        let contexts = client.contexts.values().filter(|used| **used == gpu).count() as u64;
        contexts * self.memory.constants.context_memory + self.memory.fixed_on(id, gpu)
    }

    /// How long the turn under way has lasted, if it is this client's (or anybody's).
    pub(super) fn turn_so_far(&self, gpu: &Gpu, client: Option<ClientId>) -> u64 {
        let turn = gpu
            .compute
            .running()
            .filter(|(running, _)| client.is_none_or(|client| client == *running));
        turn.map_or(0, |(_, since)| nanos(self.now.saturating_sub(since)))
    }

    /// Statistics so far. The server fills in the facts about the clock.
    pub fn stats(&self) -> Stats {
        let drivers = self.clients.iter().filter(|(_, client)| client.role == Role::Driver);
        let living: Vec<ProcessStats> = drivers.map(|(id, client)| self.process_stats(*id, client)).collect();
        let mut total = self.total_forgotten;
        living.iter().for_each(|process| total.add(&process.counters));
        let gpus = self.gpus.iter().zip(0..).map(|(gpu, index)| {
            let (free, total) = self.memory.room(GpuIndex(index)).unwrap_or_default();
            let running = gpu.compute.running().and_then(|(client, _)| self.clients.get(&client));
            GpuStats {
                name: gpu.description.name.clone(),
                uuid: gpu.description.uuid_text(),
                total,
                free,
                busy_nanos: nanos(gpu.busy) + self.turn_so_far(gpu, None),
                running: running.map(|client| client.pid),
                running_since: gpu.compute.running().map_or(0, |(_, since)| nanos(since)),
                degrees: gpu.gauge.degrees(self.now),
                milliwatts: gpu.gauge.milliwatts(self.now),
                persistence: gpu.description.persistence,
                lost: gpu.lost,
                xids: gpu.xids.clone(),
            }
        });
        Stats {
            constants: self.memory.constants.clone(),
            now_nanos: nanos(self.now),
            started_nanos: 0,
            held_back_nanos: 0,
            gpus: gpus.collect(),
            host_bytes: self.memory.host_used(),
            processes: self.ended.iter().cloned().chain(living).collect(),
            total,
            timeline: self.timeline.to_vec(),
            timeline_dropped: self.timeline.dropped,
        }
    }
}

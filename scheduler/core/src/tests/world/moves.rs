//! Remapped memory of the processes of a world: each follows its goals chunk by chunk.
//!
//! ```text
//!   Goal, gate, allocation ─▶ one step after STEP ─▶ Resides ─▶ next step, while there is something to do
//! ```

use super::*;

/// Bytes that move in one step.
const CHUNK: Bytes = Bytes::gib(1);
/// Duration of a step.
const STEP: Nanos = ms(5);

/// Report of a process without prepared slots: resident, hosted and pinned bytes.
pub(in crate::tests) fn resides(
    client: ClientId,
    gpu: GpuId,
    seen: GoalNumber,
    [resident, hosted, pinned]: [Bytes; 3],
) -> Event {
    let residence = Residence { resident, hosted, pinned, ..Residence::default() };
    Event::Resides { client, gpu, seen, residence }
}

impl World {
    /// Adds a process whose memory moves by goals.
    pub(in crate::tests) fn join_remapping(&mut self, session: SessionId) -> ClientId {
        let client = self.join(session);
        self.remaps(client);
        client
    }

    /// Lets the memory of a process without cards move by goals.
    pub(in crate::tests) fn remaps(&mut self, client: ClientId) {
        self.process(client).swaps = Some(BTreeMap::new());
        self.send(Event::Remaps { client });
    }

    /// Adds a session with one process that has remapped `bytes` on the first card.
    pub(in crate::tests) fn remapping_program(&mut self, bytes: Bytes) -> (SessionId, ClientId) {
        self.remapping_program_with(bytes, false)
    }

    /// Adds a [`Self::remapping_program`] that always has work, and whose session may be larger than the card.
    pub(in crate::tests) fn oversubscribing_program(&mut self, bytes: Bytes) -> (SessionId, ClientId) {
        let (session, client) = self.remapping_program_with(bytes, true);
        self.gets_busy(client);
        (session, client)
    }

    /// Adds a [`Self::remapping_program`], and says whether its session may be larger than the card.
    pub(in crate::tests) fn remapping_program_with(
        &mut self,
        bytes: Bytes,
        oversubscribe: bool,
    ) -> (SessionId, ClientId) {
        let session = self.session_with(None, oversubscribe);
        let client = self.join_remapping(session);
        self.attach(client, GPU);
        self.allocate(client, GPU, bytes);
        (session, client)
    }

    /// Adds a [`Self::remapping_program`] that always has work.
    pub(in crate::tests) fn busy_remapping_program(&mut self, bytes: Bytes) -> (SessionId, ClientId) {
        let (session, client) = self.remapping_program(bytes);
        self.gets_busy(client);
        (session, client)
    }

    pub(in crate::tests) fn resident(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.swap(client, gpu).map_or(Bytes::ZERO, |swap| swap.resident)
    }

    pub(in crate::tests) fn hosted(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.swap(client, gpu).map_or(Bytes::ZERO, |swap| swap.hosted)
    }

    pub(in crate::tests) fn mapped(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.swap(client, gpu).map_or(Bytes::ZERO, |swap| swap.mapped)
    }

    /// Host memory that is ready for the next eviction of a process.
    pub(in crate::tests) fn prepared(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.swap(client, gpu).map_or(Bytes::ZERO, |swap| swap.prepared)
    }

    /// Host memory that a process should have ready, as its page says.
    pub(in crate::tests) fn host_target(&self, client: ClientId, gpu: GpuId) -> Bytes {
        self.swap(client, gpu).map_or(Bytes::ZERO, |swap| swap.host_target)
    }

    /// Whether a process is told to map from the host what a card has no room for.
    pub(in crate::tests) fn overflows(&self, client: ClientId, gpu: GpuId) -> bool {
        self.flags(client) & flag_overflows(gpu) != 0
    }

    /// Goal in the page of a process.
    pub(in crate::tests) fn goal(&self, client: ClientId, gpu: GpuId) -> Option<(GoalNumber, Bytes)> {
        self.swap(client, gpu)?.goal
    }

    fn swap(&self, client: ClientId, gpu: GpuId) -> Option<Swap> {
        self.processes.get(&client)?.swaps.as_ref()?.get(&gpu).copied()
    }

    fn swap_mut(&mut self, client: ClientId, gpu: GpuId) -> Option<&mut Swap> {
        self.processes.get_mut(&client)?.swaps.as_mut()?.get_mut(&gpu)
    }

    /// Lets a remapping process begin on a card, and report that it has nothing there.
    pub(super) fn swaps_on(&mut self, client: ClientId, gpu: GpuId) {
        let swaps = self.processes.get_mut(&client).and_then(|process| process.swaps.as_mut());
        if let Some(swaps) = swaps {
            swaps.entry(gpu).or_default();
            self.reports(client, gpu);
            self.moves_soon(client, gpu);
        }
    }

    /// Lets a process report on its new page, which has no goal.
    pub(super) fn returns_to(&mut self, client: ClientId, gpu: GpuId) {
        self.reports(client, gpu);
    }

    /// Lets bytes of a process be immovable from now on.
    pub(in crate::tests) fn pins(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.pinned = bytes.min(swap.resident);
            self.reports(client, gpu);
        }
    }

    /// Lets the blocks of a process take so many bytes more than it asked for, at most a quarter more.
    pub(in crate::tests) fn rounds_up(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(memory) = self.memory(client, gpu) {
            memory.rounding = bytes;
            self.frees(client, gpu);
            self.reports(client, gpu);
        }
    }

    /// Lets so many bytes of a process's chunks stay when their contents are freed, at most those that it has.
    pub(in crate::tests) fn scatters(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        self.reports(client, gpu);
        let chunks = self.processes[&client].chunks(gpu);
        if let Some(memory) = self.memory(client, gpu) {
            memory.scattered = bytes.min(chunks);
            self.frees(client, gpu);
            self.reports(client, gpu);
        }
    }

    /// Lets a process have slots in host memory for its next eviction.
    pub(in crate::tests) fn prepares(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.prepared = bytes;
            self.reports(client, gpu);
            self.moves_soon(client, gpu);
        }
    }

    /// Sends what a process has on a card.
    pub(in crate::tests) fn reports(&mut self, client: ClientId, gpu: GpuId) {
        let Some(Swap { goal, resident, hosted, pinned, prepared, mapped, copied_out, .. }) =
            self.swap(client, gpu)
        else {
            return;
        };
        let unbacked = self.processes[&client].chunks(gpu) - resident - hosted;
        let seen = goal.map_or(GoalNumber::NONE, |(number, _)| number);
        let residence = Residence { resident, hosted, unbacked, pinned, prepared, mapped, copied_out };
        self.send(Event::Resides { client, gpu, seen, residence });
    }

    pub(super) fn goal_changed(&mut self, client: ClientId, gpu: GpuId, number: GoalNumber, bytes: Bytes) {
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.goal = Some((number, bytes));
            self.moves_soon(client, gpu);
        }
    }

    pub(super) fn host_target_changed(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.host_target = bytes;
            self.moves_soon(client, gpu);
        }
    }

    pub(super) fn all_move_soon(&mut self, client: ClientId) {
        let swaps = self.processes.get(&client).and_then(|process| process.swaps.as_ref());
        let cards: Vec<GpuId> = swaps.into_iter().flatten().map(|(&gpu, _)| gpu).collect();
        cards.into_iter().for_each(|gpu| self.moves_soon(client, gpu));
    }

    /// Plans the next step of a process, unless it is planned or the process does not answer.
    pub(super) fn moves_soon(&mut self, client: ClientId, gpu: GpuId) {
        let answers = self.processes.get(&client).is_some_and(|process| process.habits.answers);
        let step = resides(client, gpu, GoalNumber::NONE, [Bytes::ZERO; 3]);
        if answers && self.swap(client, gpu).is_some() && !self.agenda.values().any(|event| *event == step) {
            self.plan(STEP, step);
        }
    }

    /// Carries out a planned step of a process, and reports it.
    pub(super) fn moves(&mut self, step: Event) {
        let Event::Resides { client, gpu, .. } = step else { return };
        if self.processes.get(&client).is_some_and(|process| process.habits.answers) {
            self.step(client, gpu);
        }
    }

    /// Lets a process move one chunk as its goal asks, and report.
    pub(in crate::tests) fn step(&mut self, client: ClientId, gpu: GpuId) {
        let (Some(before), state) = (self.swap(client, gpu), self.gate(client).state()) else {
            return;
        };
        let Some(process) = self.processes.get(&client) else { return };
        let (chunks, in_flight) = (process.chunks(gpu), process.in_flight);
        let host_is_full = process.flags & FLAG_HOST_FULL != 0;
        let Swap { goal, mut resident, mut hosted, pinned, mut prepared, host_target, .. } = before;
        let (mut mapped, mut copied_out) = (before.mapped, before.copied_out);
        if let Some((_, goal)) = goal {
            let holes = chunks - resident - mapped;
            let passes = matches!(state, GateState::Open | GateState::Moving);
            if resident > goal && !passes && !in_flight {
                let chunk = CHUNK.min(resident - goal).min(resident - pinned);
                resident -= chunk;
                hosted += chunk;
                prepared -= chunk;
                copied_out += chunk;
            } else if resident < goal && passes && !holes.is_zero() {
                let chunk = CHUNK.min(goal - resident).min(holes);
                resident += chunk;
                hosted -= chunk.min(hosted - mapped);
            } else if passes && !holes.is_zero() && self.overflows(client, gpu) {
                let chunk = CHUNK.min(holes);
                hosted += chunk - chunk.min(hosted - mapped);
                mapped += chunk;
            } else if resident < goal && state == GateState::Moving {
                let chunk = CHUNK.min(goal - resident).min(mapped);
                resident += chunk;
                hosted -= chunk;
                mapped -= chunk;
            }
        }
        prepared = match host_is_full {
            true => Bytes::ZERO,
            false => prepared + CHUNK.min(host_target - (hosted + prepared)),
        };
        self.evicted += before.resident - resident;
        let after = Swap { goal, resident, hosted, pinned, prepared, host_target, mapped, copied_out };
        if let Some(swap) = self.swap_mut(client, gpu) {
            *swap = after;
        }
        self.reports(client, gpu);
        let places = |swap: Swap| (swap.resident, swap.hosted, swap.mapped, swap.prepared);
        if places(after) != places(before) {
            self.moves_soon(client, gpu);
        }
        self.enters_when_whole(client);
    }

    /// Opens the gate of a process whose memory is in.
    fn enters_when_whole(&mut self, client: ClientId) {
        let word = self.gate(client);
        let is_whole = |process: &&Process| !process.has_holes() && !process.awaits_room();
        let whole = self.processes.get(&client).filter(is_whole);
        if let Some(process) = whole.filter(|_| word.state() == GateState::Moving) {
            let moved = process.used();
            self.set_gate(client, GateState::Open);
            self.send(Event::Entered { client, word, moved, took: STEP });
        }
    }

    /// Lets freed bytes of a process have no place any more: those without a place first, then hosted ones.
    pub(super) fn frees(&mut self, client: ClientId, gpu: GpuId) {
        let Some(process) = self.processes.get(&client) else { return };
        let chunks = process.chunks(gpu);
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.hosted = swap.hosted.min(chunks - swap.resident);
            swap.mapped = swap.mapped.min(swap.hosted);
            swap.resident = swap.resident.min(chunks);
            swap.pinned = swap.pinned.min(swap.resident);
            self.moves_soon(client, gpu);
        }
    }

    /// Lets a process free bytes that are on a card.
    pub(in crate::tests) fn frees_on_card(&mut self, client: ClientId, gpu: GpuId, bytes: Bytes) {
        if let Some(swap) = self.swap_mut(client, gpu) {
            swap.resident -= bytes;
        }
        self.free(client, gpu, bytes);
        self.look(client, gpu);
        self.reports(client, gpu);
    }

    /// Lets NVML see a process on a card as it is.
    pub(in crate::tests) fn weighs(&mut self, client: ClientId, gpu: GpuId) {
        let bytes = self.resident(client, gpu);
        self.send(Event::Measured { client, gpu, bytes });
    }

    /// Asserts that no process has more on a card than the machine counts.
    pub(super) fn claims_are_bounds(&self, event: Event) {
        for (&client, process) in &self.processes {
            for (&gpu, swap) in process.swaps.iter().flatten() {
                let figures = self.core.view.figures(client, gpu);
                // While a card waits for those who return no goal is given, and each reports as soon as it is back.
                let is_awaited = self.core.view.awaits_reports(gpu);
                let Some(figures) = figures.filter(|figures| figures.reports && !is_awaited) else {
                    continue;
                };
                assert!(
                    swap.resident <= figures.claim,
                    "{client} has {} on {gpu}, after {event:?}: {figures:?}",
                    swap.resident
                );
                let reported = self.core.reported(client, gpu).unwrap_or_default();
                assert!(
                    swap.resident <= reported.claim,
                    "NVML may show what {client} has on {gpu}, after {event:?}: {reported:?}"
                );
            }
        }
    }
}

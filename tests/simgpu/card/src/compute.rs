//! The compute engine of one GPU: one process at a time, in slices of 2 ms.
//!
//! ```text
//! lanes   A: [kernel][kernel]  + spinners      turn: A until slice end, then B, then A ...
//!         B: [kernel]
//! ```
//!
//! Inside a lane, kernels that move memory run one after the other in the order in which they became ready
//! (one of them fills the card); spin kernels run beside them. When the slice ends and somebody else has
//! work, the lane is stopped in the middle of a piece and keeps what is left of it. Faults spend the slice
//! of the process that faults. Alone, a process is never interrupted, but its slices follow each other. So one
//! that comes later waits for the rest of a slice. When a lane is stopped, nobody computes for a moment.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::constants::Constants;
use crate::ids::{ClientId, Time};
use crate::memory::Memory;
use crate::walk::{Bus, Finished, Spinner, Walk};

#[derive(Debug, Default)]
pub(crate) struct Compute {
    lanes: BTreeMap<ClientId, Lane>,
    /// Lanes with work that wait for their turn, in order.
    waiting: VecDeque<ClientId>,
    turn: Option<Turn>,
}

/// Process that computes now.
#[derive(Debug)]
struct Turn {
    client: ClientId,
    since: Time,
    /// Time at which it begins to compute, after the change from a lane that was stopped.
    ready: Time,
    /// End of the current slice.
    slice_end: Time,
    /// When the piece under way is over.
    piece_end: Option<Time>,
    /// When the spinners' flags are looked at again.
    next_poll: Time,
}

/// One finished turn, for the timeline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnTaken {
    pub(crate) client: ClientId,
    pub(crate) from: Time,
    pub(crate) to: Time,
}

#[derive(Debug, Default)]
struct Lane {
    walks: VecDeque<Walk>,
    /// Rest of the first walk's piece; `None` before its next piece has begun.
    left: Option<Duration>,
    spinners: Vec<Spinner>,
}

impl Lane {
    fn has_work(&self) -> bool {
        !self.walks.is_empty() || !self.spinners.is_empty()
    }
}

impl Compute {
    pub(crate) fn push(&mut self, walk: Walk) {
        let client = walk.key.client;
        self.lanes.entry(client).or_default().walks.push_back(walk);
        self.queue_up(client);
    }

    pub(crate) fn spin(&mut self, spinner: Spinner) {
        let client = spinner.key.client;
        self.lanes.entry(client).or_default().spinners.push(spinner);
        self.queue_up(client);
    }

    /// Begins the next slice of a process that computes alone, if its last one is over. It is due before work of
    /// another process is pushed, which waits for the end of that slice.
    pub(crate) fn renew_slice(&mut self, now: Time, slice: Duration) {
        if let Some(turn) = self
            .turn
            .as_mut()
            .filter(|turn| self.waiting.is_empty() && now >= turn.slice_end)
        {
            let over = (now - turn.slice_end).as_nanos() / slice.as_nanos().max(1);
            turn.slice_end += slice * u32::try_from(over + 1).unwrap_or(u32::MAX);
        }
    }

    /// Forgets a client's work; its turn is over.
    pub(crate) fn forget(&mut self, client: ClientId, now: Time) -> Option<TurnTaken> {
        self.lanes.remove(&client);
        self.waiting.retain(|waiting| *waiting != client);
        self.turn.take_if(|turn| turn.client == client).map(|turn| turn.taken(now))
    }

    /// Process that computes now, and since when.
    pub(crate) fn running(&self) -> Option<(ClientId, Time)> {
        self.turn.as_ref().map(|turn| (turn.client, turn.since))
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        let Some(turn) = &self.turn else {
            return (!self.waiting.is_empty()).then_some(Time::ZERO);
        };
        let lane = self.lanes.get(&turn.client)?;
        if !lane.has_work() {
            return Some(Time::ZERO);
        }
        if turn.piece_end.is_none() && !lane.walks.is_empty() {
            return Some(turn.ready);
        }
        let slice = (!self.waiting.is_empty()).then_some(turn.slice_end);
        let spinners = lane.spinners.iter().map(|spinner| match spinner.until {
            Some(until) if spinner.watches() => until.min(turn.next_poll),
            Some(until) => until,
            None => Time::ZERO,
        });
        let next = slice.into_iter().chain(turn.piece_end).chain(spinners).min();
        next.map(|next| next.max(turn.ready))
    }

    /// Does what is due.
    pub(crate) fn step(
        &mut self,
        now: Time,
        memory: &mut Memory,
        finished: &mut Vec<Finished>,
    ) -> Option<TurnTaken> {
        let taken = self.change_turn(now, &memory.constants);
        let Some(turn) = self.turn.as_mut().filter(|turn| now >= turn.ready) else {
            return taken;
        };
        let lane = self.lanes.entry(turn.client).or_default();
        turn.next_poll = now + memory.constants.poll;
        lane.spinners.retain_mut(|spinner| {
            spinner.start(now);
            let over = spinner.over(now, memory);
            if over != Ok(false) {
                let counters = memory.counters.entry(spinner.key.client).or_default();
                counters.kernels += 1;
                finished.push(Finished { key: spinner.key, outcome: over.map(|_| None) });
            }
            over == Ok(false)
        });
        if turn.piece_end.is_some_and(|end| end <= now) {
            turn.piece_end = None;
            lane.left = None;
            if let Some(walk) = lane.walks.front_mut()
                && let Err(error) = walk.end(memory)
            {
                let key = walk.key;
                lane.walks.pop_front();
                finished.push(Finished { key, outcome: Err(error) });
            }
        }
        if turn.piece_end.is_none()
            && let Some(walk) = lane.walks.front_mut()
        {
            let next = match lane.left {
                Some(left) => Ok(Some(left)),
                None => walk.begin(memory, Bus::Alone),
            };
            match next {
                Ok(Some(time)) => turn.piece_end = Some(now + time),
                Ok(None) => finished.extend(lane.walks.pop_front().map(Walk::finish)),
                Err(error) => {
                    let key = walk.key;
                    lane.walks.pop_front();
                    finished.push(Finished { key, outcome: Err(error) });
                }
            }
            lane.left = None;
        }
        taken
    }

    /// Ends the turn if it has no work or its slice is over and somebody waits; gives it to the next.
    fn change_turn(&mut self, now: Time, constants: &Constants) -> Option<TurnTaken> {
        let slice = constants.slice;
        let (mut taken, mut ready) = (None, now);
        if let Some(turn) = &mut self.turn {
            let lane = self.lanes.entry(turn.client).or_default();
            let expired = now >= turn.slice_end && !self.waiting.is_empty();
            if !lane.has_work() || expired {
                lane.left = turn.piece_end.map(|end| end.saturating_sub(now));
                if lane.has_work() {
                    self.waiting.push_back(turn.client);
                    ready += constants.slice_change;
                }
                taken = self.turn.take().map(|turn| turn.taken(now));
            }
        }
        if self.turn.is_none()
            && let Some(client) = self.waiting.pop_front()
        {
            let (slice_end, next_poll) = (ready + slice, ready);
            self.turn = Some(Turn { client, since: now, ready, slice_end, piece_end: None, next_poll });
        }
        taken
    }

    fn queue_up(&mut self, client: ClientId) {
        let has_turn = self.turn.as_ref().is_some_and(|turn| turn.client == client);
        if !has_turn && !self.waiting.contains(&client) {
            self.waiting.push_back(client);
        }
    }
}

impl Turn {
    fn taken(&self, now: Time) -> TurnTaken {
        TurnTaken { client: self.client, from: self.since, to: now }
    }
}

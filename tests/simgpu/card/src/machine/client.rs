//! State of one connection to the card.

use std::collections::BTreeMap;

use crate::board::Board;
use crate::ids::{ClientId, ContextId, GpuIndex, GraphId, StreamId, Time};
use crate::machine::checkpoint::Checkpoint;
use crate::queue::{Fence, Queues};
use crate::wire::{Op, Refusable, Role, Sticky, Test};

#[derive(Debug)]
pub(super) struct Client {
    pub(super) pid: u32,
    pub(super) user: u32,
    pub(super) role: Role,
    pub(super) contexts: BTreeMap<ContextId, GpuIndex>,
    pub(super) queues: Queues,
    pub(super) graphs: BTreeMap<GraphId, Vec<Op>>,
    pub(super) waiters: Vec<Waiter>,
    pub(super) value_waits: Vec<ValueWait>,
    pub(super) host_calls: BTreeMap<u64, StreamId>,
    pub(super) callbacks: Option<ClientId>,
    /// End of the last call about physical memory.
    pub(super) calls_end: Time,
    /// How many of its next calls fail.
    pub(super) refusals: BTreeMap<Refusable, u32>,
    /// The error from which it does not recover.
    pub(super) poisoned: Option<Sticky>,
    /// Memory that a driver sees without asking.
    pub(super) board: Option<Board>,
    /// The client hung up, and its memory is on the way back.
    pub(super) dead: bool,
    pub(super) checkpoint: Checkpoint,
}

/// Somebody waits for work to be done.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) fences: Vec<Fence>,
    pub(super) token: Option<u64>,
    pub(super) then: Then,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Then {
    Answer,
    Free(u64),
    DestroyContext(ContextId),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ValueWait {
    pub(super) stream: StreamId,
    pub(super) address: u64,
    pub(super) value: u64,
    pub(super) test: Test,
    pub(super) wide: bool,
}

impl Client {
    pub(super) fn new(pid: u32, user: u32) -> Self {
        Self {
            pid,
            user,
            role: Role::Observer,
            contexts: BTreeMap::new(),
            queues: Queues::default(),
            graphs: BTreeMap::new(),
            waiters: Vec::new(),
            value_waits: Vec::new(),
            host_calls: BTreeMap::new(),
            callbacks: None,
            calls_end: Time::ZERO,
            refusals: BTreeMap::new(),
            poisoned: None,
            board: None,
            dead: false,
            checkpoint: Checkpoint::default(),
        }
    }

    /// Completes the head of a stream, and notes the event that it records.
    pub(super) fn complete(&mut self, stream: StreamId, now: Time) {
        let reached = self.queues.complete(stream, now);
        if let (Some(board), Some(reached)) = (&self.board, reached) {
            board.note(reached);
        }
    }
}

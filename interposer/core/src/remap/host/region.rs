//! Region of registered host memory: the steps by which it is made and given back, and its free slots.
//!
//! ```text
//!   nothing ── touch ──▶ touched ── register ──▶ ready: slots are taken and put back
//!      ▲                  │   ▲                    │
//!      └───── unmap ──────┘   └──── unregister ────┘
//! ```

use gpushare_proto::Bytes;
use range_alloc::RangeAllocator;

use super::Task;
use crate::remap::vmm::HostAddress;

/// Region of the pool, and how far its making is.
#[derive(Debug)]
pub(super) struct Region {
    pub(super) state: State,
    /// Whether the region is to become ready or stay so. Otherwise it is given back.
    pub(super) is_wanted: bool,
    /// Whether the registration ended with its context, while the region was ready.
    pub(super) is_unregistered: bool,
    /// Task that was handed out and is not done.
    pub(super) task: Option<Task>,
    /// Whether the last task failed, so that none follows until [`Pool::retry`].
    pub(super) has_failed: bool,
    /// Whether the region is made for the target, so that nobody waits for it.
    pub(super) is_ahead: bool,
}

/// Memory that a region has.
#[derive(Debug)]
pub(super) enum State {
    Nothing,
    Touched(HostAddress),
    Ready(HostAddress, RangeAllocator<u64>),
}

impl Region {
    pub(super) fn next(&self) -> Option<Task> {
        if self.task.is_some() || self.has_failed {
            return None;
        }
        match (&self.state, self.is_wanted) {
            (State::Nothing, true) => Some(Task::Touch),
            (State::Touched(address), true) => Some(Task::Register(*address)),
            (State::Touched(address), false) => Some(Task::Unmap(*address)),
            (State::Ready(address, _), true) if self.is_unregistered => Some(Task::Register(*address)),
            (State::Ready(address, _), false) => Some(Task::Unregister(*address)),
            (State::Nothing, false) | (State::Ready(..), true) => None,
        }
    }

    pub(super) fn free(&self) -> Bytes {
        match &self.state {
            State::Ready(_, slots) if self.is_wanted && !self.is_unregistered => {
                Bytes(slots.total_available())
            }
            _ => Bytes::ZERO,
        }
    }

    pub(super) fn is_coming(&self) -> bool {
        self.is_wanted && !matches!(self.state, State::Ready(..))
    }

    /// Whether the region waits, if preparation `is_paused`, since nobody waits for it.
    pub(super) fn is_paused(&self, is_paused: bool) -> bool {
        is_paused && self.is_ahead && self.is_coming()
    }

    pub(super) fn is_unbegun(&self) -> bool {
        self.is_wanted && self.task.is_none() && matches!(self.state, State::Nothing)
    }

    pub(super) fn is_unused(&self) -> bool {
        match &self.state {
            State::Ready(_, slots) => slots.is_empty(),
            State::Nothing | State::Touched(_) => true,
        }
    }
}

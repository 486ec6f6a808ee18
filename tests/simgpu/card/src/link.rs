//! One direction of the bus between host and card: copies and prefetches, one after the other, for everybody.
//!
//! Copies of pinned memory in both directions at once share the bus: each is slower than alone.

use std::collections::VecDeque;

use crate::ids::{ClientId, Time};
use crate::memory::Memory;
use crate::walk::{Bus, Finished, Walk};

#[derive(Debug, Default)]
pub(crate) struct Link {
    walks: VecDeque<Walk>,
    /// When the first walk's piece is over; `None` if it has not begun.
    piece_end: Option<Time>,
}

impl Link {
    pub(crate) fn push(&mut self, walk: Walk) {
        self.walks.push_back(walk);
    }

    pub(crate) fn forget(&mut self, client: ClientId) {
        if self.walks.front().is_some_and(|walk| walk.key.client == client) {
            self.piece_end = None;
        }
        self.walks.retain(|walk| walk.key.client != client);
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        (!self.walks.is_empty()).then(|| self.piece_end.unwrap_or(Time::ZERO))
    }

    /// Whether a copy of pinned memory is on its way.
    pub(crate) fn copies_pinned(&self, memory: &Memory) -> bool {
        self.walks.front().is_some_and(|walk| walk.copies_pinned(memory))
    }

    pub(crate) fn step(&mut self, now: Time, memory: &mut Memory, bus: Bus, finished: &mut Vec<Finished>) {
        let Some(walk) = self.walks.front_mut() else {
            return;
        };
        let mut outcome = Ok(());
        if let Some(end) = self.piece_end {
            if end > now {
                return;
            }
            self.piece_end = None;
            outcome = walk.end(memory);
        }
        match outcome.and_then(|()| walk.begin(memory, bus)) {
            Ok(Some(time)) => self.piece_end = Some(now + time),
            Ok(None) => finished.extend(self.walks.pop_front().map(Walk::finish)),
            Err(error) => {
                let key = walk.key;
                self.walks.pop_front();
                finished.push(Finished { key, outcome: Err(error) });
            }
        }
    }
}

//! Summary of each card for tools that follow the daemon. It costs little, however many sessions wait.

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::view::View;
use crate::view::snapshot::RemappedSnapshot;

/// Memory, mode and turns of one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CardSummary {
    /// Identifier of the card.
    pub gpu: GpuId,
    /// Largest sum of bytes that sessions may have on the card at once.
    pub capacity_bytes: Bytes,
    /// Number of bytes that all sessions have allocated.
    pub allocated_bytes: Bytes,
    /// Present mode of the card.
    pub mode: Mode,
    /// Reason for the card's mode, in words.
    pub reason: String,
    /// Number of sessions that hold the lock.
    pub holding: usize,
    /// First sessions that hold the lock, by number.
    pub holders: Vec<SessionId>,
    /// Number of sessions that wait for the lock.
    pub waiting: usize,
    /// First sessions that wait for the lock, in the order of their turns.
    pub queue: Vec<SessionId>,
    /// Length of the next session's turn.
    pub quantum: Nanos,
    /// Point in time at which the first holder's quantum is over; `None` without turns.
    pub turn_ends: Option<Nanos>,
    /// Number of turns granted on the card so far.
    pub handoffs: u64,
    /// Remapped memory on the card, if there is any.
    pub remapped: Option<RemappedSnapshot>,
}

impl View {
    fn summary(&self, gpu: GpuId, card: &Card, most: usize) -> CardSummary {
        let holders = &card.index.holders;
        let end = |id: &SessionId| Some(self.sessions.get(*id)?.lock.holding()?.clock.end());
        let takes_turns = card.mode.mode() != Mode::Parallel;
        CardSummary {
            gpu,
            capacity_bytes: card.capacity(),
            allocated_bytes: card.index.sums.used.get(),
            mode: card.mode.mode(),
            reason: card.mode.reason(&self.config),
            holding: holders.len(),
            holders: holders.iter().copied().take(most).collect(),
            waiting: card.index.waiting(),
            queue: card.groups.in_order(|_| true).take(most).collect(),
            quantum: self.next_quantum(card),
            turn_ends: holders.iter().filter(|_| takes_turns).filter_map(end).min(),
            handoffs: card.handoffs,
            remapped: self.remapped.contains(gpu).then(|| self.remapped_snapshot(gpu)),
        }
    }
}

impl Core {
    /// Returns a summary of each card, by number of the card, with at most `most` holders and waiters named.
    pub fn card_summaries(&self, most: usize) -> impl Iterator<Item = CardSummary> {
        self.view
            .cards
            .iter()
            .map(move |(gpu, card)| self.view.summary(gpu, card, most))
    }
}

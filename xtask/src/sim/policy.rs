//! Interface of a scheduler: the messages that it gets from the sessions of a simulation, and its answers.
//!
//! ```text
//!   arrives ─▶ wants ─▶ … Pass ─▶ (memory comes in) entered ─▶ … Shut ─▶ (work in flight ends) let_go ─▶ wants ─▶ …
//!                                                         └───▶ nothing to do for the grace: let_go
//! ```

pub(super) mod fifo;
pub(super) mod gpushare;
pub(super) mod unscheduled;

use gpushare_proto::{Bytes, Nanos};

use super::tenant::Tenant;

/// One session of the simulation, by its place in the trace.
pub(super) type Who = usize;

/// Answer of a scheduler to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// The session may submit work, after its memory is in where it `moves`.
    Pass { who: Who, moves: bool },
    /// The session must release the lock.
    Shut { who: Who },
    /// Whether another session waits for it, so that it releases the lock when idle.
    Wanted { who: Who, wanted: bool },
}

/// A scheduler.
pub(super) trait Policy {
    /// Name of the scheduler in tables.
    fn name(&self) -> &'static str;
    /// When a session lets go by itself that has had nothing to do since `idle` and that somebody waits for
    /// from `now` on. `grace` is how long gpushare's library would look at that.
    fn lets_go_at(&self, now: Nanos, idle: Nanos, grace: Nanos) -> Nanos;
    /// The session has arrived, with a closed gate.
    fn arrives(&mut self, now: Nanos, who: Who, tenant: &Tenant);
    /// The session has work, and its gate is closed.
    fn wants(&mut self, now: Nanos, who: Who);
    /// The session runs, after `moved` bytes of its memory came in within `took`.
    fn entered(&mut self, now: Nanos, who: Who, moved: Bytes, took: Nanos);
    /// The work in flight of a session that was told to release the lock is about to end.
    fn ends_soon(&mut self, _now: Nanos, _who: Who) {}
    /// The session released the lock: after `drain` as it was told, or since it was idle.
    fn let_go(&mut self, now: Nanos, who: Who, drain: Nanos);
    /// The session has ended.
    fn leaves(&mut self, now: Nanos, who: Who);
    /// When to call [`Self::wake`] at the latest.
    fn deadline(&self) -> Option<Nanos>;
    /// Time has passed.
    fn wake(&mut self, now: Nanos);
    /// The next word, in order.
    fn poll(&mut self) -> Option<Word>;
    /// Whether the scheduler moves the memory of the sessions itself, so that all of it is there when they run.
    fn moves_memory(&self) -> bool {
        false
    }
    /// Bytes that it has moved to the cards.
    fn moved(&self) -> Bytes {
        Bytes::ZERO
    }
    /// Turns so far.
    fn handoffs(&self) -> u64;
    /// How long each of them was to last, where that is computed.
    fn quanta(self) -> Vec<Nanos>
    where
        Self: Sized,
    {
        Vec::new()
    }
}

//! Who may run when: what a scheduler hears from the sessions of a simulation, and what it tells them.
//!
//! ```text
//!   arrives ─▶ wants ─▶ … Pass ─▶ (memory comes in) entered ─▶ … Shut ─▶ (work in flight ends) let_go ─▶ wants ─▶ …
//!                                                         └───▶ nothing to do for the grace: went_idle
//! ```

pub(super) mod fifo;
pub(super) mod gpushare;
pub(super) mod unscheduled;

use gpushare_proto::{Bytes, Nanos};

use super::tenant::Tenant;

/// One session of the simulation, by its place in the trace.
pub(super) type Who = usize;

/// What a session is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It may submit work, after its memory is in where it `moves`.
    Pass { who: Who, moves: bool },
    /// It must let go.
    Shut { who: Who },
    /// Whether somebody waits for it, so that it is to let go when it has nothing to do.
    Wanted { who: Who, wanted: bool },
}

/// A scheduler.
pub(super) trait Policy {
    /// What it is called in tables.
    fn name(&self) -> &'static str;
    /// When a session lets go by itself that has had nothing to do since `idle` and that somebody waits for from `now` on. `grace` is how
    /// long gpushare's library would look at that.
    fn lets_go_at(&self, now: Nanos, idle: Nanos, grace: Nanos) -> Nanos;
    /// It is there, with a closed gate.
    fn arrives(&mut self, now: Nanos, who: Who, tenant: &Tenant);
    /// It has work and its gate is closed.
    fn wants(&mut self, now: Nanos, who: Who);
    /// So much of its memory came in within `took`, and it runs.
    fn entered(&mut self, now: Nanos, who: Who, moved: Bytes, took: Nanos);
    /// As it was told, after `drain`.
    fn let_go(&mut self, now: Nanos, who: Who, drain: Nanos);
    /// It had nothing to do and let go.
    fn went_idle(&mut self, now: Nanos, who: Who);
    /// It has ended.
    fn leaves(&mut self, now: Nanos, who: Who);
    /// When to call [`Self::wake`] at the latest.
    fn deadline(&self) -> Option<Nanos>;
    /// Time has passed.
    fn wake(&mut self, now: Nanos);
    /// The next word, in order.
    fn poll(&mut self) -> Option<Word>;
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

//! Settings that an administrator can change for each card while the daemon runs.

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::{Bytes, Nanos, Percent};

use crate::config::Config;

/// Settings of one card. `None` means that the scheduler computes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Fixed length of a session's turn.
    pub quantum: Option<Nanos>,
    /// Fixed mode: parallel, time-sliced or serialized.
    pub mode: Option<Mode>,
    /// Largest sum of bytes that sessions may have on the card at once. By default it is the card's total
    /// memory less a reserve for CUDA contexts.
    pub capacity: Option<Bytes>,
    /// Largest sum of managed memory, in bytes, that all sessions may have together.
    pub managed_limit: Option<Bytes>,
    /// Largest share of the card's time that may be lost to handoffs between sessions.
    pub epsilon: Percent,
    /// Target for the time until work in flight has ended when the lock is asked for.
    pub window_target: Nanos,
    /// Bytes that one CUDA context is assumed to take until they are measured, at most an eighth of the card.
    pub context_reserve: Bytes,
}

impl Knobs {
    /// Returns the settings of a card for which the configuration has no settings of its own.
    #[must_use]
    pub const fn new(config: &Config) -> Self {
        Self {
            quantum: config.quantum,
            mode: config.mode,
            capacity: config.capacity,
            managed_limit: config.managed_limit,
            epsilon: config.epsilon,
            window_target: config.drain_target,
            context_reserve: config.context_reserve,
        }
    }

    /// Changes one setting of the card.
    pub const fn set(&mut self, knob: Knob) {
        match knob {
            Knob::Quantum(quantum) => self.quantum = quantum,
            Knob::Mode(mode) => self.mode = mode,
            Knob::Capacity(capacity) => self.capacity = capacity,
            Knob::ManagedLimit(limit) => self.managed_limit = Some(limit),
            Knob::Epsilon(epsilon) => self.epsilon = epsilon,
            Knob::WindowTarget(target) => self.window_target = target,
            Knob::ContextReserve(bytes) => self.context_reserve = bytes,
        }
    }

    /// Returns the settings in which `new` differs from these settings.
    #[must_use]
    pub fn changes(&self, new: &Self) -> Vec<Knob> {
        let old: Vec<Knob> = self.all().collect();
        new.all().filter(|knob| !old.contains(knob)).collect()
    }

    fn all(&self) -> impl Iterator<Item = Knob> {
        let always = [
            Knob::Quantum(self.quantum),
            Knob::Mode(self.mode),
            Knob::Capacity(self.capacity),
            Knob::Epsilon(self.epsilon),
            Knob::WindowTarget(self.window_target),
            Knob::ContextReserve(self.context_reserve),
        ];
        let limit = self.managed_limit.map(Knob::ManagedLimit);
        limit.into_iter().chain(always)
    }
}

//! Settings that an administrator can change for each card while the daemon runs.

use gpushare_proto::admin::{Knob, Mode};
use gpushare_proto::{Bytes, Nanos, Percent};

use crate::config::Config;

/// Settings of one card. `None` means that the scheduler computes the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// Fixed length of a turn.
    pub quantum: Option<Nanos>,
    /// Fixed mode of sharing.
    pub mode: Option<Mode>,
    /// Bytes that may be resident together, instead of the card's total less the reserve for contexts.
    pub capacity: Option<Bytes>,
    /// Most bytes of managed memory of all sessions together.
    pub managed_limit: Option<Bytes>,
    /// Share of the time that may be lost to handoffs.
    pub epsilon: Percent,
    /// Longest time that work in flight should take to drain.
    pub window_target: Nanos,
}

impl Knobs {
    /// Settings of a card for which the configuration names none of its own.
    #[must_use]
    pub const fn new(config: &Config) -> Self {
        Self {
            quantum: config.quantum,
            mode: config.mode,
            capacity: config.capacity,
            managed_limit: config.managed_limit,
            epsilon: config.epsilon,
            window_target: config.drain_target,
        }
    }

    /// Changes one setting.
    pub const fn set(&mut self, knob: Knob) {
        match knob {
            Knob::Quantum(quantum) => self.quantum = quantum,
            Knob::Mode(mode) => self.mode = mode,
            Knob::Capacity(capacity) => self.capacity = capacity,
            Knob::ManagedLimit(limit) => self.managed_limit = Some(limit),
            Knob::Epsilon(epsilon) => self.epsilon = epsilon,
            Knob::WindowTarget(target) => self.window_target = target,
        }
    }

    /// Returns the settings in which `new` differs from this.
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
        ];
        let limit = self.managed_limit.map(Knob::ManagedLimit);
        limit.into_iter().chain(always)
    }
}

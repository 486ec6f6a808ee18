//! Settings of scheduling decisions with their defaults. Each can be set in the daemon's configuration.

use std::fmt;

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, Percent};
use serde::{Deserialize, Serialize};

/// Lower bound of every quantum: a configured quantum of 0 must not spin the queue.
pub(crate) const SHORTEST_QUANTUM: Nanos = Nanos::from_millis(1);

/// Settings on which decisions depend, beside events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Share ε of a card's time that may be lost to handoffs.
    pub epsilon: Percent,
    /// Shortest computed quantum.
    pub quantum_min: Nanos,
    /// Longest computed quantum.
    pub quantum_max: Nanos,
    /// Bytes that a handoff moves per second, until measured.
    pub bandwidth_per_second: Bytes,
    /// Cost of a handoff beside its drain and its moves: the card changes contexts, and its pipeline starts
    /// empty.
    pub switch_cost: Nanos,
    /// Time that the drain of a holder's work should take.
    pub drain_target: Nanos,
    /// A drop is late after `late_factor × max(drain target, expected drain)`.
    pub late_factor: u32,
    /// Longest time for which the gates of a late drop are open before the next try.
    pub retry_max: Nanos,
    /// Number of tries after which a drop is reported as stuck.
    pub stuck_tries: u32,
    /// Time after which a drop is reported as stuck.
    pub stuck_after: Nanos,
    /// Policy for a holder that does not let go.
    pub stuck_policy: StuckPolicy,
    /// Share of the capacity that the working sets must fit before a card returns to parallel mode.
    pub parallel_below: Percent,
    /// Time for which the working sets must fit before a card returns to parallel mode.
    pub parallel_after: Nanos,
    /// Largest free lease that is added to a request.
    pub lease_chunk: Bytes,
    /// Memory that one context is assumed to take on the card, until measured.
    pub context_reserve: Bytes,
    /// Shortest time for which grants wait for processes of the last daemon after a restart.
    pub recovery_min: Nanos,
    /// Share of a quantum by which a session that wakes may be ahead of the others.
    pub credit: Percent,
    /// Share of the time that a session gets beside one of the next higher class with the same weight.
    pub trickle: Percent,
    /// Most time that is saved up for early switches.
    pub budget_max: Nanos,
    /// Window over which a compute limit holds.
    pub limit_window: Nanos,
    /// Share of the window that an idle session can save up under a compute limit.
    pub limit_carry_over: Percent,
    /// Fixed quantum instead of the computed one.
    pub quantum: Option<Nanos>,
    /// Fixed mode instead of the chosen one.
    pub mode: Option<Mode>,
    /// Bytes that may be resident together, instead of the card's total less the reserve for contexts.
    pub capacity: Option<Bytes>,
    /// Most managed memory of all sessions together, per card.
    pub managed_limit: Option<Bytes>,
}

/// Generates a variant of [`Tuning`] for each row.
macro_rules! tunings {
    ($($field:ident $variant:ident $type:ty;)*) => {
        /// New value of a setting that is the same for all cards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Tuning {
            $(
                #[doc = concat!("New value of [`Config::", stringify!($field), "`].")]
                $variant($type),
            )*
        }

        impl Tuning {
            /// Key of the setting in the daemon's configuration.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self {
                    $(Self::$variant(_) => stringify!($field),)*
                }
            }
        }

        impl fmt::Display for Tuning {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant(value) => value.fmt(f),)*
                }
            }
        }

        impl Config {
            /// Changes one setting.
            pub fn tune(&mut self, tuning: Tuning) {
                match tuning {
                    $(Tuning::$variant(value) => self.$field = value,)*
                }
            }

            /// Returns the changes that lead from these settings to `new`, as pairs of old and new value.
            #[must_use]
            pub fn tunings(&self, new: &Self) -> Vec<(Tuning, Tuning)> {
                let pairs = [$((Tuning::$variant(self.$field), Tuning::$variant(new.$field)),)*];
                pairs.into_iter().filter(|(old, new)| old != new).collect()
            }
        }
    };
}

// Other settings are per card (`gpushare_proto::admin::Knob`) or fixed for the machine's life: the assumed
// size of a context is part of every sum, and the rest is read once.
tunings! {
    quantum_min QuantumMin Nanos;
    quantum_max QuantumMax Nanos;
    drain_target DrainTarget Nanos;
    late_factor LateFactor u32;
    retry_max RetryMax Nanos;
    stuck_tries StuckTries u32;
    stuck_after StuckAfter Nanos;
    stuck_policy StuckPolicy StuckPolicy;
    parallel_below ParallelBelow Percent;
    parallel_after ParallelAfter Nanos;
    lease_chunk LeaseChunk Bytes;
    credit Credit Percent;
    trickle Trickle Percent;
    budget_max BudgetMax Nanos;
    limit_window LimitWindow Nanos;
    limit_carry_over LimitCarryOver Percent;
    switch_cost SwitchCost Nanos;
}

/// Policy for a holder that does not drain while none of its threads waits at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckPolicy {
    /// Report the holder and keep trying.
    Wait,
    /// Also admit waiting sessions that fit beside the holder, out of order.
    RunOthers,
    /// Kill the holder's processes.
    Kill,
}

impl fmt::Display for StuckPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "wait",
            Self::RunOthers => "run_others",
            Self::Kill => "kill",
        })
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            epsilon: Percent(500),
            quantum_min: Nanos::from_millis(20),
            quantum_max: Nanos::from_secs(30),
            bandwidth_per_second: Bytes(13_000_000_000),
            drain_target: Nanos::from_millis(10),
            late_factor: 4,
            retry_max: Nanos::from_secs(1),
            stuck_tries: 5,
            stuck_after: Nanos::from_secs(5),
            stuck_policy: StuckPolicy::RunOthers,
            parallel_below: Percent(9000),
            parallel_after: Nanos::from_secs(2),
            lease_chunk: Bytes::mib(64),
            context_reserve: Bytes::mib(700),
            recovery_min: Nanos::from_secs(1),
            credit: Percent(5000),
            trickle: Percent(500),
            budget_max: Nanos::from_secs(2),
            limit_window: Nanos::from_secs(1),
            limit_carry_over: Percent(2500),
            switch_cost: Nanos(1_500_000),
            quantum: None,
            mode: None,
            capacity: None,
            managed_limit: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunings_lead_from_one_configuration_to_the_other() {
        let mut config = Config::default();
        let new = Config {
            quantum_min: Nanos::from_millis(40),
            stuck_policy: StuckPolicy::Wait,
            ..Config::default()
        };
        let tunings = config.tunings(&new);
        let words: Vec<String> = tunings
            .iter()
            .map(|(old, new)| format!("{} {old} → {new}", new.key()))
            .collect();
        assert_eq!(words, ["quantum_min 20ms → 40ms", "stuck_policy run_others → wait"]);
        tunings.iter().for_each(|&(_, tuning)| config.tune(tuning));
        assert_eq!(config, new);
    }
}

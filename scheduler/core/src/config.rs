//! Every default of scheduling decisions, in one place. Each can be set in the daemon's configuration.

use std::fmt;

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, Percent};
use serde::{Deserialize, Serialize};

/// Lower bound of every quantum: a configured quantum of 0 must not spin the queue.
pub(crate) const SHORTEST_QUANTUM: Nanos = Nanos::from_millis(1);

/// What the decisions depend on besides events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The share of time one is ready to lose to handoffs.
    pub epsilon: Percent,
    /// The shortest quantum.
    pub quantum_min: Nanos,
    /// The longest quantum.
    pub quantum_max: Nanos,
    /// What a handoff moves per second while nothing was measured.
    pub bandwidth_per_second: Bytes,
    /// What a handoff costs besides its drain and its moves: the card changes contexts, and what kept it busy begins anew.
    pub switch_cost: Nanos,
    /// What a drain should take.
    pub drain_target: Nanos,
    /// A drop is late after this many times the larger of the drain target and the expected drain.
    pub late_factor: u32,
    /// The longest pause between two tries of a drop.
    pub retry_max: Nanos,
    /// A drop is stuck after this many tries,
    pub stuck_tries: u32,
    /// or after this long.
    pub stuck_after: Nanos,
    /// What to do about a stuck holder.
    pub stuck_policy: StuckPolicy,
    /// Back to parallel when the working sets fit this share of the capacity
    pub parallel_below: Percent,
    /// for this long.
    pub parallel_after: Nanos,
    /// The largest lease beyond what was asked for.
    pub lease_chunk: Bytes,
    /// Memory that one context takes on the card, until measured.
    pub context_reserve: Bytes,
    /// After a restart: grants wait at least this long for the clients of the last daemon.
    pub recovery_min: Nanos,
    /// What a session that wakes may be ahead of the others: this share of a quantum.
    pub credit: Percent,
    /// What a class that waits behind another gets all the same.
    pub trickle: Percent,
    /// The most that is saved up for early switches.
    pub budget_max: Nanos,
    /// Compute limits hold over this long,
    pub limit_window: Nanos,
    /// and this share of it can be saved up by idleness.
    pub limit_carry_over: Percent,
    /// A fixed quantum instead of the computed one.
    pub quantum: Option<Nanos>,
    /// A fixed mode instead of the chosen one.
    pub mode: Option<Mode>,
    /// What may be resident together, instead of the card's total less the reserve.
    pub capacity: Option<Bytes>,
    /// The most managed memory of all sessions together, per card.
    pub managed_limit: Option<Bytes>,
}

/// Makes a [`Tuning`] of each row.
macro_rules! tunings {
    ($($field:ident $variant:ident $type:ty;)*) => {
        /// A new value of one setting that is the same for all cards.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum Tuning {
            $(
                #[doc = concat!("Of [`Config::", stringify!($field), "`].")]
                $variant($type),
            )*
        }

        impl Tuning {
            /// Its name, as in the daemon's configuration.
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

            /// What must be tuned to come from these settings to `new` ones, each with what it was.
            #[must_use]
            pub fn tunings(&self, new: &Self) -> Vec<(Tuning, Tuning)> {
                let pairs = [$((Tuning::$variant(self.$field), Tuning::$variant(new.$field)),)*];
                pairs.into_iter().filter(|(old, new)| old != new).collect()
            }
        }
    };
}

// What is not here is set per card (`gpushare_proto::admin::Knob`), or fixed for the machine's life: what contexts are
// assumed to take is in every sum, and the rest is looked at once.
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

/// What to do about a holder that does not drain while nobody waits at its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckPolicy {
    /// Report it and keep trying.
    Wait,
    /// Also admit waiters, out of order, that fit beside it.
    RunOthers,
    /// End its processes.
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

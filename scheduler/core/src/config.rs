//! Settings of scheduling decisions with their defaults, which the daemon's configuration can change.

use std::fmt;

use gpushare_proto::admin::Mode;
use gpushare_proto::{Bytes, Nanos, Percent};
use serde::{Deserialize, Serialize};

/// Lower bound of every quantum, so that a configured quantum of 0 does not make the lock change hands
/// endlessly.
pub(crate) const SHORTEST_QUANTUM: Nanos = Nanos::from_millis(1);

/// Settings on which the scheduler's decisions depend, beside the events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Largest share ε of a card's time that may be lost to handoffs between sessions.
    pub epsilon: Percent,
    /// Smallest quantum that the scheduler may compute.
    pub quantum_min: Nanos,
    /// Largest quantum that the scheduler may compute.
    pub quantum_max: Nanos,
    /// Bandwidth in bytes per second that a handoff is assumed to have until it is measured.
    pub bandwidth_per_second: Bytes,
    /// Fixed cost in time of a handoff beside its drain and its memory moves, such as changing contexts and
    /// refilling the card's pipeline.
    pub switch_cost: Nanos,
    /// Target for the time until a session's work in flight has ended after the lock was asked for.
    pub drain_target: Nanos,
    /// Factor after which a drop (request for the lock) is late: `late_factor × max(drain target, expected
    /// drain)`.
    pub late_factor: u32,
    /// Longest pause, with the gates open, between two tries to get the lock back from a late session.
    pub retry_max: Nanos,
    /// Number of tries to get the lock back after which a session is reported as stuck.
    pub stuck_tries: u32,
    /// Time after which a session that was asked for the lock is reported as stuck.
    pub stuck_after: Nanos,
    /// Policy for a session that does not give the lock back.
    pub stuck_policy: StuckPolicy,
    /// Share of a card's capacity that all working sets together must fit before the card returns to parallel
    /// mode.
    pub parallel_below: Percent,
    /// Time for which the working sets must have fitted before a card returns to parallel mode.
    pub parallel_after: Nanos,
    /// Largest number of bytes that a process is leased in addition to a request, to save later requests.
    pub lease_chunk: Bytes,
    /// Bytes that one CUDA context is assumed to take on a card until they are measured, at most an eighth of
    /// the card.
    pub context_reserve: Bytes,
    /// Shortest time after a restart for which grants wait for processes of the last daemon.
    pub recovery_min: Nanos,
    /// Largest lead in virtual time, as a share of a quantum, with which a session that wakes may begin.
    pub credit: Percent,
    /// Share of the time that a session gets beside a session of the next higher class with the same weight.
    pub trickle: Percent,
    /// Largest budget of time that a card saves up for early switches.
    pub budget_max: Nanos,
    /// Length of the window of time over which a compute limit holds.
    pub limit_window: Nanos,
    /// Largest share of the window that an idle session with a compute limit can save up.
    pub limit_carry_over: Percent,
    /// Fixed quantum for all cards instead of the computed one.
    pub quantum: Option<Nanos>,
    /// Fixed mode for all cards instead of the chosen one.
    pub mode: Option<Mode>,
    /// Largest sum of bytes that sessions may have on a card at once. By default it is the card's total
    /// memory less a reserve for CUDA contexts.
    pub capacity: Option<Bytes>,
    /// Largest sum of managed memory of all sessions together, for each card.
    pub managed_limit: Option<Bytes>,
}

/// Generates a variant of [`Tuning`] for each setting in the table.
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
            /// Returns the key of the setting in the daemon's configuration.
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
            /// Changes one setting that is the same for all cards.
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

// Other settings are per card (`gpushare_proto::admin::Knob`) or read once.
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

/// Policy for a session that does not drain although none of its threads sleeps at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckPolicy {
    /// Reports the session and keeps asking for the lock.
    Wait,
    /// Also admits waiting sessions that fit beside the stuck one, out of order.
    RunOthers,
    /// Kills the processes of the stuck session. Those that the driver has frozen before are treated as with
    /// [`Self::Wait`].
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

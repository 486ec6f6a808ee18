//! Length of a turn, computed from the cost of a handoff.
//!
//! A handoff of cost `s` may take the share `ε` of the time, so a turn lasts `s · (1/ε − 1)`. The bytes that
//! move are `min(working set of the next session, Σ working sets − capacity)`.
//!
//! Example for 50 GB/s and ε = 5%: moving 8 GB costs s = 0.16 s and gives a quantum of 3 s. Without a move, a
//! drain of 2 ms gives 40 ms.

use gpushare_proto::{Bytes, Nanos, Percent};

pub(crate) use crate::config::SHORTEST_QUANTUM as SHORTEST;

/// Duration of a move of `bytes` at `bandwidth` bytes a second.
pub(crate) fn transfer(bytes: Bytes, bandwidth: Bytes) -> Nanos {
    let nanos = u128::from(bytes.0) * u128::from(Nanos::from_secs(1).0) / u128::from(bandwidth.0.max(1));
    Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Number of bytes that a session with a working set of `own` must bring in. `total` is the need of all
/// sessions together.
pub(crate) fn excess(own: Bytes, total: Bytes, capacity: Bytes) -> Bytes {
    own.min(total - capacity)
}

/// Length of the turn that pays for a handoff whose cost is `cost`.
pub(crate) fn quantum(cost: Nanos, epsilon: Percent, shortest: Nanos, longest: Nanos) -> Nanos {
    let share = u128::from(epsilon.0.min(10_000));
    let turn = match share {
        0 => u64::MAX,
        _ => u64::try_from(u128::from(cost.0) * (10_000 - share) / share).unwrap_or(u64::MAX),
    };
    Nanos(turn).min(longest).max(shortest).max(SHORTEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn default_quantum(cost: Nanos) -> Nanos {
        quantum(cost, Percent(500), Nanos::from_millis(20), Nanos::from_secs(30))
    }

    #[test]
    fn eight_gigabytes_at_fifty_a_second_pay_with_three_seconds() {
        let cost = transfer(Bytes(8_000_000_000), Bytes(50_000_000_000));
        assert_eq!(cost, Nanos::from_millis(160));
        assert_eq!(default_quantum(cost), Nanos::from_millis(3040));
    }

    #[test]
    fn a_drain_of_two_milliseconds_pays_with_thirty_eight() {
        assert_eq!(default_quantum(Nanos::from_millis(2)), Nanos::from_millis(38));
    }

    #[test]
    fn the_quantum_stays_between_its_bounds() {
        assert_eq!(default_quantum(Nanos::ZERO), Nanos::from_millis(20));
        assert_eq!(default_quantum(Nanos::from_secs(60)), Nanos::from_secs(30));
        assert_eq!(quantum(Nanos(1), Percent(0), Nanos(1), Nanos::from_secs(30)), Nanos::from_secs(30));
        assert_eq!(quantum(Nanos(1), Percent(10_000), Nanos(0), Nanos(0)), SHORTEST);
    }

    #[test]
    fn only_the_excess_moves() {
        assert_eq!(excess(Bytes(6), Bytes(12), Bytes(10)), Bytes(2));
        assert_eq!(excess(Bytes(6), Bytes(24), Bytes(10)), Bytes(6));
        assert_eq!(excess(Bytes(6), Bytes(8), Bytes(10)), Bytes(0));
    }

    #[test]
    fn a_bandwidth_of_zero_is_slow_and_no_panic() {
        assert_eq!(transfer(Bytes(5), Bytes(0)), Nanos::from_secs(5));
    }
}

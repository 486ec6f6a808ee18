//! Clocks. Neither of the two is ever set back.

use gpushare_proto::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Time since the machine started, suspends included. The daemons of one machine are ordered by it.
pub fn boot() -> Nanos {
    nanos(clock_gettime(ClockId::Boottime))
}

/// Time in which the machine ran, suspends excluded. For durations and deadlines.
pub fn monotonic() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

fn nanos(time: Timespec) -> Nanos {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let rest = u64::try_from(time.tv_nsec).unwrap_or(0);
    Nanos::from_secs(seconds) + Nanos(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_run_forward() {
        let (boot_before, before) = (boot(), monotonic());
        assert!(boot() >= boot_before && monotonic() >= before);
        assert!(before > Nanos::ZERO && boot() >= before);
    }
}

//! Clocks of the machine, which are never set back.

use gpushare_proto::Nanos;
use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time since the machine started, suspends included. It orders the daemons of one machine.
pub fn boot() -> Nanos {
    nanos(clock_gettime(ClockId::Boottime))
}

/// Returns the time in which the machine ran, suspends excluded. Use it for durations and deadlines.
pub fn monotonic() -> Nanos {
    nanos(clock_gettime(ClockId::Monotonic))
}

/// Returns the time for which this thread has run. Time in which others ran on its core is not part of it.
pub fn thread() -> Nanos {
    nanos(clock_gettime(ClockId::ThreadCPUTime))
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

//! Clocks of the machine, which are never set back, and its time zone.

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

/// Returns the seconds since 1970 at which the local time zone shows what UTC shows at second `shown`.
///
/// A time that the zone skips is moved as the C library does. None if the C library knows no such time.
pub fn unix_of_local(shown: u64) -> Option<u64> {
    let shown = libc::time_t::try_from(shown).ok()?;
    // SAFETY: all bytes zero are a valid `tm`: integers, and a null pointer to the zone's name.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to variables of this function.
    if unsafe { libc::gmtime_r(&raw const shown, &raw mut broken) }.is_null() {
        return None;
    }
    broken.tm_isdst = -1;
    // SAFETY: the pointer is to a variable of this function, and its fields are in their ranges.
    let unix = unsafe { libc::mktime(&raw mut broken) };
    u64::try_from(unix).ok()
}

/// Returns the seconds at which UTC shows what the local time zone shows at second `unix` since 1970.
pub fn shown_by_local(unix: u64) -> Option<u64> {
    let time = libc::time_t::try_from(unix).ok()?;
    // SAFETY: all bytes zero are a valid `tm`: integers, and a null pointer to the zone's name.
    let mut broken: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to variables of this function.
    if unsafe { libc::localtime_r(&raw const time, &raw mut broken) }.is_null() {
        return None;
    }
    unix.checked_add_signed(broken.tm_gmtoff)
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
    fn local_time_is_read_back() {
        for unix in [0, 951_782_400, 1_795_435_200, 4_107_542_400] {
            let shown = shown_by_local(unix).unwrap();
            assert_eq!(unix_of_local(shown), Some(unix));
            assert!(shown.abs_diff(unix) <= 26 * 3600, "{shown}");
        }
        assert_eq!(unix_of_local(u64::MAX), None);
    }

    #[test]
    fn clocks_run_forward() {
        let (boot_before, before) = (boot(), monotonic());
        assert!(boot() >= boot_before && monotonic() >= before);
        assert!(before > Nanos::ZERO && boot() >= before);
    }
}

//! The clock by which programs of one machine can be laid side by side.

use gpushare_proto::Nanos;
use rustix::time::{ClockId, clock_gettime};

/// `CLOCK_MONOTONIC`, now.
pub fn now() -> Nanos {
    let time = clock_gettime(ClockId::Monotonic);
    Nanos(time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs())
}

//! Pins the processes that a bench times against an echo to one processor.
//!
//! Linux puts the two ends of an exchange on one processor in one run and on two in the next. That changes
//! times more than all the rest: an echo took 9 µs on one processor of a virtual machine, and 30 to 48 µs
//! between two.

use anyhow::Context;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins this process, those that it starts later, and the daemon's task to the last processor.
pub(crate) fn put_together(daemon: u32) -> anyhow::Result<()> {
    let daemon = i32::try_from(daemon).ok().and_then(Pid::from_raw).context("no daemon")?;
    let may = sched_getaffinity(None)?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| may.is_set(cpu));
    let mut one = CpuSet::new();
    one.set(last.context("this process may run nowhere")?);
    sched_setaffinity(None, &one)?;
    Ok(sched_setaffinity(Some(daemon), &one)?)
}

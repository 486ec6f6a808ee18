//! Cost that the library adds to calls that an application makes all the time.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, ensure};
use gpushare_proto::names;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::process::Process;
use gpushare_tests::world::Sharing;
use serde::Serialize;

use super::{Call, Rig, ensure_hooked, median, parsed, tenths};
use crate::output::progress;
use crate::promise::{Bound, Check, Effort};

pub(super) const CHECK: Check = Check {
    name: "hotpath",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("open gate, added to a launch", 1.5, "map lookups"),
        Bound::at_most("open gate with 8 threads at once, added to a launch", 1.5, "map lookups"),
        Bound::at_most("launch window, added to a launch", 11.0, "map lookups"),
        Bound::at_most("allocation within the lease, added", 9.0, "map lookups"),
        Bound::at_most("free, added", 9.0, "map lookups"),
        Bound::at_most("lookup of a function at the start, added", 150.0, "map lookups"),
    ],
    measure: || Ok(measure()?.values()),
};

/// CPU time that calls cost more with the preload than without it.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Hotpath {
    /// A lookup in a hash map behind a mutex, for comparison.
    map_ns: f64,
    gate_ns: f64,
    gate_ns_8_threads: f64,
    /// A launch while another session has a context: counted, and a marker every W/8.
    window_ns: f64,
    /// `cuMemAlloc` while the lease suffices.
    alloc_ns: f64,
    /// `cuMemFree` of that.
    free_ns: f64,
    /// The lookups that libcudart makes when it starts, together.
    resolve_us: f64,
}

/// Pairs of runs, without and with, one after the other so that a slow minute of the machine hits both.
const PAIRS: usize = 7;
/// Pairs of runs of what a process does once.
const STARTS: usize = 25;
/// Lookups of a start, as in `benches/src/hotpath.rs`.
const LOOKUPS: f64 = 481.0;

pub(super) fn measure() -> anyhow::Result<Hotpath> {
    let rig = Rig::build()?;
    let call = |sharing: &Sharing, arguments: &[&str], required: bool| -> anyhow::Result<Call> {
        let mut command = rig.caller(sharing, arguments);
        if required {
            // Without the daemon something else would be measured.
            command.env(names::REQUIRED, "1");
        }
        let call: Call = parsed(command)?;
        ensure_hooked(&call.library, *sharing == Sharing::Preload)?;
        Ok(call)
    };
    let added = |pairs: usize, arguments: &[&str], required: bool| -> anyhow::Result<(f64, f64)> {
        progress(format_args!("measuring {}", arguments.join(" ")));
        let (mut calls, mut frees) = (Vec::new(), Vec::new());
        for _ in 0..pairs {
            let with = call(&Sharing::Preload, arguments, required)?;
            let without = call(&Sharing::Native, arguments, required)?;
            calls.push(with.call_ns - without.call_ns);
            frees.push(with.free_ns - without.free_ns);
        }
        Ok((tenths(median(calls)), tenths(median(frees))))
    };
    let map_ns = rig.map_ns()?;
    let (gate_ns, _) = added(PAIRS, &["--threads", "1"], false)?;
    let (gate_ns_8_threads, _) = added(PAIRS, &["--threads", "8"], false)?;
    let (resolve_ns, _) = added(STARTS, &["--call", "resolve"], false)?;
    let _daemon = Daemon::start(&rig.world, &[])?;
    let (alloc_ns, free_ns) = added(PAIRS, &["--call", "memory", "--batches", "5000"], true)?;
    let (window_ns, _) = {
        let _rival = rival(&rig)?;
        added(PAIRS, &["--threads", "1", "--context"], true)?
    };
    let resolve_us = tenths(resolve_ns / 1e3);
    Ok(Hotpath { map_ns, gate_ns, gate_ns_8_threads, window_ns, alloc_ns, free_ns, resolve_us })
}

/// A process of another session that has a context, until it is dropped.
fn rival(rig: &Rig) -> anyhow::Result<Process> {
    let mut command = rig.caller(&Sharing::session("rival"), &["--call", "hold"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut rival = Process::start(command, rig.world.folder(), "rival")?;
    let stdout = rival.take_stdout().context("the rival has no stdout")?;
    let mut ready = String::new();
    BufReader::new(stdout).read_line(&mut ready)?;
    ensure!(!ready.is_empty(), "the rival has no context: {}", rival.stderr().trim());
    Ok(rival)
}

impl Hotpath {
    /// Values of the promises, in the order of their bounds.
    pub(super) fn values(&self) -> Vec<f64> {
        let Self { map_ns, gate_ns, gate_ns_8_threads, window_ns, alloc_ns, free_ns, resolve_us } = *self;
        let costs = [gate_ns, gate_ns_8_threads, window_ns, alloc_ns, free_ns, resolve_us * 1e3 / LOOKUPS];
        costs.map(|nanos| nanos / map_ns).to_vec()
    }
}

impl fmt::Display for Hotpath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { map_ns, gate_ns, gate_ns_8_threads, window_ns, alloc_ns, free_ns, resolve_us } = self;
        write!(
            f,
            "an open gate adds {gate_ns} ns to a launch, {gate_ns_8_threads} ns of CPU time with 8 threads at once, \
             {window_ns} ns through the window; an allocation costs {alloc_ns} ns more, a free {free_ns} ns, the lookups of a \
             start {resolve_us} us; a lookup in a hash map takes {map_ns:.1} ns"
        )
    }
}

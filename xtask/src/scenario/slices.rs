//! Turns of two programs that fit the card together, so that no memory moves and switches overlap: what both
//! get together, their shares by weight, and bursts of high priority.
//!
//! The programs' kernels take 2 ms, and a few are always in flight. A part is a program's rate beside the other
//! ÷ its rate alone in the same run, so the sum of both parts is 1 if switches cost nothing.
//!
//! Beside bursts all times are five times those of a real card: its slices and their changes, the kernels of the
//! loop and the bursts. A priority does not change how the card slices, so a burst gains little on it. It pays for
//! request, grant and open gate, and two cores that also play the card need 0.5 ms for these beside a loop (0.1 ms
//! without one). That would be a fifth of a burst of 1 ms in slices of 2 ms (docs/results/scheduling.md).

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::{Sharing, World};
use gpushare_workload::report::percentile;

use crate::output::progress;

use super::fairness::SLOW_CARD;
use super::load::{self, Load, Steps};

/// Time of one step: a kernel that reads and writes one of eight buffers, on the slow card.
const STEP: Duration = Duration::from_millis(2);
const LOOP: Load<'static> = Load {
    name: "loop",
    compute_limit: None,
    memory: Bytes::mib(8),
    steps: 0,
    work: &["--async-ahead", "4"],
};
const ALONE: Duration = Duration::from_secs(3);

/// Times as long as those of a real card.
const SCALE: u32 = 5;
/// Flags for slices of 10 ms, of which each change takes 1 ms.
const SCALED_SLICES: [&str; 4] = ["--slice-us", "10000", "--slice-change-us", "1000"];
/// Bursts of 5 ms.
const BURST: Load<'static> = Load {
    name: "burst",
    compute_limit: None,
    memory: Bytes::mib(4 * SCALE as u64),
    steps: 100,
    work: &["--every", "200ms"],
};
const EVERY: Duration = Duration::from_millis(200);
const ROUNDS: usize = 2;

/// Flags of `run` for both programs, flags of their daemon, and the time for which they are measured.
pub(super) struct Pair {
    pub(super) name: &'static str,
    pub(super) run: [&'static [&'static str]; 2],
    pub(super) daemon: &'static [&'static str],
    pub(super) window: Duration,
    /// Parts of the card that they are expected to get.
    pub(super) due: [f64; 2],
}

/// Returns the part of its rate alone that each program of a pair has beside the other.
pub(super) fn parts(artifacts: &Artifacts, pair: &Pair) -> anyhow::Result<[f64; 2]> {
    let world = World::with_card_flags(artifacts, &SLOW_CARD)?;
    let _daemon = Daemon::start(&world, pair.daemon)?;
    let before = rate_alone(&world, 1)?;
    let loads = [0, 1].map(|number| Load {
        name: ["first", "second"][number],
        steps: load::lasting(pair.window, STEP, pair.due[number]),
        ..LOOP
    });
    let steps = load::run_as(&world, &loads, |load| {
        let number = usize::from(load.name == "second");
        Sharing::session(load.name).and(pair.run[number])
    })?;
    let window = load::together(&steps, pair.window)?;
    let alone = (before + rate_alone(&world, 1)?) / 2.0;
    let parts: Vec<f64> = steps.iter().map(|steps| steps.rate(&window) / alone).collect();
    progress(format_args!("{}: parts {parts:.3?} of {alone:.1} steps a second alone", pair.name));
    parts.try_into().ok().context("two programs have two rates")
}

fn rate_alone(world: &World, scale: u32) -> anyhow::Result<f64> {
    let steps = load::run(world, &[looping(ALONE, scale)])?;
    Ok(steps[0].rate(&load::together(&steps, ALONE)?))
}

/// A loop whose kernels take this many times [`STEP`], for a bit longer than `time`.
fn looping(time: Duration, scale: u32) -> Load<'static> {
    let memory = Bytes(LOOP.memory.0 * u64::from(scale));
    Load { memory, steps: load::lasting(time, STEP * scale, 1.0), ..LOOP }
}

/// Returns the median and the p99 of bursts with high priority beside a loop, each ÷ that of the card's own
/// slicing, and the part of its rate alone, less the bursts' own time, that the loop keeps.
pub(super) fn urgent(artifacts: &Artifacts) -> anyhow::Result<[f64; 3]> {
    let (mut natively, mut urgently, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let world = World::with_card_flags(artifacts, &[SLOW_CARD, SCALED_SLICES].concat())?;
        let both = [looping(EVERY * BURST.steps, SCALE), BURST];
        natively.extend(load::run_natively(&world, &both)?[1].latencies());
        let _daemon = Daemon::start(&world, &[])?;
        let alone = load::run(&world, &[BURST])?[0].latencies();
        let rate = rate_alone(&world, SCALE)?;
        let steps = load::run_as(&world, &both, |load| {
            let priority = if load.name == BURST.name { "high" } else { "normal" };
            Sharing::session(load.name).and(&["--priority", priority])
        })?;
        urgently.extend(steps[1].latencies());
        let busy = Duration::from(percentile(&alone, 50)).as_secs_f64() / EVERY.as_secs_f64();
        kept.push(loop_rate(&steps)? / (rate * (1.0 - busy)));
    }
    natively.sort_unstable();
    urgently.sort_unstable();
    let at = |times: &[Nanos], percent| Duration::from(percentile(times, percent));
    for (what, times) in [("by the card's own slicing", &natively), ("with high priority", &urgently)] {
        progress(format_args!(
            "a burst of 5 ms beside a loop {what}: p50 {:?}, p99 {:?}",
            at(times, 50),
            at(times, 99)
        ));
    }
    let ratio = |percent| at(&urgently, percent).as_secs_f64() / at(&natively, percent).as_secs_f64();
    progress(format_args!("the loop keeps {kept:.3?} of its rate"));
    let kept = kept.iter().sum::<f64>() / kept.len() as f64;
    Ok([ratio(50), ratio(99), kept])
}

/// Rate of the loop from the first burst to the last.
fn loop_rate(steps: &[Steps]) -> anyhow::Result<f64> {
    let [looping, bursts] = steps else {
        anyhow::bail!("there are {} programs in place of two", steps.len())
    };
    let begin = *bursts.begins.first().context("there was no burst")?;
    let end = *bursts.ends.last().context("no burst ended")?;
    Ok(looping.rate(&(begin..end)))
}

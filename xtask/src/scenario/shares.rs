//! Compute limits, as rates: what a program under a limit gets of the rate that it has alone.
//!
//! The rate is that of its steps over ten seconds, in which it always has work. Programs under limits that run at once are measured
//! over the same ten seconds.

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::training::Training;
use gpushare_tests::world::{Sharing, World};

use crate::output::progress;
use crate::programs;

use super::promise::{Promise, Promises};

/// Within so many points of the limit.
const TOLERANCE: f64 = 2.0;
const WINDOW: Duration = Duration::from_secs(10);
/// Before it: programs start, and hear of each other.
const START: Duration = Duration::from_secs(1);
const CARD: Bytes = Bytes::mib(256);
const MEMORY: Bytes = Bytes::mib(16);
/// A step, of which a few are always in flight.
const STEP: Duration = Duration::from_millis(4);

pub(crate) fn run() -> anyhow::Result<Promises> {
    let artifacts = programs::release()?;
    let alone = rates(&artifacts, &[None])?[0];
    progress(format_args!("{alone:.1} steps a second alone, without a limit"));
    let mut rows = Vec::new();
    for (names, limits) in [
        (&["25% alone"][..], &[25][..]),
        (&["50% alone"], &[50]),
        (&["75% alone"], &[75]),
        (&["25% beside 75%", "75% beside 25%"], &[25, 75]),
        (&["30% beside 60%", "60% beside 30%"], &[30, 60]),
    ] {
        let given: Vec<Option<u32>> = limits.iter().copied().map(Some).collect();
        for ((rate, limit), name) in rates(&artifacts, &given)?.iter().zip(limits).zip(names) {
            let percent = 100.0 * rate / alone;
            progress(format_args!("{name}: {percent:.2}%"));
            rows.push(Promise::within(name, f64::from(*limit), TOLERANCE, percent, "%"));
        }
    }
    Ok(Promises::new(rows))
}

/// Steps a second of programs that run at once, each under its limit.
fn rates(artifacts: &Artifacts, limits: &[Option<u32>]) -> anyhow::Result<Vec<f64>> {
    let world = World::simulated(artifacts, CARD)?;
    let daemon = Daemon::start(&world, &[])?;
    let steps = (START + WINDOW + START).as_millis() / STEP.as_millis();
    let mut programs = Vec::new();
    for (number, limit) in limits.iter().enumerate() {
        let name = format!("program-{number}");
        let sharing = match limit {
            Some(limit) => Sharing::session(&name).and(&["--compute", &format!("{limit}%")]),
            None => Sharing::session(&name),
        };
        // Enough to last until the window ends under the limit, and not for long after.
        let steps = steps * u128::from(limit.unwrap_or(100)) / 100 * 11 / 10;
        let (steps, step) = (steps.to_string(), format!("{}ms", STEP.as_millis()));
        let flags = [
            "--steps",
            &steps,
            "--compute",
            &step,
            "--async-ahead",
            "4",
            "--trace",
        ];
        programs.push(Training::start(&world, &sharing, &name, MEMORY, &flags)?);
    }
    let mut traces = Vec::new();
    for program in &mut programs {
        let report = program.report()?;
        anyhow::ensure!(report.ok, "{} buffers are wrong", report.corrupted);
        traces.push(report.step_ends_ns.context("the program told no times")?);
    }
    drop(daemon);
    let begins = traces.iter().filter_map(|ends| ends.first()).max();
    let begins = begins.copied().unwrap_or_default() + nanos(START);
    let ends = begins + nanos(WINDOW);
    traces
        .iter()
        .map(|trace| {
            anyhow::ensure!(
                trace.last().is_some_and(|last| *last >= ends),
                "a program ended before its ten seconds were over"
            );
            let within = trace.iter().filter(|at| (begins..ends).contains(at)).count();
            Ok(within as f64 / WINDOW.as_secs_f64())
        })
        .collect()
}

fn nanos(span: Duration) -> Nanos {
    Nanos(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX))
}

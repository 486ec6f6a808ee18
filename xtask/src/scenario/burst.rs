//! How soon a rare burst is served beside a program that always has work, and what that costs the program.
//!
//! Where both fit, the burst shares the card. Where they do not, its memory must come in and the other's go
//! out: the **floor** is the bytes that do not fit ÷ the rate at which they exchange, measured on the same
//! card without gpushare, and the burst's own time alone. Beside that the program must drain, as long as it
//! did in the same run.

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;
use gpushare_workload::report::percentile;

use crate::output::progress;
use crate::programs;
use crate::promise::{Bound, Check, Effort};

use super::fairness::{CARD, SHARED_MEMORY, SHARED_WORK, SLOW_CARD, TURNS_WORK};
use super::load::{self, Load};
use super::moving;
use super::slices;
use super::watch::{Watch, median};

/// Beyond its time alone, where both fit.
const BESIDE: Duration = Duration::from_millis(20);
/// Beyond floor and drain, where they do not.
const IN_TURNS: Duration = Duration::from_millis(50);
const ROUNDS: usize = 2;
/// In each round.
const SHORT_BURSTS: u32 = 75;
const OFTEN: Duration = Duration::from_millis(200);
const LONG_BURSTS: u32 = 8;
const SELDOM: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(4);
/// Nearly the whole card, so that most of what bursts must come in.
const HOG: Bytes = Bytes::mib(240);
const BURST: Bytes = Bytes::mib(96);
/// A burst: touches all memory, and waits.
const BURST_WORK: [&str; 4] = ["--passes", "0", "--compute", "100ms"];
/// Before the first burst's drain was seen.
const USUAL_DRAIN: Duration = Duration::from_millis(10);

pub(super) const CHECK: Check = Check {
    name: "burst",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("p99 of a burst beside a program that fits / (p99 alone + 20 ms)", 1.0, "×"),
        Bound::at_most("p50 of a burst with high priority / by the card's own slicing", 1.0, "×"),
        Bound::at_most("p99 of a burst with high priority / by the card's own slicing", 1.1, "×"),
        Bound::at_least("rate of the program beside those bursts / its own less their time", 0.95, "×"),
        Bound::at_most("first result of a burst in turns / (floor + drain + 50 ms)", 1.0, "×"),
        Bound::at_least("rate of the program beside bursts in turns / its rate alone", 0.90, "×"),
    ],
    measure: run,
};

fn run() -> anyhow::Result<Vec<f64>> {
    let artifacts = programs::release()?;
    let beside = beside(&artifacts)?;
    let urgent = slices::urgent(&artifacts)?;
    let in_turns = in_turns(&artifacts)?;
    Ok([&[beside][..], &urgent, &in_turns].concat())
}

/// Bursts every 200 ms, alone and beside a hog that fits, in alternation. What the card makes of both
/// without gpushare is told too, since where both fit the card shares itself.
fn beside(artifacts: &Artifacts) -> anyhow::Result<f64> {
    let (mut alone, mut beside, mut natively) = (Vec::new(), Vec::new(), Vec::new());
    let every = format!("{}ms", OFTEN.as_millis());
    let burst = Load {
        name: "burst",
        compute_limit: None,
        memory: SHARED_MEMORY,
        steps: SHORT_BURSTS,
        work: &["--passes", "2", "--every", &every],
    };
    let hog = Load {
        name: "hog",
        steps: load::lasting(OFTEN * SHORT_BURSTS, STEP, 1.0),
        work: &SHARED_WORK,
        ..burst.clone()
    };
    for _ in 0..ROUNDS {
        for (loads, times) in
            [(&[burst.clone()][..], &mut alone), (&[burst.clone(), hog.clone()], &mut beside)]
        {
            let world = World::with_card_flags(artifacts, &SLOW_CARD)?;
            let _daemon = Daemon::start(&world, &[])?;
            times.extend(load::run(&world, loads)?[0].latencies());
        }
        let world = World::with_card_flags(artifacts, &SLOW_CARD)?;
        let both = [burst.clone(), hog.clone()];
        natively.extend(load::run_natively(&world, &both)?[0].latencies());
    }
    alone.sort_unstable();
    beside.sort_unstable();
    natively.sort_unstable();
    let at = |times: &[Nanos], percent| Duration::from(percentile(times, percent));
    let (solo, p99) = (at(&alone, 99), at(&beside, 99));
    for (what, times) in
        [("alone", &alone), ("beside a hog", &beside), ("beside it without gpushare", &natively)]
    {
        progress(format_args!(
            "a burst {what}: p50 {:?}, p99 {:?}, worst {:?}",
            at(times, 50),
            at(times, 99),
            at(times, 100)
        ));
    }
    Ok(p99.as_secs_f64() / (solo + BESIDE).as_secs_f64())
}

/// Bursts that need the hog's room.
fn in_turns(artifacts: &Artifacts) -> anyhow::Result<[f64; 2]> {
    let world = World::simulated(artifacts, CARD)?;
    let constants = world.card().context("there is no simulated card")?.stats()?.constants;
    let capacity = constants.memory - 2 * constants.context_memory;
    let rate = moving::rate(&world, HOG)?;
    let moves = moving::time(Bytes((HOG.0 + BURST.0) - capacity), rate);
    progress(format_args!("{rate} a second move to a full card"));
    let _daemon = Daemon::start(&world, &[])?;

    let burst = Load {
        name: "burst",
        compute_limit: None,
        memory: BURST,
        steps: LONG_BURSTS,
        work: &BURST_WORK,
    };
    let solo = load::run(&world, std::slice::from_ref(&burst))?.remove(0).latencies();
    let solo = Duration::from(percentile(&solo, 50));
    let s = moves + USUAL_DRAIN;
    let every = SELDOM.max(20 * (2 * s + solo));
    let floor = moves + solo;
    progress(format_args!("a burst takes {solo:?} alone, the floor is {floor:?}; one every {every:?}"));

    let stretch = every * LONG_BURSTS;
    let hog = |time| Load {
        name: "hog",
        memory: HOG,
        steps: load::lasting(time, STEP, 1.0),
        work: &TURNS_WORK,
        ..burst.clone()
    };
    let alone = Duration::from_secs(10);
    let hog_alone = || -> anyhow::Result<f64> {
        let steps = load::run(&world, &[hog(alone)])?;
        Ok(steps[0].rate(&load::together(&steps, alone)?))
    };
    let before = hog_alone()?;
    let watch = Watch::start(&world)?;
    let every = format!("{}ns", every.as_nanos());
    let work = [&BURST_WORK[..], &["--every", &every]].concat();
    let both = [hog(stretch), Load { work: &work, ..burst.clone() }];
    let done = load::run(&world, &both)?;
    let turns = watch.end()?;
    let after = hog_alone()?;

    // From the first burst to when there would be one more.
    let begins = *done[1].begins.first().context("there was no burst")?;
    let window = begins..begins + Nanos::from(stretch);
    let kept = done[0].rate(&window) / ((before + after) / 2.0);
    let worst = done[1].latencies().last().copied().unwrap_or_default();
    let drain = Duration::from(median(&turns.drains));
    progress(format_args!(
        "bursts beside a hog: {:?}; drains {:?}; the hog has {before:.1} and {after:.1} steps a second alone",
        done[1].latencies(),
        turns.drains
    ));
    let promised = floor + drain + IN_TURNS;
    Ok([Duration::from(worst).as_secs_f64() / promised.as_secs_f64(), kept])
}

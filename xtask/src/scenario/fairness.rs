//! Equal programs get equal parts, a limited session takes nothing from those beside it, and its processes
//! share its limit.
//!
//! Where programs share the card their steps are work that takes longer when others have it too: one pass
//! over a buffer, on a card whose memory is slow enough for that. Where they take turns a step is a wait on
//! the card, which costs the host nothing.

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::world::World;

use crate::output::progress;
use crate::programs;
use crate::promise::{Bound, Check, Effort};

use super::load::{self, Load, Steps};
use super::one_limit;
use super::slices::{self, Pair};

pub(super) const WINDOW: Duration = Duration::from_secs(10);
/// Long enough for ten turns of each.
const LONG_WINDOW: Duration = Duration::from_secs(80);
pub(super) const STEP: Duration = Duration::from_millis(4);
const ROUNDS: usize = 2;

/// 2 MiB are read and written in 4 ms.
pub(super) const SLOW_CARD: [&str; 4] = ["--memory", "256MiB", "--kernel-rate", "1GB"];
/// One of eight buffers of 2 MiB.
pub(super) const SHARED_MEMORY: Bytes = Bytes::mib(16);
pub(super) const SHARED_WORK: [&str; 2] = ["--async-ahead", "4"];
pub(super) const CARD: Bytes = Bytes::mib(256);
/// Touches all memory, and waits.
pub(super) const TURNS_WORK: [&str; 6] = ["--passes", "0", "--compute", "4ms", "--async-ahead", "4"];

pub(super) const CHECK: Check = Check {
    name: "fairness",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_least("Jain's index of four equal programs that fit", 0.99, ""),
        Bound::at_least("Jain's index of four equal programs of which two fit", 0.99, ""),
        Bound::at_least("two free sessions beside one limited to 25% / beside the same unlimited", 0.98, "×"),
        Bound::near("two processes of a session limited to 40%, together", 40.0, 2.0, "%"),
        Bound::near("first of two processes of a session limited to 40%", 20.0, 2.0, "%"),
        Bound::near("second of two processes of a session limited to 40%", 20.0, 2.0, "%"),
        Bound::near("process of a session limited to 40% while the other idles", 40.0, 2.0, "%"),
        Bound::at_least("two programs that fit in slices of 20 ms, together / one alone", 0.98, "×"),
        Bound::at_least("two programs that fit in slices of 40 ms, together / one alone", 0.98, "×"),
    ],
    measure: run,
};

fn run() -> anyhow::Result<Vec<f64>> {
    let artifacts = programs::release()?;
    let fits = jain(&hogs(&artifacts, Fit::Together)?);
    progress(format_args!("four programs that fit: Jain {fits:.4}"));
    let in_turns = jain(&hogs(&artifacts, Fit::TwoAtOnce)?);
    progress(format_args!("four programs of which two fit: Jain {in_turns:.4}"));
    let mut values = vec![fits, in_turns, beside_a_limit(&artifacts)?];
    values.extend(one_limit::percents(&artifacts)?);
    for slices in [
        slices_of(&["--mode", "time-sliced", "--quantum", "20ms"]),
        slices_of(&["--mode", "time-sliced", "--quantum", "40ms"]),
    ] {
        values.push(slices::parts(&artifacts, &slices)?.iter().sum());
    }
    Ok(values)
}

/// Two equal programs in time slices of a fixed length.
const fn slices_of(quantum: &'static [&'static str]) -> Pair {
    Pair {
        name: "two equal programs in time slices",
        run: [&[]; 2],
        daemon: quantum,
        window: WINDOW,
        due: [0.5; 2],
    }
}

/// Whether four hogs take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fit {
    Together,
    TwoAtOnce,
}

/// Steps a second of four equal programs that always have work.
fn hogs(artifacts: &Artifacts, fit: Fit) -> anyhow::Result<Vec<f64>> {
    let (world, memory, work, window, share) = match fit {
        Fit::Together => {
            (World::with_card_flags(artifacts, &SLOW_CARD)?, SHARED_MEMORY, &SHARED_WORK[..], WINDOW, 0.25)
        }
        Fit::TwoAtOnce => {
            (World::simulated(artifacts, CARD)?, Bytes::mib(100), &TURNS_WORK[..], LONG_WINDOW, 0.5)
        }
    };
    let _daemon = Daemon::start(&world, &[])?;
    let loads = ["first", "second", "third", "fourth"].map(|name| Load {
        name,
        compute_limit: None,
        memory,
        steps: load::lasting(window, STEP, share),
        work,
    });
    let steps = load::run(&world, &loads)?;
    let window = load::together(&steps, window)?;
    Ok(steps.iter().map(|steps| steps.rate(&window)).collect())
}

/// 1 where all have the same, and one over their number where one has all.
fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

/// The lesser of what two free sessions gain where the third is limited.
fn beside_a_limit(artifacts: &Artifacts) -> anyhow::Result<f64> {
    let (mut limited, mut unlimited) = ([0.0; 2], [0.0; 2]);
    for _ in 0..ROUNDS {
        for (limit, sums) in [(None, &mut unlimited), (Some(25), &mut limited)] {
            let rates = beside(artifacts, limit)?;
            progress(format_args!(
                "two free sessions beside one with the limit {limit:?}: {:.1} and {:.1} steps a second",
                rates[0], rates[1]
            ));
            for (sum, rate) in sums.iter_mut().zip(rates) {
                *sum += rate;
            }
        }
    }
    Ok((limited[0] / unlimited[0]).min(limited[1] / unlimited[1]))
}

fn beside(artifacts: &Artifacts, limit: Option<u32>) -> anyhow::Result<Vec<f64>> {
    let world = World::with_card_flags(artifacts, &SLOW_CARD)?;
    let _daemon = Daemon::start(&world, &[])?;
    // A program that may run for a quarter of the time leaves the rest to the two others.
    let (free, third) = match limit {
        Some(_) => (0.46, 0.1),
        None => (0.34, 0.34),
    };
    let shares = [("free-1", None, free), ("free-2", None, free), ("third", limit, third)];
    let loads = shares.map(|(name, compute_limit, share)| Load {
        name,
        compute_limit,
        memory: SHARED_MEMORY,
        steps: load::lasting(WINDOW, STEP, share),
        work: &SHARED_WORK,
    });
    let steps: Vec<Steps> = load::run(&world, &loads)?;
    let window = load::together(&steps, WINDOW)?;
    Ok(steps[..2].iter().map(|steps| steps.rate(&window)).collect())
}

#[cfg(test)]
mod tests {
    use super::jain;

    #[test]
    fn the_index_is_one_for_equals_and_a_quarter_where_one_of_four_has_all() {
        assert_eq!(jain(&[3.0, 3.0, 3.0, 3.0]), 1.0);
        assert_eq!(jain(&[8.0, 0.0, 0.0, 0.0]), 0.25);
    }
}

//! Comparison of the model of a card with the core: the same pods on one card, by the model, and by the core
//! with processes that answer as the library does.

use std::fmt::Write as _;

use anyhow::Context;
use gpushare_proto::{Bytes, Nanos};

use super::Cluster;
use super::placement::Placement;
use super::pods::{Pod, Pods};
use super::run;
use crate::sim::engine;
use crate::sim::policy::gpushare::Gpushare;
use crate::sim::trace::Trace;

/// Greatest error of a pod's end where memory fits, in percent of its time by the core.
pub(super) const FITTING_ERROR: f64 = 2.0;
/// Greatest time by which a pod ends too early where pods take turns, in percent.
pub(super) const EARLY_ERROR: f64 = 10.0;
/// Greatest time by which a pod ends too late where pods take turns, in percent.
pub(super) const LATE_ERROR: f64 = 60.0;

/// Pods on one card: memory in GiB, needed thousandths of the card, seconds of a burst, seconds alone on a card.
type Mix = &'static [(u64, u32, u64, u64)];

/// Mixes on a card of 80 GiB: with memory that fits, and with turns.
const MIXES: [Mix; 12] = [
    &[(30, 1000, 1, 1200), (30, 1000, 1, 2400)],
    &[(20, 1000, 1, 1200), (20, 100, 4, 3600), (20, 250, 5, 2400)],
    &[(10, 200, 2, 3600), (10, 300, 3, 3600), (10, 400, 4, 3600), (10, 500, 5, 3600)],
    &[(60, 1000, 1, 1200), (60, 1000, 1, 1200)],
    &[(60, 1000, 1, 1200), (50, 1000, 1, 1800), (70, 1000, 1, 2400)],
    &[(70, 1000, 1, 3600), (40, 100, 5, 3600)],
    &[(60, 700, 1, 2400), (70, 800, 2, 2400)],
    &[(60, 500, 2, 3600), (70, 500, 5, 3600), (50, 900, 8, 1800), (16, 20, 2, 3600)],
    &[(70, 600, 3, 2400), (20, 100, 5, 2400), (60, 1000, 1, 1200)],
    &[(70, 600, 3, 3600), (40, 20, 3, 3600)],
    &[(30, 800, 4, 2400), (40, 300, 3, 3600), (30, 600, 2, 2400)],
    &[(40, 100, 5, 3600), (40, 150, 5, 3600), (40, 50, 5, 3600), (40, 200, 5, 3600)],
];

/// Greatest differences between the times at which a pod ends, in percent of the core's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Errors {
    /// Error in either direction where the memory of the pods fits.
    pub(super) fitting: f64,
    /// Time by which the model is too early where pods take turns.
    pub(super) early: f64,
    /// Time by which the model is too late where pods take turns.
    pub(super) late: f64,
}

/// Compares the model with the core for all mixes.
pub(super) fn greatest_errors() -> anyhow::Result<Errors> {
    let mut greatest = Errors::default();
    for mix in MIXES {
        let fits = mix.iter().map(|(memory, ..)| memory).sum::<u64>() <= 80;
        for error in errors(mix)? {
            if fits {
                greatest.fitting = greatest.fitting.max(error.abs());
            } else {
                greatest.early = greatest.early.max(-error);
                greatest.late = greatest.late.max(error);
            }
        }
    }
    Ok(greatest)
}

/// Returns by how many percent each pod ends later by the model than by the core.
fn errors(mix: Mix) -> anyhow::Result<Vec<f64>> {
    let (core, model) = (by_core(mix)?, by_model(mix));
    let error = |(core, model): (Nanos, Nanos)| (model.0 as f64 / core.0 as f64 - 1.0) * 100.0;
    Ok(core.into_iter().zip(model).map(error).collect())
}

fn by_core(mix: Mix) -> anyhow::Result<Vec<Nanos>> {
    let mut text = "until = '7d'\nmemory = '80GiB'\n".to_owned();
    for (nth, (memory, compute, burst, runs)) in mix.iter().enumerate() {
        let work = runs * 1000 * u64::from(*compute) / 1000;
        let every = burst * 1_000_000 / u64::from(*compute);
        let program = match compute {
            1000 => "'hog'".to_owned(),
            _ => format!("{{ bursts = {{ work = '{burst}s', every = '{every}ms' }} }}"),
        };
        let _ = writeln!(
            text,
            "[[sessions]]\nname = 'pod-{nth}'\nmemory = '{memory}GiB'\nprogram = {program}\nwork = '{work}ms'"
        );
    }
    let trace = Trace::parse("mix", &text)?;
    let policy = Gpushare::new(trace.config.clone(), &trace.machine, trace.tenants.len());
    let ended = engine::run(&trace, policy).ended;
    ended
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .context("a pod of the mix did not end")
}

fn by_model(mix: Mix) -> Vec<Nanos> {
    let pod = |&(memory, compute, burst, runs): &(u64, u32, u64, u64)| Pod {
        arrives: Nanos::ZERO,
        runs: Nanos::from_secs(runs),
        memory: Bytes::gib(memory),
        compute,
        burst: Nanos::from_secs(burst),
    };
    let pods = Pods::new("mix", mix.iter().map(pod).collect());
    let cluster = Cluster { nodes: 1, cards: 1, shares: 100, ..super::USUAL };
    let outcome = run::run(&cluster, Placement::SharesSpread, &pods);
    outcome.ends.iter().map(|end| end.ended).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_ends_each_pod_when_the_core_does_within_its_bounds() {
        let Errors { fitting, early, late } = greatest_errors().unwrap();
        assert!(fitting <= FITTING_ERROR, "{fitting}");
        assert!(early <= EARLY_ERROR, "{early}");
        assert!(late <= LATE_ERROR, "{late}");
    }
}

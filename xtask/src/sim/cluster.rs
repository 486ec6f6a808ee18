//! `cargo xtask sim cluster`: pods that arrive at a cluster of many nodes, under several ways to place them.
//!
//! ```text
//!   generator, or a CSV file ─▶ pods ─▶ queue ─ placement ─▶ cards, each a model ─▶ table, JSON
//! ```
//!
//! A card here is a fluid model and not the core itself, so that thousands of pods take seconds.
//! [`agreement`] compares it with the core's own decisions on the same card. Nothing here is a measurement.

pub(super) mod agreement;
mod card;
mod generator;
mod placement;
mod pods;
mod report;
mod run;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::Args;
use gpushare_proto::Bytes;

use self::placement::Placement;
use self::pods::Pods;
use self::report::{Report, Row};
use crate::promise::{Bound, Check, Effort};

/// Options of `cargo xtask sim cluster`.
#[derive(Args)]
pub(super) struct Options {
    /// Pods to simulate, in CSV (docs/results/cluster.md); without it they are generated
    file: Option<PathBuf>,
    /// Print the report as a table of Markdown
    #[arg(long)]
    pub(super) markdown: bool,
    #[command(flatten)]
    cluster: Cluster,
}

/// Nodes of a cluster, and the pods that are generated for it.
#[derive(Args, Clone, Copy, Debug)]
pub(super) struct Cluster {
    /// Nodes of the cluster, all alike
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    nodes: u16,
    /// Cards of each node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    cards: u16,
    /// Memory of each card
    #[arg(long, default_value_t = USUAL.memory, value_name = "SIZE")]
    memory: Bytes,
    /// Shares of each card, and replicas of time slicing
    #[arg(long, default_value_t = USUAL.shares, value_parser = clap::value_parser!(u16).range(1..=1000))]
    shares: u16,
    /// Pods of the generated trace
    #[arg(long, default_value_t = USUAL.pods, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pods: u32,
    /// Seed of the generated trace
    #[arg(long, default_value_t = USUAL.seed)]
    seed: u64,
}

/// Cluster of the flags' defaults, on which the scoreboard's rows are computed.
const USUAL: Cluster =
    Cluster { nodes: 200, cards: 2, memory: Bytes::gib(80), shares: 4, pods: 5000, seed: 1 };

/// Runs pods of a file, or generated ones, under each placement.
pub(super) fn simulate(options: &Options) -> anyhow::Result<Report> {
    let pods = match &options.file {
        Some(file) => Pods::load(file, options.cluster.memory)?,
        None => generator::pods(&options.cluster),
    };
    Ok(compare(&options.cluster, &pods))
}

/// Runs pods under each placement.
fn compare(cluster: &Cluster, pods: &Pods) -> Report {
    let rows = Placement::ALL
        .map(|placement| Row::of(placement, cluster, pods, &run::run(cluster, placement, pods)));
    Report {
        trace: pods.name.clone(),
        nodes: cluster.nodes,
        cards: u32::from(cluster.nodes) * u32::from(cluster.cards),
        pods: pods.pods.len(),
        shares: cluster.shares,
        rows: rows.to_vec(),
    }
}

pub(super) const CHECK: Check = Check {
    name: "cluster",
    effort: Effort::Counted,
    bounds: &[
        Bound::at_most("cluster model, memory fits: error of a pod's end", agreement::FITTING_ERROR, "%"),
        Bound::at_most(
            "cluster model, turns: a pod ends before it does by the core",
            agreement::EARLY_ERROR,
            "%",
        ),
        Bound::at_most(
            "cluster model, turns: a pod ends after it does by the core",
            agreement::LATE_ERROR,
            "%",
        ),
        Bound::at_most("cluster: mean turnaround with shares / with whole cards", 0.9, "×"),
        Bound::at_most("cluster: p99 of the queue with shares / with whole cards", 0.1, "×"),
        Bound::at_least(
            "cluster: failed attempts with time slicing, which has no memory limits",
            1.0,
            "attempts",
        ),
    ],
    measure: || {
        let report = compare(&USUAL, &generator::pods(&USUAL));
        let row = |placement| report.row(placement);
        let (whole, sliced) = (row(Placement::Whole)?, row(Placement::Sliced)?);
        let shared = row(Placement::SharesSpread)?;
        let errors = agreement::greatest_errors()?;
        Ok(vec![
            errors.fitting,
            errors.early,
            errors.late,
            shared.turnaround_mean_s / whole.turnaround_mean_s,
            shared.queue_p99_s / whole.queue_p99_s,
            sliced.out_of_memory as f64,
        ])
    },
};

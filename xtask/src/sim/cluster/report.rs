//! Report of a trace of pods under each placement: one model, as a table or as JSON.

use std::fmt;

use anyhow::Context;
use gpushare_proto::Nanos;
use gpushare_workload::report::percentile;
use serde::Serialize;

use super::Cluster;
use super::placement::Placement;
use super::pods::Pods;
use super::run::Outcome;
use crate::sim::report::{rounded, seconds};

/// One trace under every placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(super) trace: String,
    pub(super) nodes: u16,
    pub(super) cards: u32,
    pub(super) pods: usize,
    pub(super) shares: u16,
    pub(super) rows: Vec<Row>,
}

/// Results of one placement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) placement: Placement,
    pub(super) done: usize,
    pub(super) failed: usize,
    /// Starts that were out of memory.
    pub(super) out_of_memory: usize,
    /// Time from the arrival to the start that succeeded, of pods that are done.
    pub(super) queue_p50_s: f64,
    pub(super) queue_p95_s: f64,
    pub(super) queue_p99_s: f64,
    /// Time from start to end, divided by the time alone on a card.
    pub(super) slowdown_p50: f64,
    pub(super) slowdown_p95: f64,
    pub(super) slowdown_p99: f64,
    /// Time from the arrival to the end.
    pub(super) turnaround_mean_s: f64,
    /// Work of all cards until the last arrival ÷ time of all cards until then, in percent.
    pub(super) utilisation_percent: f64,
    /// Time of cards with a pod until the last arrival ÷ time of all cards until then, in percent.
    pub(super) occupied_percent: f64,
    pub(super) makespan_s: f64,
}

impl Row {
    pub(super) fn of(placement: Placement, cluster: &Cluster, pods: &Pods, outcome: &Outcome) -> Self {
        let (mut queues, mut slowdowns, mut turnaround) = (Vec::new(), Vec::new(), 0.0);
        for (pod, end) in pods.pods.iter().zip(&outcome.ends) {
            let Some(started) = end.started else { continue };
            queues.push(seconds(started - pod.arrives));
            slowdowns.push(seconds(end.ended - started) / seconds(pod.runs));
            turnaround += seconds(end.ended - pod.arrives);
        }
        queues.sort_by(f64::total_cmp);
        slowdowns.sort_by(f64::total_cmp);
        let first = pods.pods.first().map_or(Nanos::ZERO, |pod| pod.arrives);
        let window = pods.pods.last().map_or(Nanos::ZERO, |pod| pod.arrives) - first;
        let last = outcome.ends.iter().map(|end| end.ended).max().unwrap_or(first);
        let cards = f64::from(cluster.nodes) * f64::from(cluster.cards);
        let available = cards * window.0 as f64;
        let percent = |time: f64| if available > 0.0 { rounded(time / available * 100.0) } else { 0.0 };
        Self {
            placement,
            done: queues.len(),
            failed: pods.pods.len() - queues.len(),
            out_of_memory: outcome.out_of_memory,
            queue_p50_s: rounded(percentile(&queues, 50)),
            queue_p95_s: rounded(percentile(&queues, 95)),
            queue_p99_s: rounded(percentile(&queues, 99)),
            slowdown_p50: rounded(percentile(&slowdowns, 50)),
            slowdown_p95: rounded(percentile(&slowdowns, 95)),
            slowdown_p99: rounded(percentile(&slowdowns, 99)),
            turnaround_mean_s: rounded(turnaround / queues.len().max(1) as f64),
            utilisation_percent: percent(outcome.done_in_window),
            occupied_percent: percent(outcome.occupied.0 as f64),
            makespan_s: rounded(seconds(last - first)),
        }
    }
}

impl Report {
    pub(super) fn row(&self, placement: Placement) -> anyhow::Result<&Row> {
        let row = self.rows.iter().find(|row| row.placement == placement);
        row.with_context(|| format!("no row of {placement:?}"))
    }

    /// Returns the table as Markdown, as docs/results/cluster.md has it.
    pub(crate) fn markdown(&self) -> String {
        let line = |first: &str, cells: Vec<String>| format!("| {first} | {} |\n", cells.join(" | "));
        let heads = self.rows.iter().map(|row| row.placement.head().join(" ")).collect();
        let mut text = line(&format!("{} nodes, {} cards", self.nodes, self.cards), heads);
        text += &format!("|{}\n", "---|".repeat(self.rows.len() + 1));
        for (what, figure) in LINES {
            text += &line(what, self.rows.iter().map(figure).collect());
        }
        text
    }
}

/// Returns a number without a fraction, with a comma before each three digits.
pub(super) fn whole(number: f64) -> String {
    let digits = format!("{number:.0}");
    let groups: Vec<&[u8]> = digits.as_bytes().rchunks(3).rev().collect();
    String::from_utf8_lossy(&groups.join(&b',')).into_owned()
}

/// Line of the table: its label, and the text for one placement.
type Line = (&'static str, fn(&Row) -> String);

const LINES: [Line; 13] = [
    ("pods that were done", |row| whole(row.done as f64)),
    ("failed pods", |row| whole(row.failed as f64)),
    ("starts out of memory", |row| whole(row.out_of_memory as f64)),
    ("time in the queue, p50, s", |row| whole(row.queue_p50_s)),
    ("time in the queue, p95, s", |row| whole(row.queue_p95_s)),
    ("time in the queue, p99, s", |row| whole(row.queue_p99_s)),
    ("slowdown, p50", |row| format!("{:.2}", row.slowdown_p50)),
    ("slowdown, p95", |row| format!("{:.2}", row.slowdown_p95)),
    ("slowdown, p99", |row| format!("{:.2}", row.slowdown_p99)),
    ("turnaround, mean, s", |row| whole(row.turnaround_mean_s)),
    ("utilisation, %", |row| format!("{:.1}", row.utilisation_percent)),
    ("cards with a pod, %", |row| format!("{:.1}", row.occupied_percent)),
    ("makespan, s", |row| whole(row.makespan_s)),
];

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, nodes, cards, pods, shares, rows } = self;
        writeln!(f, "{trace}: {pods} pods, {nodes} nodes, {cards} cards, {shares} shares of each card")?;
        for nth in 0..2 {
            write!(f, "{:<28}", "")?;
            rows.iter().try_for_each(|row| write!(f, "{:>10}", row.placement.head()[nth]))?;
            if nth == 0 {
                writeln!(f)?;
            }
        }
        for (what, figure) in LINES {
            write!(f, "\n{what:<28}")?;
            rows.iter().try_for_each(|row| write!(f, "{:>10}", figure(row)))?;
        }
        Ok(())
    }
}

//! Report of a trace under each scheduler: one model, as a table or as JSON.

use std::fmt;

use gpushare_proto::Nanos;
use gpushare_workload::report::percentile;
use serde::Serialize;

use super::engine::Outcome;
use super::trace::Trace;

/// One trace under every scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) trace: String,
    pub(super) gpus: u8,
    pub(super) sessions: usize,
    pub(super) rows: Vec<Row>,
}

/// Results of one scheduler.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) policy: &'static str,
    /// Sessions that did all of their work.
    pub(super) ended: usize,
    /// From the first arrival to the last end; none if anybody was not done.
    pub(super) makespan_s: Option<f64>,
    /// Stays at a closed gate.
    pub(super) wait_p50_s: f64,
    pub(super) wait_p95_s: f64,
    pub(super) wait_p99_s: f64,
    /// A burst's time beyond its own work; none without bursts.
    pub(super) delay_p50_s: Option<f64>,
    pub(super) delay_p99_s: Option<f64>,
    pub(super) jain: f64,
    pub(super) greatest_lag_s: f64,
    pub(super) handoffs: u64,
    pub(super) moved_gb: f64,
    /// Of the cards' time while anybody wanted them.
    pub(super) lost_percent: f64,
    /// Work that the cards did.
    pub(super) work_s: f64,
}

/// Data of the figures.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curves {
    pub(super) policy: &'static str,
    /// In seconds, in order.
    pub(super) waits: Vec<f64>,
    pub(super) delays: Vec<f64>,
}

pub(super) fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// Rounds to thousandths, so that table, JSON and bounds use equal values.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn in_order(times: &[Nanos]) -> Vec<f64> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.into_iter().map(seconds).collect()
}

impl Row {
    pub(super) fn of(policy: &'static str, trace: &Trace, outcome: &Outcome) -> (Self, Curves) {
        let accounts = &outcome.accounts;
        let (waits, delays) = (in_order(&accounts.waits), in_order(&accounts.delays));
        let of = |times: &[f64], percent| rounded(percentile(times, percent));
        let delay = |percent| (!delays.is_empty()).then(|| of(&delays, percent));
        let first = trace.tenants.iter().map(|tenant| tenant.arrives).min().unwrap_or_default();
        let ended: Option<Vec<Nanos>> = outcome.ended.iter().copied().collect();
        let last = ended.and_then(|ended| ended.into_iter().max());
        let (busy, work) = (accounts.busy().0 as f64, accounts.given());
        let lost = if busy > 0.0 { (1.0 - work / busy).max(0.0) * 100.0 } else { 0.0 };
        let row = Self {
            policy,
            ended: outcome.ended.iter().flatten().count(),
            makespan_s: last.map(|last| rounded(seconds(last - first))),
            wait_p50_s: of(&waits, 50),
            wait_p95_s: of(&waits, 95),
            wait_p99_s: of(&waits, 99),
            delay_p50_s: delay(50),
            delay_p99_s: delay(99),
            jain: rounded(accounts.jain()),
            greatest_lag_s: rounded(seconds(accounts.greatest_lag())),
            handoffs: outcome.handoffs,
            moved_gb: rounded(outcome.moved.0 as f64 / 1e9),
            lost_percent: rounded(lost),
            work_s: rounded(work / 1e9),
        };
        let curves = Curves { policy, waits, delays };
        (row, curves)
    }
}

/// Line of the table: its label, and the text for one scheduler.
type Line = (&'static str, fn(&Row) -> String);

const LINES: [Line; 13] = [
    ("sessions that ended", |row| row.ended.to_string()),
    ("makespan, s", |row| or_none(row.makespan_s)),
    ("wait at the gate, p50, s", |row| row.wait_p50_s.to_string()),
    ("    p95", |row| row.wait_p95_s.to_string()),
    ("    p99", |row| row.wait_p99_s.to_string()),
    ("delay of a burst, p50, s", |row| or_none(row.delay_p50_s)),
    ("    p99", |row| or_none(row.delay_p99_s)),
    ("Jain's index", |row| row.jain.to_string()),
    ("greatest lag, s", |row| row.greatest_lag_s.to_string()),
    ("handoffs", |row| row.handoffs.to_string()),
    ("moved to the cards, GB", |row| row.moved_gb.to_string()),
    ("time lost, %", |row| row.lost_percent.to_string()),
    ("work done, s", |row| row.work_s.to_string()),
];

fn or_none(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |value| value.to_string())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, gpus, sessions, rows } = self;
        write!(f, "{:<28}", format!("{trace}: {sessions} sessions, {gpus} GPUs"))?;
        rows.iter().try_for_each(|row| write!(f, "{:>14}", row.policy))?;
        for (what, figure) in LINES {
            write!(f, "\n{what:<28}")?;
            rows.iter().try_for_each(|row| write!(f, "{:>14}", figure(row)))?;
        }
        Ok(())
    }
}

//! Result of the demo: one model, as a table with both timelines, or as JSON.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use simgpu_card::constants::Constants;

use crate::contention::measure::{Measured, NAMES};
use crate::contention::plan::Plan;

/// Findings of the demo. A value that the card does not report is `null`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    gpu: String,
    clients: usize,
    without: Without,
    with: With,
    /// Buffers of all runs that were wrong at the end.
    corrupted: u32,
    svg: PathBuf,
    /// Lines that show which program had the card when.
    #[serde(skip)]
    timelines: Vec<String>,
    /// The numbers that a simulated card ran with.
    simulated: Option<Constants>,
}

#[derive(Clone, Debug, Serialize)]
struct Without {
    seconds: f64,
    faults: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
struct With {
    seconds: f64,
    faults: Option<u64>,
    handoffs: Option<u64>,
    drain_ms_p50: Option<f64>,
}

impl Report {
    /// Values of the demo's promises, in the order of their bounds.
    pub(crate) fn values(&self) -> Vec<f64> {
        let handoffs = self.with.handoffs.map_or(f64::NAN, |handoffs| handoffs as f64);
        vec![self.without.seconds / self.with.seconds, handoffs, f64::from(self.corrupted)]
    }

    pub(crate) fn new(plan: &Plan, without: &Measured, with: &Measured, svg: &Path) -> Self {
        Self {
            gpu: plan.gpu.clone(),
            clients: NAMES.len(),
            without: Without { seconds: thousandths(without.elapsed.as_secs_f64()), faults: without.faults },
            with: With {
                seconds: thousandths(with.elapsed.as_secs_f64()),
                faults: with.faults,
                handoffs: with.turns.map(|turns| turns.handoffs),
                drain_ms_p50: with
                    .turns
                    .and_then(|turns| turns.drain_p50)
                    .map(|drain| thousandths(drain.0 as f64 / 1e6)),
            },
            corrupted: without.corrupted + with.corrupted,
            svg: svg.to_owned(),
            timelines: timelines(without, with),
            simulated: with.constants.clone(),
        }
    }
}

/// Characters of a timeline: with its margin it fits a terminal of 80 columns.
const WIDTH: u32 = 72;
/// From no time of a slot to all of it.
const SHADES: [char; 5] = [' ', '░', '▒', '▓', '█'];

/// Both runs, each as wide as the page: a line for each program, as dark as its share of the card was.
fn timelines(without: &Measured, with: &Measured) -> Vec<String> {
    let mut lines = vec!["Who had the card when:".to_owned()];
    for (title, run) in [("without gpushare", without), ("with gpushare", with)] {
        let slot = run.elapsed / WIDTH;
        let (seconds, column) = (run.elapsed.as_secs_f64(), slot.as_secs_f64());
        lines.push(format!("{title}: {seconds:.1} s, {column:.2} s a column"));
        for (who, name) in NAMES.iter().enumerate() {
            let lane: String = match &run.timeline {
                Some(timeline) => timeline.shares(who, slot, WIDTH).into_iter().map(shade).collect(),
                None => "(the driver's own time slices do not show)".to_owned(),
            };
            lines.push(format!("  {name} |{}", lane.trim_end()));
        }
    }
    lines
}

fn shade(percent: u64) -> char {
    SHADES[(percent as usize * (SHADES.len() - 1)).div_ceil(100)]
}

fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { without, with, .. } = self;
        writeln!(f, "{} programs on {}", self.clients, self.gpu)?;
        writeln!(f)?;
        writeln!(f, "{:<18}{:>12}{:>12}", "", "without", "with")?;
        row(f, "seconds", Some(format!("{:.2}", without.seconds)), Some(format!("{:.2}", with.seconds)))?;
        row(f, "page faults", without.faults, with.faults)?;
        row(f, "handoffs", Some("-"), with.handoffs)?;
        row(f, "drain (median)", Some("-"), with.drain_ms_p50.map(|ms| format!("{ms:.2} ms")))?;
        writeln!(f)?;
        match self.corrupted {
            0 => writeln!(f, "every buffer of both held what it must")?,
            n => writeln!(f, "{n} BUFFERS WERE CORRUPTED")?,
        }
        if let Some(card) = &self.simulated {
            let gb = |rate: u64| rate as f64 / 1e9;
            writeln!(
                f,
                "simulated: {} MiB of memory; faults {:.1}, eviction {:.1}, prefetch {:.1}, kernels {:.0} GB/s; \
                 time slice {:?}",
                card.memory >> 20,
                gb(card.fault_in.0),
                gb(card.evict_out.0),
                gb(card.prefetch_in.0),
                gb(card.kernel.0),
                card.slice
            )?;
        }
        self.timelines.iter().try_for_each(|line| writeln!(f, "{line}"))?;
        write!(f, "The same as a picture: {}", self.svg.display())
    }
}

/// A line of the table; `None` is what the card does not tell.
fn row<A: ToString, B: ToString>(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    without: Option<A>,
    with: Option<B>,
) -> fmt::Result {
    let cell = |value: Option<String>| value.unwrap_or_else(|| "not told".to_owned());
    let (without, with) = (cell(without.map(|v| v.to_string())), cell(with.map(|v| v.to_string())));
    writeln!(f, "{name:<18}{without:>12}{with:>12}")
}

//! Pods of a trace, and the CSV file that holds one (docs/results/cluster.md).

use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use gpushare_proto::{Bytes, Nanos};
use serde::Deserialize;

/// A pod of one container that needs one card.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) arrives: Nanos,
    /// Time that it runs alone on a card.
    pub(super) runs: Nanos,
    /// Memory that it allocates at its start.
    pub(super) memory: Bytes,
    /// Thousandths of a card that it needs to run as fast as alone.
    pub(super) compute: u32,
    /// Work of a burst, after which it is idle for a while.
    pub(super) burst: Nanos,
}

impl Pod {
    /// Returns the pod's work, in nanoseconds of a whole card.
    pub(super) fn work(&self) -> f64 {
        self.runs.0 as f64 * self.demand()
    }

    /// Returns the part of a card that it needs to run as fast as alone.
    pub(super) fn demand(&self) -> f64 {
        f64::from(self.compute) / 1000.0
    }
}

/// A trace, in the order of arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pods {
    pub(super) name: String,
    pub(super) pods: Vec<Pod>,
}

/// A line of the file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    #[serde(rename = "name")]
    _name: String,
    arrives_s: u64,
    runs_s: u64,
    memory_mib: u64,
    compute_milli: u32,
    #[serde(default)]
    burst_s: Option<u64>,
}

/// Default work of a burst, in seconds.
const BURST_S: u64 = 5;
/// Greatest time in a file, in seconds: a hundred years, so that sums do not overflow.
const LONGEST_S: u64 = 100 * 365 * 86_400;

impl Pods {
    pub(super) fn new(name: &str, mut pods: Vec<Pod>) -> Self {
        pods.sort_by_key(|pod| pod.arrives);
        Self { name: name.to_owned(), pods }
    }

    /// Reads a trace for cards of this much memory.
    pub(super) fn load(file: &Path, memory: Bytes) -> anyhow::Result<Self> {
        let text =
            fs::read_to_string(file).with_context(|| format!("cannot read the trace {}", file.display()))?;
        let name = file
            .file_stem()
            .map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Self::parse(&name, &text, memory)
    }

    /// Reads the content of a file.
    pub(super) fn parse(name: &str, text: &str, memory: Bytes) -> anyhow::Result<Self> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let mut pods = Vec::new();
        for line in reader.deserialize() {
            let line: Line = line.with_context(|| format!("the trace {name} does not read"))?;
            let number = pods.len() + 1;
            pods.push(line.pod(memory).with_context(|| format!("pod {number} of the trace {name}"))?);
        }
        ensure!(!pods.is_empty(), "the trace {name} has no pods");
        Ok(Self::new(name, pods))
    }
}

impl Line {
    fn pod(&self, card: Bytes) -> anyhow::Result<Pod> {
        let burst = self.burst_s.unwrap_or(BURST_S);
        ensure!(
            (1..=1000).contains(&self.compute_milli),
            "compute_milli is {}, not 1 to 1000",
            self.compute_milli
        );
        ensure!((1..=LONGEST_S).contains(&self.runs_s), "runs_s is {}, not 1 to {LONGEST_S}", self.runs_s);
        ensure!(self.arrives_s <= LONGEST_S, "arrives_s is {}, above {LONGEST_S}", self.arrives_s);
        ensure!((1..=LONGEST_S).contains(&burst), "burst_s is {burst}, not 1 to {LONGEST_S}");
        ensure!(
            self.memory_mib <= card.0 >> 20,
            "memory_mib is {}, and a card has {card}: it fits on none; set --memory",
            self.memory_mib
        );
        Ok(Pod {
            arrives: Nanos::from_secs(self.arrives_s),
            runs: Nanos::from_secs(self.runs_s),
            memory: Bytes::mib(self.memory_mib),
            compute: self.compute_milli,
            burst: Nanos::from_secs(burst),
        })
    }
}

//! Table of all metrics, each with its name, meaning and source of values.
//!
//! The metrics page, the exporter's descriptions and docs/metrics.md are generated from this table. Names
//! follow Prometheus' conventions: base units, and `_total` for counters.

use std::collections::BTreeMap;
use std::time::Duration;

use gpushare_proto::admin::{LockView, Mode, ResidenceView};
use gpushare_proto::{Bytes, Nanos, SessionId};

use super::scene::{Card, Scene};
use super::sessions::{self, SessionRow, Usage};

/// Upper bounds of all histogram buckets, in seconds: from an empty drain to a wait behind many turns.
pub(super) const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// Metric with all its series (one for each combination of labels).
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Name of the metric in queries.
    pub name: &'static str,
    /// Type of the metric, as Prometheus defines it.
    pub kind: Kind,
    /// Meaning of the metric, in one sentence without a full stop.
    pub help: &'static str,
    pub(super) source: Source,
}

/// Type of a metric, as Prometheus defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Value that only rises.
    Counter,
    /// Value that rises and falls.
    Gauge,
    /// Counts of observations in ranges of their size.
    Histogram,
}

impl Kind {
    /// Returns the name of the type for the TYPE lines of the metrics page.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Source of a metric's values, which also determines its labels.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// Function with one value for the whole daemon.
    Daemon(fn(&Scene) -> f64),
    /// Function with a value for each card; none for a card without the value.
    Card(fn(&Card) -> Option<f64>),
    /// Function with a value for each session; none for a session without the value.
    Session(fn(&SessionRow) -> Option<f64>),
    /// Function with a value for each pair of session and card.
    SessionOnCard(fn(&Usage) -> f64),
    /// Function that returns series with these labels.
    Rows(&'static [&'static str], fn(&Scene) -> Vec<Row>),
    /// Events with these labels, counted when they happen (`events.rs`).
    Events(&'static [&'static str]),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a source of {:?}", self.labels())
    }
}

/// One series of a metric: the values of its labels, and its present value.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) labels: Vec<String>,
    pub(super) value: f64,
}

const CARD: &[&str] = &["gpu", "uuid"];
const SESSION_ON_CARD: &[&str] = &["session", "name", "gpu", "uuid"];

pub(super) const GRANTS: Family = Family::histogram(
    "gpushare_gpu_grant_seconds",
    "Time from a session's entry into the queue to its grant, in turns",
);
pub(super) const WAITS: Family = Family::histogram(
    "gpushare_gpu_wait_seconds",
    "Time from a session's entry into the queue until it runs with its memory moved in, in turns",
);
pub(super) const DRAINS: Family = Family::histogram(
    "gpushare_gpu_drain_seconds",
    "Time from the request to release the lock to the end of the session's work in flight",
);
pub(super) const HANDOFFS: Family = Family::histogram(
    "gpushare_gpu_handoff_seconds",
    "Time from the request to release the lock until the next session's memory is in: drain and move",
);
pub(super) const REMAPPED_BYTES: Family = Family::counter(
    "gpushare_gpu_remapped_moved_bytes_total",
    "Bytes of remapped memory that handoffs moved off the card (out) and onto it (in), counted at their ends",
    Source::Events(&["gpu", "uuid", "direction"]),
);
pub(super) const REMAPPED_COPIED: Family = Family::counter(
    "gpushare_gpu_remapped_copied_bytes_total",
    "Part of the bytes of remapped memory that left the card which were copied, since they had changed",
    Source::Events(&["gpu", "uuid"]),
);
pub(super) const REMAPPED_HANDOFFS: Family = Family::histogram(
    "gpushare_gpu_remapped_handoff_seconds",
    "Time from the first byte of remapped memory that moves until nothing is left to move",
);
pub(super) const REMAPPED_MOVES: Family = Family {
    source: Source::Events(&["gpu", "uuid", "direction"]),
    ..Family::histogram(
        "gpushare_gpu_remapped_move_seconds",
        "Part of the time of a handoff of remapped memory in which it moved out, in, or in both directions at once",
    )
};
pub(super) const REFUSALS: Family = Family::counter(
    "gpushare_gpu_refusals_total",
    "Refused allocations, by the limit that refused: quota, capacity, managed_limit or host_memory",
    Source::Events(&["gpu", "uuid", "limit"]),
);

/// Defines the table of metrics. A row is `= CONSTANT;`, or the type, name, meaning and source of a metric.
macro_rules! families {
    ($($(= $constant:ident)? $($kind:ident $name:literal: $help:literal, $source:expr)?;)*) => {
        /// All metrics, in the order of the metrics page.
        pub const FAMILIES: &[Family] = &[$($($constant)? $(Family::$kind($name, $help, $source))?),*];
    };
}

families! {
    gauge "gpushare_build_info": "1, labelled with the daemon's version",
        Source::Rows(&["version"], |_| vec![row([env!("CARGO_PKG_VERSION")], 1.0)]);
    gauge "gpushare_uptime_seconds": "Time since the daemon started",
        Source::Daemon(|scene| seconds(scene.picture.uptime));
    gauge "gpushare_ready":
        "1 if grants are given, 0 while the daemon waits for processes of the last daemon",
        Source::Daemon(|scene| f64::from(u8::from(scene.picture.ready)));
    gauge "gpushare_recovering_processes": "Processes of the last daemon that are neither back nor dead",
        Source::Daemon(|scene| f64::from(scene.picture.recovering));
    gauge "gpushare_sessions": "Open sessions",
        Source::Daemon(|scene| scene.picture.living as f64);
    gauge "gpushare_stuck_sessions":
        "Sessions that did not release the lock in time; the log names what they wait for",
        Source::Daemon(|scene| stuck(scene) as f64);
    gauge "gpushare_frozen_sessions":
        "Sessions that are frozen: all that their processes had on the cards is in memory of the host",
        Source::Daemon(|scene| frozen(scene) as f64);
    gauge "gpushare_shared_copies": "Host copies of equal bytes that processes of one user share",
        Source::Daemon(|scene| scene.picture.copies.copies as f64);
    gauge "gpushare_shared_copy_bytes": "Size of the shared host copies, each counted once",
        Source::Daemon(|scene| bytes(scene.picture.copies.bytes));
    gauge "gpushare_shared_copy_users": "Users whose processes have shared host copies",
        Source::Daemon(|scene| scene.picture.copies.users as f64);
    counter "gpushare_audit_lines_total": "Lines written to the audit log",
        Source::Daemon(|scene| scene.picture.audit.written as f64);
    counter "gpushare_audit_lost_lines_total":
        "Lines missing in the audit log because its disk is full, slow or read-only",
        Source::Daemon(|scene| scene.picture.audit.lost as f64);
    counter "gpushare_log_lost_lines_total":
        "Lines missing in the log because its disk is full or its reader is slow",
        Source::Daemon(|scene| scene.picture.lost_log_lines as f64);
    // Cards.
    gauge "gpushare_gpu_info": "1, labelled with the card's name",
        Source::Rows(&["gpu", "uuid", "name"], |scene| {
            let cards = scene.cards.values();
            cards.map(|card| labelled(card, &[&card.info.name], 1.0)).collect()
        });
    gauge "gpushare_gpu_mode": "1 for the mode that the card is in, 0 for the others",
        Source::Rows(&["gpu", "uuid", "mode"], modes);
    counter "gpushare_gpu_mode_changes_total": "Changes of the card's mode",
        Source::Card(|card| Some(card.state.mode_changes as f64));
    gauge "gpushare_gpu_holder":
        "1 for each session that holds the lock in turns; no series in parallel mode, where all hold it",
        Source::Rows(&["gpu", "uuid", "session", "name"], holders);
    gauge "gpushare_gpu_holders": "Sessions that hold the lock, in any mode",
        Source::Card(|card| Some(card.state.holders.len() as f64));
    gauge "gpushare_gpu_waiters": "Sessions that wait for the lock",
        Source::Card(|card| Some(card.state.queue.len() as f64));
    gauge "gpushare_gpu_quantum_seconds": "Length of the next turn",
        Source::Card(|card| Some(seconds(card.state.quantum_ns)));
    counter "gpushare_gpu_turns_total": "Grants of the lock in turns",
        Source::Card(|card| Some(card.state.handoffs as f64));
    counter "gpushare_gpu_aborted_drops_total":
        "Requests to release the lock that were undone, because work in flight seemed to wait for a thread at the gate",
        Source::Card(|card| Some(card.state.aborted_drops as f64));
    counter "gpushare_gpu_moved_bytes_total": "Bytes moved onto the card on grants",
        Source::Card(|card| Some(bytes(card.state.moved_bytes)));
    = GRANTS;
    = WAITS;
    = DRAINS;
    = HANDOFFS;
    = REMAPPED_BYTES;
    = REMAPPED_COPIED;
    = REMAPPED_HANDOFFS;
    = REMAPPED_MOVES;
    = REFUSALS;
    gauge "gpushare_gpu_memory_bytes": "Memory of the card",
        Source::Card(|card| Some(bytes(card.state.total_bytes)));
    gauge "gpushare_gpu_memory_used_bytes":
        "Memory in use on the card by all processes, from NVML; no series without NVML",
        Source::Card(|card| card.reading.used.map(bytes));
    gauge "gpushare_gpu_capacity_bytes": "Bytes that may be resident on the card together",
        Source::Card(|card| Some(bytes(card.state.capacity_bytes)));
    gauge "gpushare_gpu_allocated_bytes": "Bytes that all sessions have allocated, resident or not",
        Source::Card(|card| Some(bytes(card.state.allocated_bytes)));
    gauge "gpushare_gpu_remapped_resident_bytes":
        "Bytes of remapped memory on the card; no series without remapped memory",
        Source::Card(|card| card.state.remapped.map(|remapped| bytes(remapped.resident_bytes)));
    gauge "gpushare_gpu_remapped_hosted_bytes":
        "Bytes of remapped memory in host memory, or without a place yet; no series without remapped memory",
        Source::Card(|card| card.state.remapped.map(|remapped| bytes(remapped.hosted_bytes)));
    gauge "gpushare_gpu_remapped_mapped_bytes":
        "Bytes of remapped memory in host memory that kernels reach over the bus; no series without remapped memory",
        Source::Card(|card| card.state.remapped.map(|remapped| bytes(remapped.mapped_bytes)));
    gauge "gpushare_gpu_remapped_moving_bytes":
        "Bytes of remapped memory that are leaving the card or coming in; no series without remapped memory",
        Source::Card(|card| card.state.remapped.map(|remapped| bytes(remapped.moving_bytes)));
    gauge "gpushare_gpu_remapped_prepared_bytes":
        "Bytes of host memory that are ready for what leaves the card; no series without remapped memory",
        Source::Card(|card| card.state.remapped.map(|remapped| bytes(remapped.prepared_bytes)));
    gauge "gpushare_gpu_managed_limit_bytes":
        "Limit on the managed memory of all sessions together; no series without a limit",
        Source::Card(|card| limit(card.state.managed_limit_bytes));
    gauge "gpushare_gpu_utilization_ratio":
        "Share of the last sample period in which a kernel ran, 0 to 1, from NVML; no series without NVML",
        Source::Card(|card| card.reading.busy_percent.map(|percent| f64::from(percent) / 100.0));
    gauge "gpushare_gpu_temperature_celsius": "Temperature of the card, from NVML; no series without NVML",
        Source::Card(|card| card.reading.celsius.map(f64::from));
    gauge "gpushare_gpu_power_watts": "Power draw of the card, from NVML; no series without NVML",
        Source::Card(|card| card.reading.milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0));
    // Sessions.
    gauge "gpushare_session_processes": "Processes of the session",
        Source::Session(|session| Some(session.processes as f64));
    gauge "gpushare_session_quota_bytes": "Quota of the session on each card; no series without a quota",
        Source::Session(|session| session.quota.map(bytes));
    gauge "gpushare_session_allocated_bytes": "Bytes that the session has allocated, resident or not",
        Source::SessionOnCard(|usage| bytes(usage.allocated));
    gauge "gpushare_session_leased_bytes": "Bytes of quota leased to the session's processes, used or not",
        Source::SessionOnCard(|usage| bytes(usage.leased));
    gauge "gpushare_session_peak_bytes": "Highest number of allocated bytes seen",
        Source::SessionOnCard(|usage| bytes(usage.peak));
    gauge "gpushare_session_remapped_resident_bytes":
        "Bytes of the session's remapped memory on the card; no series without remapped memory",
        Source::Rows(SESSION_ON_CARD, |scene| residences(scene, |place| place.resident_bytes));
    gauge "gpushare_session_remapped_hosted_bytes":
        "Bytes of the session's remapped memory in host memory, or without a place yet",
        Source::Rows(SESSION_ON_CARD, |scene| residences(scene, |place| place.hosted_bytes));
    gauge "gpushare_session_remapped_moving_bytes":
        "Bytes of the session's remapped memory that are leaving the card or coming in",
        Source::Rows(SESSION_ON_CARD, |scene| residences(scene, |place| place.moving_bytes));
    counter "gpushare_session_refusals_total": "Refused allocations of the session",
        Source::Session(|session| Some(session.refusals as f64));
    counter "gpushare_session_gpu_seconds_total":
        "Wall time in which the session held the lock and was not known to be idle, in any mode",
        Source::Session(|session| Some(seconds(session.gpu_time)));
    counter "gpushare_session_waited_seconds_total": "Wall time in which the session waited for the lock",
        Source::Session(|session| Some(seconds(session.waited)));
    counter "gpushare_session_moved_bytes_total": "Bytes of the session moved onto a card on grants",
        Source::Session(|session| Some(bytes(session.moved)));
}

impl Family {
    const fn counter(name: &'static str, help: &'static str, source: Source) -> Self {
        Self { name, kind: Kind::Counter, help, source }
    }

    const fn gauge(name: &'static str, help: &'static str, source: Source) -> Self {
        Self { name, kind: Kind::Gauge, help, source }
    }

    const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self { name, kind: Kind::Histogram, help, source: Source::Events(CARD) }
    }

    /// Returns the names of the labels that each series of the metric has.
    #[must_use]
    pub fn labels(&self) -> &'static [&'static str] {
        self.source.labels()
    }

    /// Returns whether the metric counts events when they happen, instead of reading values at each scrape.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self.source, Source::Events(_))
    }

    /// Returns the present series of the metric; none if the metric counts events.
    pub(super) fn rows(&self, scene: &Scene) -> Vec<Row> {
        match self.source {
            Source::Daemon(read) => vec![Row { labels: Vec::new(), value: read(scene) }],
            Source::Card(read) => {
                let value = |card| Some(labelled(card, &[], read(card)?));
                scene.cards.values().filter_map(value).collect()
            }
            Source::Session(read) => {
                let row =
                    |session: &SessionRow| Some(Row { labels: session.labels(), value: read(session)? });
                scene.sessions.iter().filter_map(row).collect()
            }
            Source::SessionOnCard(read) => {
                let sessions = scene.sessions.iter();
                let usages = sessions.flat_map(|session| session.cards.iter().map(move |on| (session, on)));
                let row = |(session, (gpu, usage)): (&SessionRow, (_, &Usage))| {
                    let mut labels = session.labels();
                    labels.extend(scene.cards.get(gpu)?.labels());
                    Some(Row { labels, value: read(usage) })
                };
                usages.filter_map(row).collect()
            }
            Source::Rows(_, read) => read(scene),
            Source::Events(_) => Vec::new(),
        }
    }
}

impl Source {
    fn labels(&self) -> &'static [&'static str] {
        match self {
            Self::Daemon(_) => &[],
            Self::Card(_) => CARD,
            Self::Session(_) => &["session", "name"],
            Self::SessionOnCard(_) => SESSION_ON_CARD,
            Self::Rows(labels, _) | Self::Events(labels) => labels,
        }
    }
}

/// Converts a duration to seconds.
pub(super) fn seconds(time: Nanos) -> f64 {
    Duration::from(time).as_secs_f64()
}

fn bytes(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

/// Converts a limit to bytes; `None` if the value means "no limit".
fn limit(limit: Bytes) -> Option<f64> {
    (limit != Bytes::MAX).then(|| bytes(limit))
}

fn row<const N: usize>(labels: [&str; N], value: f64) -> Row {
    Row { labels: labels.map(str::to_owned).into(), value }
}

/// Returns a series with the card's labels and the labels in `more`.
fn labelled(card: &Card, more: &[&str], value: f64) -> Row {
    let mut labels = card.labels();
    labels.extend(more.iter().map(|&label| label.to_owned()));
    Row { labels, value }
}

fn modes(scene: &Scene) -> Vec<Row> {
    let cards = scene.cards.values();
    cards
        .flat_map(|card| {
            Mode::ALL.map(|mode| {
                let is_in = card.state.mode == mode;
                labelled(card, &[mode.name()], f64::from(u8::from(is_in)))
            })
        })
        .collect()
}

/// Returns the sessions with their own rows, by number.
fn own_rows<'a>(scene: &'a Scene) -> BTreeMap<SessionId, &'a SessionRow> {
    let own = scene.picture.sessions.iter().zip(&scene.sessions).take(sessions::MOST);
    own.map(|(session, row)| (session.state.session, row)).collect()
}

/// Returns a figure of the remapped memory of each session with its own row, on each card.
fn residences(scene: &Scene, figure: fn(&ResidenceView) -> Bytes) -> Vec<Row> {
    let own = own_rows(scene);
    let row = |place: &ResidenceView| {
        let mut labels = own.get(&place.session)?.labels();
        labels.extend(scene.cards.get(&place.gpu)?.labels());
        Some(Row { labels, value: bytes(figure(place)) })
    };
    scene.picture.residences.iter().filter_map(row).collect()
}

/// Returns the sessions with their own rows that hold the lock.
fn holders(scene: &Scene) -> Vec<Row> {
    let own = own_rows(scene);
    let cards = scene.cards.values();
    cards
        .filter(|card| card.state.mode != Mode::Parallel)
        .flat_map(|card| {
            let holders = card.state.holders.iter();
            holders.filter_map(|id| Some(labelled(card, &[&id.0.to_string(), &own.get(id)?.name], 1.0)))
        })
        .collect()
}

fn stuck(scene: &Scene) -> usize {
    count(scene, |lock| matches!(lock, LockView::Dropping { stuck: true, .. }))
}

fn frozen(scene: &Scene) -> usize {
    count(scene, |lock| *lock == LockView::Frozen)
}

/// Returns the number of sessions whose lock is in such a state.
fn count(scene: &Scene, is_counted: impl Fn(&LockView) -> bool) -> usize {
    let sessions = scene.picture.sessions.iter();
    sessions.filter(|session| is_counted(&session.state.lock)).count()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_as_prometheus_recommends() {
        for Family { name, kind, help, .. } in FAMILIES {
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(name.starts_with("gpushare_") && name.chars().all(plain), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Kind::Counter, "{name}");
            assert!(name.ends_with("_seconds") || *kind != Kind::Histogram, "{name}");
            assert!(!help.is_empty() && !help.ends_with('.'), "{name}: {help}");
        }
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<_> = FAMILIES.iter().map(|family| family.name).collect();
        assert_eq!(names.len(), FAMILIES.len());
    }
}

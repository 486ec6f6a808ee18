//! Every metric: its name, what it means, and where its values come from. The page, the exporter's descriptions and
//! docs/metrics.md are all made of these rows, so a metric is added by adding a row.
//!
//! Names are as Prometheus recommends: base units, `_total` for what only rises.

use std::collections::BTreeMap;
use std::time::Duration;

use gpushare_proto::admin::{LockView, Mode};
use gpushare_proto::{Bytes, Nanos, SessionId};

use super::scene::{Card, Scene};
use super::tenants::{self, Tenant, Usage};

/// The upper bounds of all histograms, in seconds: from a drain of nothing to a wait behind many turns.
pub(super) const BUCKETS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// A metric with all its series.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// What a query calls it.
    pub name: &'static str,
    /// What it may do.
    pub kind: Kind,
    /// What it means, in a sentence without a full stop.
    pub help: &'static str,
    pub(super) source: Source,
}

/// What a metric may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// How many observations were at most how large.
    Histogram,
}

impl Kind {
    /// As the page's TYPE line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where the values come from, and with that, which series there are.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// One value.
    Daemon(fn(&Scene) -> f64),
    /// A value for each card that has one.
    Card(fn(&Card) -> Option<f64>),
    /// A value for each session that has one.
    Session(fn(&Tenant) -> Option<f64>),
    /// A value for each session and card.
    SessionOnCard(fn(&Usage) -> f64),
    /// Series with these labels.
    Rows(&'static [&'static str], fn(&Scene) -> Vec<Row>),
    /// Counted when it happens (`events.rs`), with these labels.
    Events(&'static [&'static str]),
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a source of {:?}", self.labels())
    }
}

/// One series: the values of its labels, and its own.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) labels: Vec<String>,
    pub(super) value: f64,
}

const CARD: &[&str] = &["gpu", "uuid"];

/// From queueing up to the lock.
pub(super) const GRANTS: Family = Family::histogram(
    "gpushare_gpu_grant_seconds",
    "Time from a session's queueing up to its getting the lock, in turns",
);
/// From queueing up to going on.
pub(super) const WAITS: Family = Family::histogram(
    "gpushare_gpu_wait_seconds",
    "Time from a session's queueing up to its going on with its memory in, in turns",
);
/// From the order to let go to the end of the last work.
pub(super) const DRAINS: Family = Family::histogram(
    "gpushare_gpu_drain_seconds",
    "Time from the order to let go to the end of a session's last work",
);
/// What a change of turns costs.
pub(super) const HANDOFFS: Family = Family::histogram(
    "gpushare_gpu_handoff_seconds",
    "Time from the order to let go to the next session's memory being in: drain and move",
);
/// Refused allocations.
pub(super) const REFUSALS: Family = Family::counter(
    "gpushare_gpu_refusals_total",
    "Refused allocations, by the limit that refused: quota, capacity or managed_limit",
    Source::Events(&["gpu", "uuid", "limit"]),
);

/// All metrics, in the order of the page.
pub const FAMILIES: &[Family] = &[
    Family::gauge(
        "gpushare_build_info",
        "1, labelled with the daemon's version",
        Source::Rows(&["version"], |_| vec![row([env!("CARGO_PKG_VERSION")], 1.0)]),
    ),
    Family::gauge(
        "gpushare_uptime_seconds",
        "Time since the daemon started",
        Source::Daemon(|scene| seconds(scene.picture.uptime)),
    ),
    Family::gauge(
        "gpushare_ready",
        "1 if grants are given, 0 while processes of the last daemon are awaited",
        Source::Daemon(|scene| f64::from(u8::from(scene.picture.ready))),
    ),
    Family::gauge(
        "gpushare_recovering_processes",
        "Processes of the last daemon that are neither back nor dead",
        Source::Daemon(|scene| f64::from(scene.picture.recovering)),
    ),
    Family::gauge(
        "gpushare_sessions",
        "Sessions that are open",
        Source::Daemon(|scene| scene.picture.living as f64),
    ),
    Family::gauge(
        "gpushare_stuck_sessions",
        "Sessions that were told to let go and do not; the log says what they wait for",
        Source::Daemon(|scene| stuck(scene) as f64),
    ),
    Family::counter(
        "gpushare_audit_lines_total",
        "Lines written to the audit log",
        Source::Daemon(|scene| scene.picture.audit.written as f64),
    ),
    Family::counter(
        "gpushare_audit_lost_lines_total",
        "Lines that the audit log should have and has not: its disk is full, slow or read-only",
        Source::Daemon(|scene| scene.picture.audit.lost as f64),
    ),
    // Cards.
    Family::gauge(
        "gpushare_gpu_info",
        "1, labelled with the card's name",
        Source::Rows(&["gpu", "uuid", "name"], |scene| {
            let cards = scene.cards.values();
            cards.map(|card| labelled(card, &[&card.info.name], 1.0)).collect()
        }),
    ),
    Family::gauge(
        "gpushare_gpu_mode",
        "1 for the mode that the card is in, 0 for the other",
        Source::Rows(&["gpu", "uuid", "mode"], modes),
    ),
    Family::counter(
        "gpushare_gpu_mode_changes_total",
        "Changes of the card's mode",
        Source::Card(|card| Some(card.state.mode_changes as f64)),
    ),
    Family::gauge(
        "gpushare_gpu_holder",
        "1 for each session that holds the lock in turns; no series in parallel mode, where all do",
        Source::Rows(&["gpu", "uuid", "session", "name"], holders),
    ),
    Family::gauge(
        "gpushare_gpu_holders",
        "Sessions that hold the lock, in any mode",
        Source::Card(|card| Some(card.state.holders.len() as f64)),
    ),
    Family::gauge(
        "gpushare_gpu_waiters",
        "Sessions that wait for the lock",
        Source::Card(|card| Some(card.state.queue.len() as f64)),
    ),
    Family::gauge(
        "gpushare_gpu_quantum_seconds",
        "How long the next turn would last",
        Source::Card(|card| Some(seconds(card.state.quantum_ns))),
    ),
    Family::counter(
        "gpushare_gpu_turns_total",
        "Grants of the lock in turns",
        Source::Card(|card| Some(card.state.handoffs as f64)),
    ),
    Family::counter(
        "gpushare_gpu_aborted_drops_total",
        "Orders to let go that were undone, because work in flight seemed to wait for a thread at the gate",
        Source::Card(|card| Some(card.state.aborted_drops as f64)),
    ),
    Family::counter(
        "gpushare_gpu_moved_bytes_total",
        "Bytes brought in on grants",
        Source::Card(|card| Some(bytes(card.state.moved_bytes))),
    ),
    GRANTS,
    WAITS,
    DRAINS,
    HANDOFFS,
    REFUSALS,
    Family::gauge(
        "gpushare_gpu_memory_bytes",
        "The card's memory",
        Source::Card(|card| Some(bytes(card.state.total_bytes))),
    ),
    Family::gauge(
        "gpushare_gpu_memory_used_bytes",
        "Memory in use by everybody on the card, as NVML says; no series without NVML",
        Source::Card(|card| card.reading.used.map(bytes)),
    ),
    Family::gauge(
        "gpushare_gpu_capacity_bytes",
        "What may be resident together",
        Source::Card(|card| Some(bytes(card.state.capacity_bytes))),
    ),
    Family::gauge(
        "gpushare_gpu_allocated_bytes",
        "What all sessions have allocated, resident or not",
        Source::Card(|card| Some(bytes(card.state.allocated_bytes))),
    ),
    Family::gauge(
        "gpushare_gpu_managed_limit_bytes",
        "The most managed memory of all sessions together; no series without a limit",
        Source::Card(|card| limit(card.state.managed_limit_bytes)),
    ),
    Family::gauge(
        "gpushare_gpu_utilization_ratio",
        "Share of the last sample period in which a kernel ran, 0 to 1, as NVML says; no series without NVML",
        Source::Card(|card| card.reading.busy_percent.map(|percent| f64::from(percent) / 100.0)),
    ),
    Family::gauge(
        "gpushare_gpu_temperature_celsius",
        "The card's temperature, as NVML says; no series without NVML",
        Source::Card(|card| card.reading.celsius.map(f64::from)),
    ),
    Family::gauge(
        "gpushare_gpu_power_watts",
        "What the card draws, as NVML says; no series without NVML",
        Source::Card(|card| card.reading.milliwatts.map(|milliwatts| f64::from(milliwatts) / 1000.0)),
    ),
    // Sessions.
    Family::gauge(
        "gpushare_session_processes",
        "Processes of the session",
        Source::Session(|session| Some(session.processes as f64)),
    ),
    Family::gauge(
        "gpushare_session_quota_bytes",
        "The session's quota on each card; no series without a quota",
        Source::Session(|session| session.quota.map(bytes)),
    ),
    Family::gauge(
        "gpushare_session_allocated_bytes",
        "What the session has allocated, resident or not",
        Source::SessionOnCard(|usage| bytes(usage.allocated)),
    ),
    Family::gauge(
        "gpushare_session_leased_bytes",
        "Quota in the hands of the session's processes, used or not",
        Source::SessionOnCard(|usage| bytes(usage.leased)),
    ),
    Family::gauge(
        "gpushare_session_peak_bytes",
        "The most that the session was seen to have allocated",
        Source::SessionOnCard(|usage| bytes(usage.peak)),
    ),
    Family::counter(
        "gpushare_session_refusals_total",
        "Refused allocations of the session",
        Source::Session(|session| Some(session.refusals as f64)),
    ),
    Family::counter(
        "gpushare_session_gpu_seconds_total",
        "Wall time in which the session could submit work: it held the lock and was not known to be idle, in any mode",
        Source::Session(|session| Some(seconds(session.gpu_time))),
    ),
    Family::counter(
        "gpushare_session_waited_seconds_total",
        "Wall time in which the session waited for the lock",
        Source::Session(|session| Some(seconds(session.waited))),
    ),
    Family::counter(
        "gpushare_session_moved_bytes_total",
        "Bytes that the session brought in on grants",
        Source::Session(|session| Some(bytes(session.moved))),
    ),
];

impl Family {
    const fn new(name: &'static str, kind: Kind, help: &'static str, source: Source) -> Self {
        Self { name, kind, help, source }
    }

    const fn counter(name: &'static str, help: &'static str, source: Source) -> Self {
        Self::new(name, Kind::Counter, help, source)
    }

    const fn gauge(name: &'static str, help: &'static str, source: Source) -> Self {
        Self::new(name, Kind::Gauge, help, source)
    }

    const fn histogram(name: &'static str, help: &'static str) -> Self {
        Self::new(name, Kind::Histogram, help, Source::Events(CARD))
    }

    /// The labels of each of its series.
    #[must_use]
    pub fn labels(&self) -> &'static [&'static str] {
        self.source.labels()
    }

    /// Whether it is counted when it happens instead of read when somebody asks.
    pub(super) fn is_counted(&self) -> bool {
        matches!(self.source, Source::Events(_))
    }

    /// Its series now; none if it is counted elsewhere.
    pub(super) fn rows(&self, scene: &Scene) -> Vec<Row> {
        match self.source {
            Source::Daemon(read) => vec![Row { labels: Vec::new(), value: read(scene) }],
            Source::Card(read) => {
                let value = |card| Some(labelled(card, &[], read(card)?));
                scene.cards.values().filter_map(value).collect()
            }
            Source::Session(read) => {
                let value = |tenant: &Tenant| {
                    Some(Row {
                        labels: vec![tenant.session.clone(), tenant.name.clone()],
                        value: read(tenant)?,
                    })
                };
                scene.tenants.iter().filter_map(value).collect()
            }
            Source::SessionOnCard(read) => {
                let tenants = scene.tenants.iter();
                let usages = tenants.flat_map(|tenant| tenant.cards.iter().map(move |on| (tenant, on)));
                let value = |(tenant, (gpu, usage)): (&Tenant, (_, &Usage))| {
                    let mut labels = vec![tenant.session.clone(), tenant.name.clone()];
                    labels.extend(scene.cards.get(gpu)?.labels());
                    let value = read(usage);
                    Some(Row { labels, value })
                };
                usages.filter_map(value).collect()
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
            Self::SessionOnCard(_) => &["session", "name", "gpu", "uuid"],
            Self::Rows(labels, _) | Self::Events(labels) => labels,
        }
    }
}

/// A time as Prometheus has it.
pub(super) fn seconds(time: Nanos) -> f64 {
    Duration::from(time).as_secs_f64()
}

fn bytes(bytes: Bytes) -> f64 {
    bytes.0 as f64
}

/// A limit, if there is one.
fn limit(limit: Bytes) -> Option<f64> {
    (limit != Bytes::MAX).then(|| bytes(limit))
}

fn row<const N: usize>(labels: [&str; N], value: f64) -> Row {
    Row { labels: labels.map(str::to_owned).into(), value }
}

/// A series of a card with labels besides the card's own.
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

/// Of the sessions that have figures of their own.
fn holders(scene: &Scene) -> Vec<Row> {
    let own = scene.picture.sessions.iter().take(tenants::MOST);
    let names: BTreeMap<SessionId, &str> =
        own.map(|session| (session.state.session, session.name.as_str())).collect();
    let cards = scene.cards.values();
    cards
        .filter(|card| card.state.mode != Mode::Parallel)
        .flat_map(|card| {
            let holders = card.state.holders.iter();
            holders.filter_map(|id| Some(labelled(card, &[&id.0.to_string(), names.get(id)?], 1.0)))
        })
        .collect()
}

fn stuck(scene: &Scene) -> usize {
    let sessions = scene.picture.sessions.iter();
    let stuck = |lock: &LockView| matches!(lock, LockView::Dropping { stuck: true, .. });
    sessions.filter(|session| stuck(&session.state.lock)).count()
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

//! Events on pods. They are created one after another beside the agent, which never waits for one.
//!
//! ```text
//!   agent ── report ──▶ queue of QUEUE reports ──▶ API server
//!     ▲                                                │ refused, or no answer
//!     └────────── reports to be made again ────────────┘
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::cluster::Cluster;
use super::plan::Pod;

/// Largest number of reports that wait for the API server.
const QUEUE: usize = 64;

/// Problem of a pod, for which there is one event: UID of the pod, and fault of the annotation.
pub(super) type Key = (String, String);

/// Number of reports on one pod without a pause.
const BURST: u32 = 8;
/// Pause after which a pod may have another report.
const PAUSE: Duration = Duration::from_secs(10);

/// Limits on the reports of each pod. Its owner can write wrong annotations without end.
#[derive(Debug, Default)]
pub(super) struct Budgets(BTreeMap<String, (u32, Instant)>);

impl Budgets {
    /// Takes one report of a pod. Returns whether it had one left.
    pub(super) fn take(&mut self, uid: &str, now: Instant) -> bool {
        let (left, since) = self.0.entry(uid.to_owned()).or_insert((BURST, now));
        let pauses = now.saturating_duration_since(*since).as_secs() / PAUSE.as_secs();
        if pauses > 0 {
            *left = left.saturating_add(u32::try_from(pauses).unwrap_or(BURST)).min(BURST);
            *since = now;
        }
        let has_one = *left > 0;
        *left = left.saturating_sub(1);
        has_one
    }

    /// Forgets the pods that are gone.
    pub(super) fn keep(&mut self, pods: &[Pod]) {
        self.0.retain(|uid, _| pods.iter().any(|pod| pod.uid == *uid));
    }
}

/// Event to be created on a pod.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) key: Key,
    pub(super) pod: Pod,
    pub(super) message: String,
}

/// Report that the API server did not take, with the reason.
pub(super) type Refused = (Key, String);

/// Sender of reports.
#[derive(Clone, Debug)]
pub(super) struct Reports {
    queue: mpsc::Sender<Report>,
    refused: Arc<Mutex<Vec<Refused>>>,
}

/// Receiver of reports, which creates the events.
#[derive(Debug)]
pub(super) struct Reporter {
    queue: mpsc::Receiver<Report>,
    refused: Arc<Mutex<Vec<Refused>>>,
}

/// Returns both ends of a queue of reports.
pub(super) fn queue() -> (Reports, Reporter) {
    let (sender, receiver) = mpsc::channel(QUEUE);
    let refused = Arc::new(Mutex::default());
    (Reports { queue: sender, refused: Arc::clone(&refused) }, Reporter { queue: receiver, refused })
}

impl Reports {
    /// Adds a report to the queue. Returns whether there was room for it.
    pub(super) fn send(&self, report: Report) -> bool {
        self.queue.try_send(report).is_ok()
    }

    /// Returns the reports that were refused since the last call.
    pub(super) fn take_refused(&self) -> Vec<Refused> {
        std::mem::take(&mut *self.refused.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Reporter {
    /// Creates events for ever.
    pub(super) async fn run(mut self, cluster: &Cluster) {
        while let Some(Report { key, pod, message }) = self.queue.recv().await {
            if let Err(problem) = cluster.report(&pod, &message).await {
                let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
                refused.push((key, problem.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_has_few_reports_at_once_and_then_one_a_pause() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let taken = |budgets: &mut Budgets, uid, now| (0..99).filter(|_| budgets.take(uid, now)).count();
        assert_eq!(taken(&mut budgets, "a", start), BURST as usize);
        assert_eq!(taken(&mut budgets, "a", start + PAUSE), 1);
        assert_eq!(taken(&mut budgets, "b", start + PAUSE), BURST as usize);
        assert_eq!(taken(&mut budgets, "a", start + PAUSE * 99), BURST as usize);
        budgets.keep(&[]);
        assert_eq!(budgets.0.len(), 0);
    }

    #[test]
    fn a_full_queue_takes_no_report() {
        let (reports, mut reporter) = queue();
        let report = |n: usize| Report {
            key: (n.to_string(), String::new()),
            pod: Pod {
                uid: n.to_string(),
                namespace: String::new(),
                name: String::new(),
                annotations: BTreeMap::new(),
            },
            message: String::new(),
        };
        let sent = (0..QUEUE + 9).filter(|&n| reports.send(report(n))).count();
        assert_eq!(sent, QUEUE);
        assert_eq!(reporter.queue.try_recv().unwrap().key.0, "0");
        assert!(reports.send(report(0)) && !reports.send(report(0)));
    }
}

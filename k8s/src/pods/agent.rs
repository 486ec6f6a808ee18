//! Life of the agent: it collects the facts, lets `plan` decide, and carries out the acts.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use gpushare_connection::ClientError;
use gpushare_proto::admin::Change;
use gpushare_proto::names::RuntimeDir;
use tokio::sync::watch;
use tracing::{debug, info};

use super::cluster::{Cluster, Pods};
use super::daemon::{self, State};
use super::given::{Given, Source};
use super::maxima::MaximaFile;
use super::plan::{Act, Facts, Plan, Pod, plan};
use super::problem::Problem;
use super::reports::{self, Budgets, Key, Report, Reporter, Reports};
use crate::notes::Notes;

/// Interval between two looks at the kubelet and the daemon.
const EVERY: Duration = Duration::from_millis(500);
/// Pause before something that was refused is tried again.
const RETRY: Duration = Duration::from_secs(3);

/// Places of the facts.
#[derive(Debug)]
pub(crate) struct Sources {
    /// Name of this node in the cluster.
    pub(crate) node: String,
    /// Place that knows which cards pods have.
    pub(crate) cards: Source,
    /// File of the maxima.
    pub(crate) maxima: PathBuf,
    /// Runtime folder of the daemon.
    pub(crate) daemon: RuntimeDir,
}

/// Agent of the node's pods.
#[derive(Debug)]
pub(crate) struct Agent {
    cluster: Cluster,
    reports: Reports,
    reporter: Option<Reporter>,
    cards: Source,
    maxima: MaximaFile,
    daemon: RuntimeDir,
    /// Cards of the pods, as they were last known.
    given: Given,
    said: Said,
    /// Acts that were refused, with the time of the next try.
    refused: BTreeMap<String, Instant>,
    /// Problems that are reported as events, or are about to be.
    reported: BTreeSet<Key>,
    /// Problems whose events were refused, with the time of the next try.
    unreported: BTreeMap<Key, Instant>,
    /// Reports that each pod may still have.
    budgets: Budgets,
}

/// Problems of each source that were logged, so that each is logged once.
#[derive(Debug, Default)]
struct Said {
    kubelet: Notes,
    maxima: Notes,
    daemon: Notes,
    pods: Notes,
}

impl Agent {
    pub(crate) fn new(sources: Sources) -> Self {
        let (reports, reporter) = reports::queue();
        Self {
            cluster: Cluster::of_node(&sources.node),
            reports,
            reporter: Some(reporter),
            cards: sources.cards,
            maxima: MaximaFile::new(&sources.maxima),
            daemon: sources.daemon,
            given: Given::default(),
            said: Said::default(),
            refused: BTreeMap::new(),
            reported: BTreeSet::new(),
            unreported: BTreeMap::new(),
            budgets: Budgets::default(),
        }
    }

    /// Keeps the sessions of the node's pods as their annotations ask for, for ever.
    pub(crate) async fn run(&mut self) {
        let (sender, mut pods) = watch::channel(Pods::None);
        let cluster = self.cluster.clone();
        let reporter = self.reporter.take();
        let create_events = async {
            match reporter {
                Some(reporter) => reporter.run(&cluster).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = cluster.follow(&sender) => {}
            () = create_events => {}
            () = self.keep(&mut pods) => {}
        }
    }

    async fn keep(&mut self, pods: &mut watch::Receiver<Pods>) {
        loop {
            let present = pods.borrow_and_update().clone();
            if let Some(present) = present {
                self.step(&present).await;
            }
            // The sender lives as long as this loop.
            let _ = tokio::time::timeout(EVERY, pods.changed()).await;
        }
    }

    async fn step(&mut self, pods: &[Pod]) {
        match self.cards.given(pods).await {
            Ok(given) => {
                self.given = given;
                self.said.kubelet.clear();
            }
            Err(problem) => self.said.kubelet.warn(&format!("new pods get no session: {problem}")),
        }
        match self.maxima.read() {
            Ok(()) => self.said.maxima.clear(),
            Err(problem) => self.said.maxima.warn(&format!("the limits that hold do not change: {problem}")),
        }
        let Some(maxima) = self.maxima.known() else { return };
        let Some(state) = self.state().await else { return };
        let plan = plan(&Facts {
            pods,
            given: &self.given,
            held: &state.held,
            names: &state.names,
            cards: &state.cards,
            maxima,
        });
        self.act(&plan).await;
        self.report(pods, &plan);
    }

    async fn state(&self) -> Option<State> {
        let dir = self.daemon.clone();
        match blocking(move || daemon::state(&dir)).await? {
            Ok(state) => {
                self.said.daemon.clear();
                Some(state)
            }
            Err(problem) => {
                self.said
                    .daemon
                    .warn(&format!("pods keep the limits that they have: {problem}"));
                None
            }
        }
    }

    async fn act(&mut self, plan: &Plan) {
        let now = Instant::now();
        self.refused.retain(|_, until| *until > now);
        let is_due = |act: &&Act| !self.refused.contains_key(&format!("{act:?}"));
        let acts: Vec<Act> = plan.acts.iter().filter(is_due).cloned().collect();
        if acts.is_empty() {
            return;
        }
        acts.iter().for_each(say);
        let dir = self.daemon.clone();
        match blocking(move || daemon::carry_out(&dir, acts)).await {
            Some(Ok(failed)) => failed.iter().for_each(|(act, cause)| self.failed(act, cause)),
            Some(Err(problem)) => self
                .said
                .daemon
                .warn(&format!("pods keep the limits that they have: {problem}")),
            None => {}
        }
    }

    fn failed(&mut self, act: &Act, cause: &ClientError) {
        match act {
            Act::Create { new, .. } => {
                let name = new.name.as_deref().unwrap_or_default();
                self.said.pods.warn(&format!("pod {name} gets no session: {cause}"));
            }
            Act::Change { session, .. } => {
                self.said.pods.warn(&format!("session {session} keeps its limit: {cause}"));
            }
            // The driver may still free memory of its last process.
            Act::Delete { session } => debug!("session {session} stays for now: {cause}"),
        }
        self.refused.insert(format!("{act:?}"), Instant::now() + RETRY);
    }

    /// Logs each problem that has no event yet, and lets the event be created.
    fn report(&mut self, pods: &[Pod], plan: &Plan) {
        let now = Instant::now();
        for (key, problem) in self.reports.take_refused() {
            self.said.pods.warn(&problem);
            self.reported.remove(&key);
            self.unreported.insert(key, now + RETRY);
        }
        self.unreported.retain(|_, until| *until > now);
        let of_pod =
            |(place, problem): &(usize, Problem)| Some((pods.get(*place)?.uid.clone(), problem.fault()));
        let current: BTreeSet<_> = plan.problems.iter().filter_map(of_pod).collect();
        self.reported.retain(|key| current.contains(key));
        self.budgets.keep(pods);
        for (place, problem) in &plan.problems {
            let Some(pod) = pods.get(*place) else { continue };
            let key = (pod.uid.clone(), problem.fault());
            if self.reported.contains(&key)
                || self.unreported.contains_key(&key)
                || !self.budgets.take(&pod.uid, now)
            {
                continue;
            }
            self.said.pods.warn(&format!("pod {}/{}: {problem}", pod.namespace, pod.name));
            let report = Report { key: key.clone(), pod: pod.clone(), message: problem.to_string() };
            // Those that find no room are sent later.
            if self.reports.send(report) {
                self.reported.insert(key);
            }
        }
    }
}

fn say(act: &Act) {
    match act {
        Act::Create { new, pod } => {
            let name = new.name.as_deref().unwrap_or_default();
            info!("session {name} for pod {pod}: {} of memory", new.terms.memory);
        }
        Act::Change { session, change } => {
            let change = match change {
                Change::Memory(quota) => format!("memory {quota}"),
                Change::Compute(quota) => format!("compute {quota}"),
                Change::Weight(weight) => format!("weight {weight}"),
                Change::Priority(priority) => format!("priority {priority}"),
                Change::FreezeAfter(after) => format!("freeze after {after}"),
            };
            info!("session {session}: {change}, by its pod's annotations");
        }
        Act::Delete { session } => debug!("session {session} has no pod any more"),
    }
}

/// Runs a question to the daemon. None if the thread failed, which ends with the program.
async fn blocking<T: Send + 'static>(question: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(question).await.ok()
}

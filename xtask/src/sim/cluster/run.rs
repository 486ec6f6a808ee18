//! One run: pods arrive, wait, are placed, and end.
//!
//! Pods wait in the order of arrival, and one that cannot be placed holds up nobody, as in kube-scheduler. A
//! pod allocates all of its memory at its start. Where a placement does not limit memory and it does not
//! fit, the pod that starts is out of memory: its Job starts it again, after 10 s, 20 s and so on, at most
//! six times as Kubernetes does by default. Then it has failed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gpushare_proto::{Bytes, Nanos};

use super::Cluster;
use super::card::Card;
use super::placement::Placement;
use super::pods::Pods;

/// Pauses of a Job before it starts a failed pod again.
const BACK_OFF: [Nanos; 6] = [
    Nanos::from_secs(10),
    Nanos::from_secs(20),
    Nanos::from_secs(40),
    Nanos::from_secs(80),
    Nanos::from_secs(160),
    Nanos::from_secs(320),
];

/// End of a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct End {
    /// Time of the start that succeeded; none for a pod that failed.
    pub(super) started: Option<Nanos>,
    pub(super) ended: Nanos,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Outcome {
    /// End of each pod, in the order of the trace.
    pub(super) ends: Vec<End>,
    /// Starts that were out of memory.
    pub(super) out_of_memory: usize,
    /// Work of all cards, in nanoseconds of a whole card.
    pub(super) done: f64,
    /// Work of all cards until the last arrival.
    pub(super) done_in_window: f64,
    /// Time of all cards with a pod, until the last arrival.
    pub(super) occupied: Nanos,
    /// Most memory that was ever on a card.
    pub(super) most_memory: Bytes,
}

/// Event at a planned time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The pod of this number arrives, or is started again.
    Arrival(usize),
    /// A pod on this card is done. Void if the card has a newer plan.
    Completion { node: usize, card: usize, plan: u64 },
}

/// State of a run.
struct Run<'a> {
    placement: Placement,
    shares: usize,
    pods: &'a Pods,
    now: Nanos,
    agenda: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    planned: u64,
    nodes: Vec<Vec<Card>>,
    /// Numbers of the waiting pods, in the order in which they joined the queue.
    waiting: Vec<usize>,
    started: Vec<Option<Nanos>>,
    tries: Vec<usize>,
    ends: Vec<Option<End>>,
    out_of_memory: usize,
    most_memory: Bytes,
}

/// Runs the pods on a cluster.
pub(super) fn run(cluster: &Cluster, placement: Placement, pods: &Pods) -> Outcome {
    let window = pods.pods.last().map_or(Nanos::ZERO, |pod| pod.arrives);
    let node = vec![Card::new(cluster.memory, window); usize::from(cluster.cards)];
    let mut run = Run {
        placement,
        shares: usize::from(cluster.shares),
        pods,
        now: Nanos::ZERO,
        agenda: BinaryHeap::new(),
        planned: 0,
        nodes: vec![node; usize::from(cluster.nodes)],
        waiting: Vec::new(),
        started: vec![None; pods.pods.len()],
        tries: vec![0; pods.pods.len()],
        ends: vec![None; pods.pods.len()],
        out_of_memory: 0,
        most_memory: Bytes::ZERO,
    };
    for (number, pod) in pods.pods.iter().enumerate() {
        run.plan(pod.arrives, Event::Arrival(number));
    }
    while let Some(Reverse((now, _, event))) = run.agenda.pop() {
        run.now = now;
        run.handle(event);
    }
    run.finish()
}

impl Run<'_> {
    fn plan(&mut self, at: Nanos, event: Event) {
        self.planned += 1;
        self.agenda.push(Reverse((at, self.planned, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival(number) => {
                let memory = self.pods.pods[number].memory;
                match self.placement.choose(&self.nodes, self.shares, memory) {
                    Some((node, card)) => self.start(number, node, card),
                    None => self.waiting.push(number),
                }
            }
            Event::Completion { node, card, plan } if self.nodes[node][card].plan == plan => {
                for number in self.nodes[node][card].end(self.now) {
                    self.finish_pod(number, self.started[number]);
                }
                self.plan_completion(node, card);
                self.place_waiting(node);
            }
            Event::Completion { .. } => {}
        }
    }

    /// Places waiting pods on a node that has got room. No other node has room for any of them.
    fn place_waiting(&mut self, node: usize) {
        let mut nth = 0;
        while nth < self.waiting.len() {
            let number = self.waiting[nth];
            let memory = self.pods.pods[number].memory;
            match self.placement.card(&self.nodes[node], self.shares, memory) {
                Some(card) => {
                    self.waiting.remove(nth);
                    self.start(number, node, card);
                }
                None => nth += 1,
            }
        }
    }

    fn start(&mut self, number: usize, node: usize, card: usize) {
        let pod = &self.pods.pods[number];
        let on = &mut self.nodes[node][card];
        if self.placement.requires_fit() && !on.has_room_for(pod.memory) {
            return self.fail(number);
        }
        on.start(self.now, number, pod);
        self.most_memory = self.most_memory.max(on.used());
        self.started[number] = Some(self.now);
        self.plan_completion(node, card);
    }

    fn fail(&mut self, number: usize) {
        self.out_of_memory += 1;
        match BACK_OFF.get(self.tries[number]) {
            Some(pause) => {
                self.tries[number] += 1;
                self.plan(self.now + *pause, Event::Arrival(number));
            }
            None => self.finish_pod(number, None),
        }
    }

    fn finish_pod(&mut self, number: usize, started: Option<Nanos>) {
        assert!(self.ends[number].is_none(), "pod {number} ended twice");
        self.ends[number] = Some(End { started, ended: self.now });
    }

    /// Plans the next completion on a card, in place of the one that was planned before.
    fn plan_completion(&mut self, node: usize, card: usize) {
        let on = &mut self.nodes[node][card];
        on.plan += 1;
        let plan = on.plan;
        if let Some(at) = on.next_end() {
            self.plan(at, Event::Completion { node, card, plan });
        }
    }

    fn finish(self) -> Outcome {
        let cards = || self.nodes.iter().flatten();
        Outcome {
            out_of_memory: self.out_of_memory,
            done: cards().map(|card| card.done).sum(),
            done_in_window: cards().map(|card| card.done_in_window).sum(),
            occupied: cards().map(|card| card.occupied).sum(),
            most_memory: self.most_memory,
            ends: self
                .ends
                .into_iter()
                .map(|end| end.expect("every pod ends: each fits on a card"))
                .collect(),
        }
    }
}

//! Graphs: nodes with work and what each comes after, made by a capture or one by one.
//!
//! A graph is launched as one list of work in an order that respects all its edges. An instantiated graph
//! keeps its own copy of the nodes, so that later changes of the graph do not reach it, and an update
//! replaces the work in it.

use std::collections::{BTreeMap, BTreeSet};

use simgpu_card::ids::GraphId;
use simgpu_card::wire::{Op, Request};

use crate::api::copy::Copy3d;
use crate::api::node::{HostParams, MemsetParams};
use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::handles::{Handle, Tag};
use crate::state::State;

/// Nodes that another one comes after.
pub(crate) type Frontier = BTreeSet<u32>;

/// A graph: nodes by their numbers, which rise in the order of their making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: BTreeMap<u32, Node>,
}

#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) kind: Kind,
    pub(crate) work: Vec<Op>,
    pub(crate) after: Frontier,
    pub(crate) params: Params,
    /// The node that this one is a clone of.
    pub(crate) cloned_from: Option<u32>,
}

/// `CUgraphNodeType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Kind {
    Kernel = 0,
    Memcpy = 1,
    Memset = 2,
    Host = 3,
    Graph = 4,
    Empty = 5,
    WaitEvent = 6,
    RecordEvent = 7,
    Allocate = 10,
    Free = 11,
    MemoryOperation = 12,
}

/// Parameters of which a node was made, for calls that ask for them.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Params {
    None,
    Memcpy(Copy3d),
    Memset(MemsetParams),
    Host(HostParams),
    /// The graph inside, which is a copy of its own.
    Child(u32),
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) graph: Graph,
    /// Pieces of work of a launch.
    pub(crate) size: usize,
    /// Whether a launch takes memory, and may fail for it.
    pub(crate) allocates: bool,
}

/// Why an update was not possible: `CUgraphExecUpdateResult`.
#[derive(Debug, Clone, Copy)]
#[repr(u32)]
pub(crate) enum Mismatch {
    Topology = 2,
    NodeType = 3,
}

impl Node {
    pub(crate) fn new(kind: Kind, work: Vec<Op>, after: Frontier) -> Self {
        Self { kind, work, after, params: Params::None, cloned_from: None }
    }
}

impl Kind {
    /// The kind of node that captured work becomes.
    pub(crate) fn of(op: &Op) -> Self {
        match op {
            Op::Kernel(_) | Op::Fail(_) | Op::Pause(_) => Self::Kernel,
            Op::Copy { .. } | Op::Upload { .. } | Op::Download { .. } | Op::Prefetch { .. } => Self::Memcpy,
            Op::Set { .. } => Self::Memset,
            Op::HostCall(_) => Self::Host,
            Op::WaitEvent(_) => Self::WaitEvent,
            Op::Record(_) | Op::RecordContext(_) => Self::RecordEvent,
            Op::Allocate { .. } => Self::Allocate,
            Op::Release(_) => Self::Free,
            Op::WaitValue { .. } | Op::WriteValue { .. } => Self::MemoryOperation,
        }
    }
}

impl Graph {
    /// All nodes, each after those that it comes after, else as they were made; a circle is an error.
    fn order(&self) -> Answer<Vec<u32>> {
        let mut ordered = Vec::with_capacity(self.nodes.len());
        let mut done = Frontier::new();
        let mut left: Vec<u32> = self.nodes.keys().copied().collect();
        while !left.is_empty() {
            let before = left.len();
            left.retain(|id| {
                let ready = self.nodes[id].after.iter().all(|node| done.contains(node));
                if ready {
                    done.insert(*id);
                    ordered.push(*id);
                }
                !ready
            });
            if left.len() == before {
                return Err(Code::INVALID_VALUE);
            }
        }
        Ok(ordered)
    }

    /// The work of a launch.
    pub(crate) fn work(&self) -> Answer<Vec<Op>> {
        let order = self.order()?;
        Ok(order.iter().flat_map(|id| self.nodes[id].work.clone()).collect())
    }

    pub(crate) fn remove(&mut self, id: u32) {
        self.nodes.remove(&id);
        for node in self.nodes.values_mut() {
            node.after.remove(&id);
        }
    }

    /// Copies the nodes under new numbers.
    pub(crate) fn copy(&self, mut fresh: impl FnMut() -> u32) -> Self {
        let numbers: BTreeMap<u32, u32> = self.nodes.keys().map(|id| (*id, fresh())).collect();
        let copied = self.nodes.iter().map(|(id, node)| {
            let after = node.after.iter().map(|before| numbers[before]).collect();
            let copy = Node { after, cloned_from: Some(*id), ..node.clone() };
            (numbers[id], copy)
        });
        Self { nodes: copied.collect() }
    }

    /// Takes over the work of a graph of the same shape.
    pub(crate) fn update(&mut self, from: &Self) -> Result<(), (Mismatch, u32)> {
        let last = from.nodes.keys().next_back().copied().unwrap_or(0);
        if self.nodes.len() != from.nodes.len() {
            return Err((Mismatch::Topology, last));
        }
        let places: BTreeMap<u32, u32> = from.nodes.keys().copied().zip(self.nodes.keys().copied()).collect();
        for (own, (id, new)) in self.nodes.values().zip(&from.nodes) {
            if own.kind != new.kind {
                return Err((Mismatch::NodeType, *id));
            }
            if own.after != new.after.iter().map(|before| places[before]).collect() {
                return Err((Mismatch::Topology, *id));
            }
        }
        for (own, new) in self.nodes.values_mut().zip(from.nodes.values()) {
            own.work.clone_from(&new.work);
        }
        Ok(())
    }
}

/// Addresses in a piece of work at which the driver looks itself.
fn addresses(op: &Op) -> Vec<u64> {
    match op {
        Op::Copy { to, from, .. } => vec![to.address, from.address],
        Op::Set { to, .. } | Op::Upload { to, .. } => vec![to.address],
        Op::Download { from, .. } => vec![from.address],
        Op::WaitValue { address, .. } | Op::WriteValue { address, .. } => vec![*address],
        _ => Vec::new(),
    }
}

impl State {
    pub(crate) fn graph(&mut self, handle: Handle) -> Answer<(u32, &mut Graph)> {
        let id = Tag::Graph.id(handle).ok_or(Code::INVALID_VALUE)?;
        Ok((id, self.graphs.get_mut(&id).ok_or(Code::INVALID_VALUE)?))
    }

    /// The graph that a node is in, and its number.
    pub(crate) fn node(&mut self, handle: Handle) -> Answer<(&mut Graph, u32)> {
        let id = Tag::GraphNode.id(handle).ok_or(Code::INVALID_VALUE)?;
        let mut graphs = self.graphs.values_mut();
        let graph = graphs.find(|graph| graph.nodes.contains_key(&id));
        Ok((graph.ok_or(Code::INVALID_VALUE)?, id))
    }

    pub(crate) fn exec(&mut self, handle: Handle) -> Answer<(u32, &mut Exec)> {
        let id = Tag::GraphExec.id(handle).ok_or(Code::INVALID_VALUE)?;
        Ok((id, self.graph_execs.get_mut(&id).ok_or(Code::INVALID_VALUE)?))
    }

    /// Keeps an instantiated graph, anew or changed, and tells the card what a launch of it is.
    pub(crate) fn define(&mut self, id: u32, graph: Graph) -> Answer {
        let work = graph.work()?;
        // The real driver looks at the addresses of copies and fills, and not at those that kernels get.
        if work.iter().flat_map(addresses).any(|address| self.is_hole(address)) {
            return Err(Code::INVALID_VALUE);
        }
        let exec = Exec {
            graph,
            size: work.len(),
            allocates: work.iter().any(|op| matches!(op, Op::Allocate { .. })),
        };
        self.graph_execs.insert(id, exec);
        for op in &work {
            if let Op::Record(event) = op
                && let Some(event) = self.events.get_mut(event)
            {
                event.in_graphs = true;
            }
        }
        driver()?.tell(Request::DefineGraph(GraphId(id), work))
    }
}

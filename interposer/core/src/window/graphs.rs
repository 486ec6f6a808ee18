//! Executable graphs: number of kernels, and whether a kernel communicates with other cards. The figures are
//! estimates; sessions are charged by time.
//!
//! A launch finds its graph by a hash, without a lock. A graph that does not fit into the table counts as one
//! launch without communication. So do nodes that are exchanged later, and the bodies of conditional nodes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::driver::types::{
    CUDA_SUCCESS, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUresult, KernelNode, NODE_GRAPH,
    NODE_KERNEL,
};
use crate::driver::{Driver, answer};
use crate::gate::collectives::Collectives;
use crate::process::lock;

const ENTRIES: usize = 1024;
const PROBES: usize = 16;
/// Largest depth of child graphs within graphs to which kernels are counted.
const MAX_DEPTH: usize = 4;

/// Table of the executable graphs of the process.
#[derive(Debug)]
pub struct Graphs {
    entries: Box<[Entry]>,
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Entry {
    graph: AtomicUsize,
    kernels: AtomicU32,
    communicates: AtomicBool,
}

/// Kernels of an executable graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Number of kernel nodes, including those of child graphs.
    pub kernels: u32,
    /// Whether a kernel of the graph communicates with other cards.
    pub communicates: bool,
}

impl Contents {
    /// Assumed contents of a graph that the driver does not describe.
    const UNKNOWN: Self = Self { kernels: 1, communicates: false };

    fn and(self, other: Self) -> Self {
        Self {
            kernels: self.kernels.saturating_add(other.kernels),
            communicates: self.communicates || other.communicates,
        }
    }
}

impl Default for Graphs {
    fn default() -> Self {
        Self {
            entries: (0..ENTRIES).map(|_| Entry::default()).collect(),
            changing: Mutex::default(),
        }
    }
}

impl Graphs {
    /// Adds an executable graph to the table.
    pub fn insert(&self, graph: CUgraphExec, contents: Contents) {
        let _changing = lock(&self.changing);
        let of = |wanted: usize| {
            self.near(graph.addr())
                .find(|entry| entry.graph.load(Ordering::Relaxed) == wanted)
        };
        let Some(entry) = of(graph.addr()).or_else(|| of(0)) else { return };
        entry.kernels.store(contents.kernels.max(1), Ordering::Relaxed);
        entry.communicates.store(contents.communicates, Ordering::Relaxed);
        entry.graph.store(graph.addr(), Ordering::Release);
    }

    /// Removes a graph, then calls the driver to destroy it. In the other order the handle could already
    /// belong to a new graph of another thread.
    pub fn destroy(&self, graph: CUgraphExec, real: impl FnOnce() -> CUresult) -> CUresult {
        let known = self.take(graph);
        let result = real();
        if let (Some(contents), true) = (known, result != CUDA_SUCCESS) {
            self.insert(graph, contents);
        }
        result
    }

    fn take(&self, graph: CUgraphExec) -> Option<Contents> {
        let _changing = lock(&self.changing);
        let entry = self.find(graph)?;
        entry.graph.store(0, Ordering::Release);
        let kernels = entry.kernels.load(Ordering::Relaxed);
        Some(Contents { kernels, communicates: entry.communicates.load(Ordering::Relaxed) })
    }

    /// Returns the number of launches that one launch of this graph counts as.
    pub fn size(&self, graph: CUgraphExec) -> u64 {
        self.find(graph)
            .map_or(1, |entry| u64::from(entry.kernels.load(Ordering::Relaxed)))
    }

    /// Returns whether a kernel in this graph communicates with other cards.
    pub fn communicates(&self, graph: CUgraphExec) -> bool {
        self.find(graph).is_some_and(|entry| entry.communicates.load(Ordering::Relaxed))
    }

    fn find(&self, graph: CUgraphExec) -> Option<&Entry> {
        self.near(graph.addr())
            .find(|entry| entry.graph.load(Ordering::Acquire) == graph.addr())
    }

    fn near(&self, address: usize) -> impl Iterator<Item = &Entry> {
        let from = ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).map(move |step| &self.entries[(from + step) % ENTRIES])
    }
}

/// Counts the kernels of a graph and of its child graphs.
pub fn contents(driver: &Driver, collectives: &Collectives, graph: CUgraph) -> Contents {
    count(driver, collectives, graph, MAX_DEPTH).unwrap_or(Contents::UNKNOWN)
}

fn count(driver: &Driver, collectives: &Collectives, graph: CUgraph, deeper: usize) -> Option<Contents> {
    let (get_nodes, get_type) = (driver.graph_get_nodes?, driver.graph_node_get_type?);
    // SAFETY: without an array the driver only writes the number of nodes.
    let mut many = answer(0, |many| unsafe { get_nodes(graph, std::ptr::null_mut(), many) })?;
    let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); many];
    // SAFETY: the array has `many` elements.
    if unsafe { get_nodes(graph, nodes.as_mut_ptr(), &raw mut many) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(many);
    let found = nodes.into_iter().map(|node| {
        // SAFETY: writes one integer.
        let Some(kind) = answer(0, |kind| unsafe { get_type(node, kind) }) else {
            return Contents::default();
        };
        match (kind, driver.graph_child_get_graph) {
            (NODE_KERNEL, _) => {
                let communicates = launched_function(driver, node)
                    .is_some_and(|function| collectives.is_collective(driver, function));
                Contents { kernels: 1, communicates }
            }
            (NODE_GRAPH, Some(get_graph)) if deeper > 0 => {
                // SAFETY: writes one handle.
                let within = answer(std::ptr::null_mut(), |within| unsafe { get_graph(node, within) });
                let known = within.and_then(|within| count(driver, collectives, within, deeper - 1));
                known.unwrap_or(Contents::UNKNOWN)
            }
            _ => Contents::default(),
        }
    });
    Some(found.fold(Contents::default(), Contents::and))
}

fn launched_function(driver: &Driver, node: CUgraphNode) -> Option<CUfunction> {
    // SAFETY: integers and pointers, which may all be zero.
    let none: KernelNode = unsafe { std::mem::zeroed() };
    let ask = driver.graph_kernel_node_get_params?;
    // SAFETY: writes one structure of this layout.
    let launched = answer(none, |launched| unsafe { ask(node, launched) })?;
    [launched.function, launched.kernel]
        .into_iter()
        .find(|handle| !handle.is_null())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::types::CUDA_ERROR_INVALID_VALUE;

    fn graph(number: usize) -> CUgraphExec {
        std::ptr::without_provenance_mut(number * 64)
    }

    fn quiet(kernels: u32) -> Contents {
        Contents { kernels, communicates: false }
    }

    #[test]
    fn a_graph_counts_as_its_kernels_until_it_is_gone() {
        let graphs = Graphs::default();
        graphs.insert(graph(1), quiet(1_000));
        graphs.insert(graph(2), quiet(0));
        assert_eq!([1, 2, 3].map(|number| graphs.size(graph(number))), [1_000, 1, 1]);
        graphs.insert(graph(1), quiet(20));
        assert_eq!(graphs.size(graph(1)), 20);
        assert_eq!(graphs.destroy(graph(1), || CUDA_SUCCESS), CUDA_SUCCESS);
        assert_eq!(graphs.size(graph(1)), 1);
    }

    #[test]
    fn a_graph_that_could_not_be_destroyed_is_still_known_and_one_that_has_its_handle_next_is_too() {
        let graphs = Graphs::default();
        let communicates = Contents { kernels: 9, communicates: true };
        graphs.insert(graph(1), communicates);
        assert_eq!(graphs.destroy(graph(1), || CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!((graphs.size(graph(1)), graphs.communicates(graph(1))), (9, true));
        // Another thread enters a graph of the same handle before this one returns from the driver.
        graphs.destroy(graph(1), || {
            graphs.insert(graph(1), quiet(3));
            CUDA_SUCCESS
        });
        assert_eq!((graphs.size(graph(1)), graphs.communicates(graph(1))), (3, false));
    }

    #[test]
    fn a_graph_communicates_if_one_of_its_kernels_does_until_another_has_its_handle() {
        let communicates = quiet(3).and(Contents { kernels: 1, communicates: true }).and(quiet(2));
        assert_eq!(communicates, Contents { kernels: 6, communicates: true });
        let graphs = Graphs::default();
        assert!(!graphs.communicates(graph(1)));
        graphs.insert(graph(1), communicates);
        assert!(graphs.communicates(graph(1)) && !graphs.communicates(graph(2)));
        graphs.insert(graph(1), quiet(6));
        assert!(!graphs.communicates(graph(1)));
    }

    #[test]
    fn more_graphs_than_places_count_as_one_launch() {
        let graphs = Graphs::default();
        (1..=2 * ENTRIES).for_each(|number| graphs.insert(graph(number), quiet(7)));
        let known = (1..=2 * ENTRIES).filter(|&number| graphs.size(graph(number)) == 7).count();
        assert!((ENTRIES / 2..=ENTRIES).contains(&known), "{known}");
        (1..=2 * ENTRIES).for_each(|number| _ = graphs.destroy(graph(number), || CUDA_SUCCESS));
        assert_eq!(graphs.size(graph(1)), 1);
    }
}

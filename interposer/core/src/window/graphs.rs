//! What a graph is worth: its kernel nodes, counted when it is made ready. A hint; what is charged is time.
//!
//! A launch finds the count by a hash and without a lock; what does not fit into the table counts as one launch.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::cuda::{CUDA_SUCCESS, CUgraph, CUgraphExec, CUgraphNode, NODE_GRAPH, NODE_KERNEL};
use crate::driver::Driver;
use crate::lock;

const PLACES: usize = 1024;
const PROBES: usize = 16;
/// Graphs within graphs are counted so deep.
const DEEPEST: usize = 4;

/// Graphs that are ready to be launched.
#[derive(Debug)]
pub struct Graphs {
    places: Box<[Place]>,
    /// Held by who makes or destroys one.
    changing: Mutex<()>,
}

#[derive(Debug, Default)]
struct Place {
    graph: AtomicUsize,
    kernels: AtomicU32,
}

impl Default for Graphs {
    fn default() -> Self {
        Self { places: (0..PLACES).map(|_| Place::default()).collect(), changing: Mutex::default() }
    }
}

impl Graphs {
    /// A graph was made ready.
    pub fn made(&self, graph: CUgraphExec, kernels: u32) {
        let _changing = lock(&self.changing);
        let of = |wanted: usize| self.near(graph.addr()).find(|place| place.graph.load(Ordering::Relaxed) == wanted);
        let Some(place) = of(graph.addr()).or_else(|| of(0)) else { return };
        place.kernels.store(kernels.max(1), Ordering::Relaxed);
        place.graph.store(graph.addr(), Ordering::Release);
    }

    /// And is no more.
    pub fn gone(&self, graph: CUgraphExec) {
        let _changing = lock(&self.changing);
        if let Some(place) = self.near(graph.addr()).find(|place| place.graph.load(Ordering::Relaxed) == graph.addr()) {
            place.graph.store(0, Ordering::Release);
        }
    }

    /// What a launch of it counts as.
    #[must_use]
    pub fn size(&self, graph: CUgraphExec) -> u64 {
        self.near(graph.addr())
            .find(|place| place.graph.load(Ordering::Acquire) == graph.addr())
            .map_or(1, |place| u64::from(place.kernels.load(Ordering::Relaxed)))
    }

    fn near(&self, address: usize) -> impl Iterator<Item = &Place> {
        let from = ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).map(move |step| &self.places[(from + step) % PLACES])
    }
}

/// The kernel nodes of a graph, those of graphs within it too.
#[must_use]
pub fn kernels(driver: &Driver, graph: CUgraph) -> u32 {
    count(driver, graph, DEEPEST).unwrap_or(1)
}

fn count(driver: &Driver, graph: CUgraph, deeper: usize) -> Option<u32> {
    let (get_nodes, get_type) = (driver.graph_get_nodes?, driver.graph_node_get_type?);
    let mut many = 0;
    // SAFETY: without an array the driver writes how many there are.
    if unsafe { get_nodes(graph, std::ptr::null_mut(), &raw mut many) } != CUDA_SUCCESS {
        return None;
    }
    let mut nodes: Vec<CUgraphNode> = vec![std::ptr::null_mut(); many];
    // SAFETY: the array has as many places as it is said to have.
    if unsafe { get_nodes(graph, nodes.as_mut_ptr(), &raw mut many) } != CUDA_SUCCESS {
        return None;
    }
    nodes.truncate(many);
    let kernels = nodes.into_iter().map(|node| {
        let mut kind = 0;
        // SAFETY: writes one integer.
        if unsafe { get_type(node, &raw mut kind) } != CUDA_SUCCESS {
            return 0;
        }
        match (kind, driver.graph_child_get_graph) {
            (NODE_KERNEL, _) => 1,
            (NODE_GRAPH, Some(get_graph)) if deeper > 0 => {
                let mut within = std::ptr::null_mut();
                // SAFETY: writes one handle.
                let asked = unsafe { get_graph(node, &raw mut within) };
                if asked == CUDA_SUCCESS { count(driver, within, deeper - 1).unwrap_or(1) } else { 1 }
            }
            _ => 0,
        }
    });
    Some(kernels.fold(0, u32::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(number: usize) -> CUgraphExec {
        std::ptr::without_provenance_mut(number * 64)
    }

    #[test]
    fn a_graph_counts_as_its_kernels_until_it_is_gone() {
        let graphs = Graphs::default();
        graphs.made(graph(1), 1_000);
        graphs.made(graph(2), 0);
        assert_eq!([1, 2, 3].map(|number| graphs.size(graph(number))), [1_000, 1, 1]);
        graphs.made(graph(1), 20);
        assert_eq!(graphs.size(graph(1)), 20);
        graphs.gone(graph(1));
        assert_eq!(graphs.size(graph(1)), 1);
    }

    #[test]
    fn more_graphs_than_places_count_as_one_launch() {
        let graphs = Graphs::default();
        (1..=2 * PLACES).for_each(|number| graphs.made(graph(number), 7));
        let known = (1..=2 * PLACES).filter(|&number| graphs.size(graph(number)) == 7).count();
        assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
        (1..=2 * PLACES).for_each(|number| graphs.gone(graph(number)));
        assert_eq!(graphs.size(graph(1)), 1);
    }
}

//! What is in a graph: its kernel nodes, counted when it is made ready, and whether one of them talks to other cards. A hint; what
//! is charged is time.
//!
//! A launch finds it by a hash and without a lock; what does not fit into the table counts as one launch that talks to nobody, as do
//! nodes that are exchanged later and the bodies of conditional nodes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::collectives::Collectives;
use crate::driver::Driver;
use crate::driver::types::{
    CUDA_SUCCESS, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUresult, KernelNode, NODE_GRAPH,
    NODE_KERNEL,
};
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
    talks: AtomicBool,
}

/// What is in a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contents {
    /// Kernel nodes, those of graphs within it too.
    pub kernels: u32,
    /// Whether one of them is a kernel that talks to other cards.
    pub talks: bool,
}

impl Contents {
    /// What nobody can tell.
    const UNKNOWN: Self = Self { kernels: 1, talks: false };

    fn and(self, other: Self) -> Self {
        Self {
            kernels: self.kernels.saturating_add(other.kernels),
            talks: self.talks || other.talks,
        }
    }
}

impl Default for Graphs {
    fn default() -> Self {
        Self {
            places: (0..PLACES).map(|_| Place::default()).collect(),
            changing: Mutex::default(),
        }
    }
}

impl Graphs {
    /// A graph was made ready.
    pub fn made(&self, graph: CUgraphExec, contents: Contents) {
        let _changing = lock(&self.changing);
        let of = |wanted: usize| {
            self.near(graph.addr())
                .find(|place| place.graph.load(Ordering::Relaxed) == wanted)
        };
        let Some(place) = of(graph.addr()).or_else(|| of(0)) else { return };
        place.kernels.store(contents.kernels.max(1), Ordering::Relaxed);
        place.talks.store(contents.talks, Ordering::Relaxed);
        place.graph.store(graph.addr(), Ordering::Release);
    }

    /// And is destroyed. It is forgotten before that: afterwards the handle may be another thread's new graph.
    pub fn destroy(&self, graph: CUgraphExec, real: impl FnOnce() -> CUresult) -> CUresult {
        let known = self.take(graph);
        let result = real();
        if let (Some(contents), true) = (known, result != CUDA_SUCCESS) {
            self.made(graph, contents);
        }
        result
    }

    fn take(&self, graph: CUgraphExec) -> Option<Contents> {
        let _changing = lock(&self.changing);
        let place = self.find(graph)?;
        place.graph.store(0, Ordering::Release);
        let kernels = place.kernels.load(Ordering::Relaxed);
        Some(Contents { kernels, talks: place.talks.load(Ordering::Relaxed) })
    }

    /// What a launch of it counts as.
    #[must_use]
    pub fn size(&self, graph: CUgraphExec) -> u64 {
        self.find(graph)
            .map_or(1, |place| u64::from(place.kernels.load(Ordering::Relaxed)))
    }

    /// Whether a kernel in it talks to other cards.
    #[must_use]
    pub fn talks(&self, graph: CUgraphExec) -> bool {
        self.find(graph).is_some_and(|place| place.talks.load(Ordering::Relaxed))
    }

    fn find(&self, graph: CUgraphExec) -> Option<&Place> {
        self.near(graph.addr())
            .find(|place| place.graph.load(Ordering::Acquire) == graph.addr())
    }

    fn near(&self, address: usize) -> impl Iterator<Item = &Place> {
        let from = ((address as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (0..PROBES).map(move |step| &self.places[(from + step) % PLACES])
    }
}

/// What is in a graph and in the graphs within it.
#[must_use]
pub fn contents(driver: &Driver, collectives: &Collectives, graph: CUgraph) -> Contents {
    look_into(driver, collectives, graph, DEEPEST).unwrap_or(Contents::UNKNOWN)
}

fn look_into(driver: &Driver, collectives: &Collectives, graph: CUgraph, deeper: usize) -> Option<Contents> {
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
    let found = nodes.into_iter().map(|node| {
        let mut kind = 0;
        // SAFETY: writes one integer.
        if unsafe { get_type(node, &raw mut kind) } != CUDA_SUCCESS {
            return Contents::default();
        }
        match (kind, driver.graph_child_get_graph) {
            (NODE_KERNEL, _) => {
                let talks = kernel(driver, node).is_some_and(|function| collectives.is_one(driver, function));
                Contents { kernels: 1, talks }
            }
            (NODE_GRAPH, Some(get_graph)) if deeper > 0 => {
                let mut within = std::ptr::null_mut();
                // SAFETY: writes one handle.
                let asked = unsafe { get_graph(node, &raw mut within) };
                let known =
                    (asked == CUDA_SUCCESS).then(|| look_into(driver, collectives, within, deeper - 1));
                known.flatten().unwrap_or(Contents::UNKNOWN)
            }
            _ => Contents::default(),
        }
    });
    Some(found.fold(Contents::default(), Contents::and))
}

/// What a kernel node launches: a function, or a kernel of a library.
fn kernel(driver: &Driver, node: CUgraphNode) -> Option<CUfunction> {
    let mut launched = KernelNode::default();
    // SAFETY: writes one structure of this layout.
    let asked = unsafe { driver.graph_kernel_node_get_params?(node, &raw mut launched) };
    let named = [launched.function, launched.kernel]
        .into_iter()
        .find(|handle| !handle.is_null());
    named.filter(|_| asked == CUDA_SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::types::CUDA_ERROR_INVALID_VALUE;

    fn graph(number: usize) -> CUgraphExec {
        std::ptr::without_provenance_mut(number * 64)
    }

    fn quiet(kernels: u32) -> Contents {
        Contents { kernels, talks: false }
    }

    #[test]
    fn a_graph_counts_as_its_kernels_until_it_is_gone() {
        let graphs = Graphs::default();
        graphs.made(graph(1), quiet(1_000));
        graphs.made(graph(2), quiet(0));
        assert_eq!([1, 2, 3].map(|number| graphs.size(graph(number))), [1_000, 1, 1]);
        graphs.made(graph(1), quiet(20));
        assert_eq!(graphs.size(graph(1)), 20);
        assert_eq!(graphs.destroy(graph(1), || CUDA_SUCCESS), CUDA_SUCCESS);
        assert_eq!(graphs.size(graph(1)), 1);
    }

    #[test]
    fn a_graph_that_could_not_be_destroyed_is_still_known_and_one_that_has_its_handle_next_is_too() {
        let graphs = Graphs::default();
        let talks = Contents { kernels: 9, talks: true };
        graphs.made(graph(1), talks);
        assert_eq!(graphs.destroy(graph(1), || CUDA_ERROR_INVALID_VALUE), CUDA_ERROR_INVALID_VALUE);
        assert_eq!((graphs.size(graph(1)), graphs.talks(graph(1))), (9, true));
        // Another thread makes one while the first has not returned from the driver yet.
        graphs.destroy(graph(1), || {
            graphs.made(graph(1), quiet(3));
            CUDA_SUCCESS
        });
        assert_eq!((graphs.size(graph(1)), graphs.talks(graph(1))), (3, false));
    }

    #[test]
    fn a_graph_talks_if_one_of_its_kernels_does_until_another_has_its_handle() {
        let talks = quiet(3).and(Contents { kernels: 1, talks: true }).and(quiet(2));
        assert_eq!(talks, Contents { kernels: 6, talks: true });
        let graphs = Graphs::default();
        assert!(!graphs.talks(graph(1)));
        graphs.made(graph(1), talks);
        assert!(graphs.talks(graph(1)) && !graphs.talks(graph(2)));
        graphs.made(graph(1), quiet(6));
        assert!(!graphs.talks(graph(1)));
    }

    #[test]
    fn more_graphs_than_places_count_as_one_launch() {
        let graphs = Graphs::default();
        (1..=2 * PLACES).for_each(|number| graphs.made(graph(number), quiet(7)));
        let known = (1..=2 * PLACES).filter(|&number| graphs.size(graph(number)) == 7).count();
        assert!((PLACES / 2..=PLACES).contains(&known), "{known}");
        (1..=2 * PLACES).for_each(|number| _ = graphs.destroy(graph(number), || CUDA_SUCCESS));
        assert_eq!(graphs.size(graph(1)), 1);
    }
}

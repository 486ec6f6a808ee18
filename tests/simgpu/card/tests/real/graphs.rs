//! Graphs made node by node.

use std::ffi::{CStr, c_void};
use std::ptr::null;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::MIB;
use crate::program::{Handle, Program};

const INVALID_VALUE: u32 = 1;
const UPDATE_FAILURE: u32 = 910;

/// `CUgraphNodeParams` of a fill and of an allocation.
#[repr(C)]
pub(crate) struct AnyNode<T> {
    kind: u32,
    reserved: [i32; 3],
    params: T,
    rest: [u64; 29],
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNode {
    function: Handle,
    shape: [u32; 7],
    parameters: *const *const u64,
    extra: usize,
    kernel: Handle,
    context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MemsetNode {
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
pub(crate) struct HostNode {
    function: extern "C" fn(*mut c_void),
    data: *mut c_void,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: kind, handle types, place and the rest of the pool's properties.
#[repr(C)]
pub(crate) struct AllocateNode {
    pool: [u64; 11],
    access: [usize; 2],
    bytes: usize,
    address: u64,
}

static CALLS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_data: *mut c_void) {
    CALLS.fetch_add(1, Ordering::SeqCst);
}

struct Builder<'a> {
    program: &'a Program,
    kernels: Handle,
    graph: Handle,
}

impl Builder<'_> {
    fn with_kernel<T>(&self, name: &str, parameters: &[u64; 3], then: impl FnOnce(&KernelNode) -> T) -> T {
        let pointers: Vec<*const u64> = parameters.iter().map(std::ptr::from_ref).collect();
        then(&KernelNode {
            function: self.program.function(self.kernels, name),
            shape: [1, 1, 1, 32, 1, 1, 0],
            parameters: pointers.as_ptr(),
            extra: 0,
            kernel: 0,
            context: 0,
        })
    }

    fn kernel(&self, name: &str, parameters: [u64; 3], after: &[Handle]) -> Handle {
        let mut node = 0;
        let add = |params: &KernelNode| {
            self.program
                .cuGraphAddKernelNode_v2(&mut node, self.graph, after.as_ptr(), after.len(), params)
        };
        assert_eq!(self.with_kernel(name, &parameters, add), 0);
        node
    }
}

pub(crate) fn builds_graphs() {
    let program = &Program::start();
    let kernels = program.kernels();
    let (mut stream, mut words, mut graph) = (0, 0, 0);
    assert_eq!(program.cuStreamCreate(&mut stream, 1), 0);
    assert_eq!(program.cuMemAlloc_v2(&mut words, 64), 0);
    assert_eq!(program.cuGraphCreate(&mut graph, 0), 0);
    let build = Builder { program, kernels, graph };

    // Made against the order in which they must run: add comes after the memset, which is made later.
    let add = build.kernel("add", [words, 4, 2], &[]);
    let clear = MemsetNode { to: words, pitch: 0, value: 5, element: 4, width: 16, height: 1 };
    let (mut memset, mut host, mut empty) = (0, 0, 0);
    assert_eq!(program.cuGraphAddMemsetNode(&mut memset, graph, null(), 0, &clear, 0), 0);
    assert_eq!(program.cuGraphAddDependencies(graph, &memset, &add, 1), 0);
    assert_eq!(program.cuGraphAddDependencies(graph, &memset, &add, 1), INVALID_VALUE, "twice");
    let call = HostNode { function: count, data: std::ptr::null_mut() };
    assert_eq!(program.cuGraphAddHostNode(&mut host, graph, &add, 1, &call), 0);
    assert_eq!(program.cuGraphAddEmptyNode(&mut empty, graph, &host, 1), 0);

    let (mut nodes, mut roots, mut kind) = (0, 0, 9);
    assert_eq!(program.cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes), 0);
    assert_eq!(program.cuGraphGetRootNodes(graph, std::ptr::null_mut(), &mut roots), 0);
    assert_eq!((nodes, roots), (4, 1));
    let (mut before, mut one) = (0, 1);
    assert_eq!(program.cuGraphNodeGetDependencies(add, &mut before, &mut one), 0);
    assert_eq!((before, one), (memset, 1));
    assert_eq!(program.cuGraphNodeGetType(empty, &mut kind), 0);
    assert_eq!(kind, 5);
    let mut asked = MemsetNode { value: 0, ..clear };
    assert_eq!(program.cuGraphMemsetNodeGetParams(memset, &mut asked), 0);
    assert_eq!(asked, clear);

    let mut exec = 0;
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    assert_eq!(program.cuGraphUpload(exec, stream), 0);
    assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(words, 5), [7, 7, 7, 7, 5]);
    assert_eq!(CALLS.load(Ordering::SeqCst), 1);

    // A circle is no graph that could run.
    assert_eq!(program.cuGraphAddDependencies(graph, &empty, &memset, 1), 0);
    let mut circle = 0;
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut circle, graph, 0), INVALID_VALUE);
    assert_eq!(program.cuGraphRemoveDependencies(graph, &empty, &memset, 1), 0);

    tells_kernels(program, add, memset);
    changes_graphs(&build, exec, stream, add, words);
    uses_graph_memory(&build, stream, words);
}

/// A kernel node tells what it launches, another node does not.
fn tells_kernels(program: &Program, add: Handle, memset: Handle) {
    let mut params =
        KernelNode { function: 0, shape: [0; 7], parameters: null(), extra: 0, kernel: 0, context: 0 };
    let mut name = null();
    assert_eq!(program.cuGraphKernelNodeGetParams_v2(memset, &mut params), INVALID_VALUE);
    assert_eq!(program.cuGraphKernelNodeGetParams_v2(add, &mut params), 0);
    assert_eq!(program.cuFuncGetName(&mut name, params.function), 0);
    // SAFETY: the driver keeps the name as long as the module is loaded.
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"add");
}

/// A clone, a changed node, an update: each reaches only what it should.
fn changes_graphs(build: &Builder<'_>, exec: Handle, stream: Handle, add: Handle, words: u64) {
    let Builder { program, graph, .. } = *build;
    let run = |exec| {
        assert_eq!(program.cuGraphLaunch(exec, stream), 0);
        assert_eq!(program.cuStreamSynchronize(stream), 0);
        program.words(words, 1)[0]
    };
    let (mut clone, mut cloned) = (0, 0);
    assert_eq!(program.cuGraphClone(&mut clone, graph), 0);
    assert_eq!(program.cuGraphNodeFindInClone(&mut cloned, add, clone), 0);
    assert_ne!(cloned, add);
    let change = |params: &KernelNode| program.cuGraphKernelNodeSetParams_v2(cloned, params);
    assert_eq!(build.with_kernel("add", &[words, 4, 10], change), 0);
    assert_eq!(run(exec), 7, "a clone is its own");
    let (mut error, mut result) = (0, 9);
    assert_eq!(program.cuGraphExecUpdate(exec, clone, &mut error, &mut result), 0);
    assert_eq!((result, run(exec)), (0, 15));
    let change = |params: &KernelNode| program.cuGraphExecKernelNodeSetParams_v2(exec, add, params);
    assert_eq!(build.with_kernel("add", &[words, 4, 1], change), 0);
    assert_eq!(run(exec), 6);

    const TOPOLOGY_CHANGED: u32 = 2;
    assert_eq!(program.cuGraphDestroyNode(cloned), 0);
    assert_eq!(program.cuGraphExecUpdate(exec, clone, &mut error, &mut result), UPDATE_FAILURE);
    assert_eq!((result, run(exec)), (TOPOLOGY_CHANGED, 6));

    // A graph inside another one is copied when it is put there.
    let (mut outer, mut child, mut inner, mut both) = (0, 0, 0, 0);
    assert_eq!(program.cuGraphCreate(&mut outer, 0), 0);
    assert_eq!(program.cuGraphAddChildGraphNode(&mut child, outer, null(), 0, graph), 0);
    assert_eq!(program.cuGraphChildGraphNodeGetGraph(child, &mut inner), 0);
    assert_ne!(inner, graph);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut both, outer, 0), 0);
    assert_eq!(run(both), 7);
}

/// Memory of a graph is there from its node to the node that frees it, at the same address each time.
fn uses_graph_memory(build: &Builder<'_>, stream: Handle, words: u64) {
    const OUT_OF_MEMORY: u32 = 2;
    let (program, kernels) = (build.program, build.kernels);
    let (mut graph, mut allocate, mut free, mut exec, mut reading) = (0, 0, 0, 0, 0);
    assert_eq!(program.cuGraphCreate(&mut graph, 0), 0);
    let mut params = AllocateNode {
        pool: [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        access: [0, 0],
        bytes: 2 * MIB,
        address: 0,
    };
    assert_eq!(program.cuGraphAddMemAllocNode(&mut allocate, graph, null(), 0, &mut params), 0);
    let inside = Builder { program, kernels, graph };
    let fill = inside.kernel("fill", [params.address, 2, 3], &[allocate]);
    let sum = inside.kernel("checksum", [params.address, 2, words], &[fill]);
    assert_eq!(
        program.cuGraphAddMemFreeNode(&mut free, graph, &sum, 1, words),
        INVALID_VALUE,
        "not a graph's"
    );
    assert_eq!(program.cuGraphAddMemFreeNode(&mut free, graph, &sum, 1, params.address), 0);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    assert_eq!(program.cuMemsetD32Async(words, 0, 2, stream), 0);
    for _ in 0..2 {
        assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    }
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(words, 1), [2 * 3 * (1 + 3)]);
    assert_eq!(program.cuDeviceGetGraphMemAttribute(0, 0, &mut reading), 0);
    assert_eq!(reading, 0);

    adds_any_node(program, stream, words);
    params.bytes = 300 * MIB;
    let mut large = 0;
    assert_eq!(program.cuGraphCreate(&mut graph, 0), 0);
    assert_eq!(program.cuGraphAddMemAllocNode(&mut allocate, graph, null(), 0, &mut params), 0);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut large, graph, 0), 0);
    assert_eq!(program.cuGraphLaunch(large, stream), OUT_OF_MEMORY);
    assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
}

/// The call for all kinds of nodes: a block is filled and copied to where it can be read.
fn adds_any_node(program: &Program, stream: Handle, words: u64) {
    const MEMSET: u32 = 2;
    const ALLOCATE: u32 = 10;
    const CONDITIONAL: u32 = 13;
    const NOT_SUPPORTED: u32 = 801;
    let (mut graph, mut block, mut fill, mut exec) = (0, 0, 0, 0);
    assert_eq!(program.cuGraphCreate(&mut graph, 0), 0);
    let mut allocate = AnyNode {
        kind: ALLOCATE,
        reserved: [0; 3],
        params: AllocateNode {
            pool: [1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            access: [0, 0],
            bytes: MIB,
            address: 0,
        },
        rest: [0; 29],
    };
    let add = |node: &mut Handle, after: &[Handle], params: *mut c_void| {
        program.cuGraphAddNode_v2(node, graph, after.as_ptr(), 0, after.len(), params)
    };
    assert_eq!(add(&mut block, &[], (&raw mut allocate).cast()), 0);
    assert_ne!(allocate.params.address, 0);
    let mut memset = AnyNode {
        kind: MEMSET,
        reserved: [0; 3],
        params: MemsetNode { to: words, pitch: 0, value: 77, element: 4, width: 1, height: 1 },
        rest: [0; 29],
    };
    assert_eq!(add(&mut fill, &[block], (&raw mut memset).cast()), 0);
    assert_eq!(program.cuGraphInstantiateWithFlags(&mut exec, graph, 0), 0);
    assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    assert_eq!(program.cuStreamSynchronize(stream), 0);
    assert_eq!(program.words(words, 1), [77]);
    assert_eq!(program.cuGraphLaunch(exec, stream), INVALID_VALUE, "its block was not freed");
    assert_eq!(program.cuMemFreeAsync(allocate.params.address, stream), 0);
    assert_eq!(program.cuGraphLaunch(exec, stream), 0);
    assert_eq!(program.cuMemFreeAsync(allocate.params.address, stream), 0);
    memset.kind = CONDITIONAL;
    assert_eq!(add(&mut fill, &[], (&raw mut memset).cast()), NOT_SUPPORTED);
}

//! Nodes of graphs, made one by one, asked and changed: in a graph, and in an instantiated one.

use simgpu_card::wire::{Op, Plane, Shape};

use crate::api::copy::Copy3d;
use crate::api::prelude::*;
use crate::api::{copy, edge, launch, module};
use crate::callbacks::{self, Calls, HostFunction, UserData};
use crate::graphs::{Frontier, Kind, Node, Params};

/// `CUDA_KERNEL_NODE_PARAMS` before CUDA 12.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNode {
    function: Handle,
    grid: [u32; 3],
    block: [u32; 3],
    _shared_bytes: u32,
    parameters: KernelParams,
    extra: Extra,
}

/// `CUDA_KERNEL_NODE_PARAMS` since CUDA 12: a kernel may stand for the function.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelNodeV2 {
    node: KernelNode,
    kernel: Handle,
    _context: Handle,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemsetParams {
    to: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostParams {
    function: extern "C" fn(*mut c_void),
    data: UserData,
}

/// Rows of a kind of node whose parameters can be asked for, and then the rows of single functions.
macro_rules! kinds {
    ({$($kind:ident $make:ident $params:ty: $add:ident $add_base:literal, $get:ident $get_base:literal,
        $set:ident $set_base:literal, $exec:ident $exec_base:literal ($($context:ident)?);)*} $($single:tt)*) => {
        api! {
            $(
                fn $add($add_base, 10000)(
                    node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<$params>
                    $(, $context: Handle)?
                ) {
                    add(node, graph, after, count, $make(params.get()?)?)
                }

                fn $get($get_base, 10000)(node: Handle, params: Out<$params>) {
                    match ask(node)? {
                        Params::$kind(found) => params.set(found),
                        _ => Err(Code::INVALID_VALUE),
                    }
                }

                fn $set($set_base, 10000)(node: Handle, params: In<$params>) {
                    change(node, $make(params.get()?)?)
                }

                fn $exec($exec_base, 10020)(exec: Handle, node: Handle, params: In<$params> $(, $context: Handle)?) {
                    change_in(exec, node, $make(params.get()?)?)
                }
            )*
            $($single)*
        }
    };
}

kinds! {
    {
        Memcpy memcpy Copy3d: cuGraphAddMemcpyNode "cuGraphAddMemcpyNode",
            cuGraphMemcpyNodeGetParams "cuGraphMemcpyNodeGetParams",
            cuGraphMemcpyNodeSetParams "cuGraphMemcpyNodeSetParams",
            cuGraphExecMemcpyNodeSetParams "cuGraphExecMemcpyNodeSetParams" (_context);
        Memset memset MemsetParams: cuGraphAddMemsetNode "cuGraphAddMemsetNode",
            cuGraphMemsetNodeGetParams "cuGraphMemsetNodeGetParams",
            cuGraphMemsetNodeSetParams "cuGraphMemsetNodeSetParams",
            cuGraphExecMemsetNodeSetParams "cuGraphExecMemsetNodeSetParams" (_context);
        Host host HostParams: cuGraphAddHostNode "cuGraphAddHostNode",
            cuGraphHostNodeGetParams "cuGraphHostNodeGetParams",
            cuGraphHostNodeSetParams "cuGraphHostNodeSetParams",
            cuGraphExecHostNodeSetParams "cuGraphExecHostNodeSetParams" ();
    }

    fn cuGraphAddKernelNode("cuGraphAddKernelNode", 10000)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<KernelNode>,
    ) {
        add(node, graph, after, count, kernel(params.get()?)?)
    }

    fn cuGraphAddKernelNode_v2("cuGraphAddKernelNode", 12000)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, params: In<KernelNodeV2>,
    ) {
        add(node, graph, after, count, kernel(params.get()?.one())?)
    }

    /// Of a kernel only its function is told: a node keeps what it does, not what it was made of.
    fn cuGraphKernelNodeGetParams_v2("cuGraphKernelNodeGetParams", 12000)(node: Handle, params: Out<KernelNodeV2>) {
        let work = work_of(node)?;
        let [Op::Kernel(kernel)] = work.as_slice() else { return Err(Code::INVALID_VALUE) };
        params.set(KernelNodeV2::of(module::named(kernel.name())?))
    }

    fn cuGraphKernelNodeSetParams("cuGraphKernelNodeSetParams", 10000)(node: Handle, params: In<KernelNode>) {
        change(node, kernel(params.get()?)?)
    }

    fn cuGraphKernelNodeSetParams_v2("cuGraphKernelNodeSetParams", 12000)(node: Handle, params: In<KernelNodeV2>) {
        change(node, kernel(params.get()?.one())?)
    }

    fn cuGraphExecKernelNodeSetParams("cuGraphExecKernelNodeSetParams", 10010)(
        exec: Handle, node: Handle, params: In<KernelNode>,
    ) {
        change_in(exec, node, kernel(params.get()?)?)
    }

    fn cuGraphExecKernelNodeSetParams_v2("cuGraphExecKernelNodeSetParams", 12000)(
        exec: Handle, node: Handle, params: In<KernelNodeV2>,
    ) {
        change_in(exec, node, kernel(params.get()?.one())?)
    }

    fn cuGraphAddEmptyNode("cuGraphAddEmptyNode", 10000)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize,
    ) {
        add(node, graph, after, count, made(Kind::Empty, Vec::new()))
    }

    fn cuGraphAddChildGraphNode("cuGraphAddChildGraphNode", 10000)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, child: Handle,
    ) {
        add(node, graph, after, count, self::child(child)?)
    }

    fn cuGraphChildGraphNodeGetGraph("cuGraphChildGraphNodeGetGraph", 10000)(node: Handle, graph: Out<Handle>) {
        match ask(node)? {
            Params::Child(id) => graph.set(Tag::Graph.handle(id)),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuGraphAddEventRecordNode("cuGraphAddEventRecordNode", 11010)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle,
    ) {
        let event = driver()?.state().event(event)?;
        add(node, graph, after, count, made(Kind::RecordEvent, vec![Op::Record(event)]))
    }

    fn cuGraphAddEventWaitNode("cuGraphAddEventWaitNode", 11010)(
        node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, event: Handle,
    ) {
        let event = driver()?.state().event(event)?;
        add(node, graph, after, count, made(Kind::WaitEvent, vec![Op::WaitEvent(event)]))
    }

    fn cuGraphNodeGetType("cuGraphNodeGetType", 10000)(node: Handle, kind: Out<u32>) {
        let mut state = driver()?.state();
        let (graph, id) = state.node(node)?;
        kind.set(graph.nodes[&id].kind as u32)
    }

    fn cuGraphDestroyNode("cuGraphDestroyNode", 10000)(node: Handle) {
        let mut state = driver()?.state();
        let (graph, id) = state.node(node)?;
        graph.remove(id);
        Ok(())
    }

    fn cuGraphNodeFindInClone("cuGraphNodeFindInClone", 10000)(found: Out<Handle>, original: Handle, clone: Handle) {
        let original = Tag::GraphNode.id(original).ok_or(Code::INVALID_VALUE)?;
        let mut state = driver()?.state();
        let (_, clone) = state.graph(clone)?;
        let copy = clone.nodes.iter().find(|(_, node)| node.cloned_from == Some(original));
        found.set(Tag::GraphNode.handle(*copy.ok_or(Code::INVALID_VALUE)?.0))
    }
}

impl KernelNodeV2 {
    fn of(function: Handle) -> Self {
        let node = KernelNode {
            function,
            grid: [1; 3],
            block: [1; 3],
            _shared_bytes: 0,
            parameters: KernelParams::none(),
            extra: Extra::none(),
        };
        Self { node, kernel: 0, _context: 0 }
    }

    /// The function that is meant, by either name.
    pub(crate) fn one(self) -> KernelNode {
        let function = if self.node.function == 0 { self.kernel } else { self.node.function };
        KernelNode { function, ..self.node }
    }
}

/// A node with this work, in no graph yet.
pub(crate) fn made(kind: Kind, work: Vec<Op>) -> Node {
    Node::new(kind, work, Frontier::new())
}

pub(crate) fn kernel(params: KernelNode) -> Answer<Node> {
    let shape = (params.grid, params.block);
    let kernel = launch::kernel(params.function, shape, params.parameters, Some(params.extra))?;
    Ok(made(Kind::Kernel, vec![Op::Kernel(kernel)]))
}

pub(crate) fn memcpy(params: Copy3d) -> Answer<Node> {
    let state = driver()?.state();
    let copies = copy::planes(&params, &state)?;
    let known = |plane: &Plane| state.kind_at(plane.address).is_some();
    let is_hole = |plane: &Plane| state.is_hole(plane.address);
    if copies.iter().any(|(to, from, _)| is_hole(to) || is_hole(from)) {
        return Err(Code::INVALID_VALUE);
    }
    if !copies.iter().all(|(to, from, _)| known(to) && known(from)) {
        return Err(Code::NOT_SUPPORTED);
    }
    let work = copies.into_iter().map(|(to, from, shape)| Op::Copy { to, from, shape });
    Ok(Node { params: Params::Memcpy(params), ..made(Kind::Memcpy, work.collect()) })
}

pub(crate) fn memset(params: MemsetParams) -> Answer<Node> {
    let MemsetParams { to, pitch, value, element, width, height } = params;
    let fits = [1, 2, 4].contains(&element) && to.is_multiple_of(u64::from(element.max(1)));
    let known = driver()?.state().kind_at(to).is_some();
    let shape = Shape { width: width as u64 * u64::from(element), rows: height as u64 };
    if !fits || !known || shape.width == 0 || shape.rows == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let work = Op::Set {
        to: Plane { address: to, pitch: pitch as u64 },
        shape,
        value,
        element: u8::try_from(element).map_err(|_| Code::INVALID_VALUE)?,
    };
    Ok(Node { params: Params::Memset(params), ..made(Kind::Memset, vec![work]) })
}

pub(crate) fn host(params: HostParams) -> Answer<Node> {
    let call = callbacks::register(HostFunction::Plain(params.function, params.data), Calls::Many)?;
    Ok(Node { params: Params::Host(params), ..made(Kind::Host, vec![Op::HostCall(call)]) })
}

/// The child is copied: what becomes of it later does not matter.
pub(crate) fn child(child: Handle) -> Answer<Node> {
    let mut state = driver()?.state();
    let child = state.graph(child)?.1.clone();
    let copy = child.copy(|| state.fresh());
    let (work, id) = (copy.work()?, state.fresh());
    state.graphs.insert(id, copy);
    Ok(Node { params: Params::Child(id), ..made(Kind::Graph, work) })
}

/// Puts a node into a graph.
pub(crate) fn add(node: Out<Handle>, graph: Handle, after: In<Handle>, count: usize, made: Node) -> Answer {
    if node.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    let mut state = driver()?.state();
    let id = state.fresh();
    let (_, graph) = state.graph(graph)?;
    let after = edge::frontier(graph, after, count)?;
    graph.nodes.insert(id, Node { after, ..made });
    node.set(Tag::GraphNode.handle(id))
}

fn ask(node: Handle) -> Answer<Params> {
    let mut state = driver()?.state();
    let (graph, id) = state.node(node)?;
    Ok(graph.nodes[&id].params)
}

fn work_of(node: Handle) -> Answer<Vec<Op>> {
    let mut state = driver()?.state();
    let (graph, id) = state.node(node)?;
    Ok(graph.nodes[&id].work.clone())
}

/// Another one of the same kind takes a node's place.
fn change(node: Handle, made: Node) -> Answer {
    let mut state = driver()?.state();
    let (graph, id) = state.node(node)?;
    replace(graph.nodes.get_mut(&id), made)
}

fn change_in(exec: Handle, node: Handle, made: Node) -> Answer {
    let node = Tag::GraphNode.id(node).ok_or(Code::INVALID_VALUE)?;
    let mut state = driver()?.state();
    let (id, exec) = state.exec(exec)?;
    let mut graph = exec.graph.clone();
    replace(graph.nodes.get_mut(&node), made)?;
    state.define(id, graph)
}

fn replace(found: Option<&mut Node>, made: Node) -> Answer {
    let found = found.filter(|found| found.kind == made.kind).ok_or(Code::INVALID_VALUE)?;
    (found.work, found.params) = (made.work, made.params);
    Ok(())
}

//! Graphs as wholes: made, copied, instantiated, updated, launched as often as one likes.
//!
//! An instantiated graph is kept by the card as a list of work in an order that respects all dependencies;
//! a launch puts that list into the stream with one message.

use simgpu_card::ids::GraphId;
use simgpu_card::wire::Request;

use crate::api::prelude::*;
use crate::capture::Route;
use crate::graphs::Graph;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct InstantiateParams {
    flags: u64,
    upload_stream: Handle,
    error_node: Handle,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpdateResult {
    code: u32,
    error_node: Handle,
    from_node: Handle,
}

api! {
    fn cuGraphCreate("cuGraphCreate", 10000)(graph: Out<Handle>, flags: u32) {
        if flags != 0 || graph.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut state = driver()?.state();
        let id = state.fresh();
        state.graphs.insert(id, Graph::default());
        graph.set(Tag::Graph.handle(id))
    }

    fn cuGraphDestroy("cuGraphDestroy", 10000)(graph: Handle) {
        let id = Tag::Graph.id(graph).ok_or(Code::INVALID_HANDLE)?;
        driver()?.state().graphs.remove(&id).map(|_| ()).ok_or(Code::INVALID_HANDLE)
    }

    fn cuGraphGetNodes("cuGraphGetNodes", 10000)(graph: Handle, nodes: Out<Handle>, count: InOut<usize>) {
        let mut state = driver()?.state();
        let (_, graph) = state.graph(graph)?;
        let handles: Vec<Handle> = graph.nodes.keys().map(|id| Tag::GraphNode.handle(*id)).collect();
        if nodes.is_null() {
            return Out::from(count).set(handles.len());
        }
        let place = In::from(count).get()?;
        nodes.set_many(&handles, place);
        Out::from(count).set(handles.len().min(place))
    }

    fn cuGraphClone("cuGraphClone", 10000)(clone: Out<Handle>, graph: Handle) {
        let mut state = driver()?.state();
        let graph = state.graph(graph)?.1.clone();
        let copy = graph.copy(|| state.fresh());
        let id = state.fresh();
        state.graphs.insert(id, copy);
        clone.set(Tag::Graph.handle(id))
    }

    fn cuGraphExecUpdate("cuGraphExecUpdate", 10020)(
        exec: Handle, graph: Handle, error_node: Out<Handle>, result: Out<u32>,
    ) {
        let (code, node) = update(exec, graph)?.err().unwrap_or((0, 0));
        error_node.set_if_wanted(node);
        result.set_if_wanted(code);
        if code == 0 { Ok(()) } else { Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    fn cuGraphExecUpdate_v2("cuGraphExecUpdate", 12000)(exec: Handle, graph: Handle, result: Out<UpdateResult>) {
        let (code, error_node) = update(exec, graph)?.err().unwrap_or((0, 0));
        result.set_if_wanted(UpdateResult { code, error_node, from_node: 0 });
        if code == 0 { Ok(()) } else { Err(Code::GRAPH_EXEC_UPDATE_FAILURE) }
    }

    fn cuGraphInstantiate("cuGraphInstantiate", 10000)
        = cuGraphInstantiate_v2("cuGraphInstantiate", 11000)(
        exec: Out<Handle>, graph: Handle, _error_node: Out<Handle>, _log: Out<c_char>, _size: usize,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithFlags("cuGraphInstantiateWithFlags", 11040)(
        exec: Out<Handle>, graph: Handle, _flags: u64,
    ) {
        instantiate(exec, graph)
    }

    fn cuGraphInstantiateWithParams("cuGraphInstantiateWithParams", 12000; "_ptsz", 12000)[_default](
        exec: Out<Handle>, graph: Handle, params: InOut<InstantiateParams>,
    ) {
        let read = In::from(params).get()?;
        instantiate(exec, graph)?;
        Out::from(params).set(InstantiateParams { error_node: 0, result: 0, ..read })
    }

    fn cuGraphUpload("cuGraphUpload", 11010; "_ptsz", 11010)[default](exec: Handle, stream: Handle) {
        current::stream(stream, default)?;
        driver()?.state().exec(exec).map(|_| ())
    }

    fn cuGraphLaunch("cuGraphLaunch", 10000; "_ptsz", 10000)[default](exec: Handle, stream: Handle) {
        let stream = current::stream(stream, default)?;
        let driver = driver()?;
        let (size, submitted) = {
            let mut state = driver.state();
            let (id, exec) = state.exec(exec)?;
            let (size, allocates) = (exec.size, exec.allocates);
            if state.route(stream)? != Route::Run {
                return Err(Code::NOT_SUPPORTED);
            }
            let launch = Request::LaunchGraph(stream, GraphId(id));
            if allocates {
                driver.call(launch).map_err(not_freed)?;
            } else {
                driver.tell(launch)?;
            }
            let stream = state.stream(stream)?;
            stream.submitted += size as u64;
            (size, stream.submitted)
        };
        work::throttle(stream, submitted, size as u64)
    }

    fn cuGraphExecDestroy("cuGraphExecDestroy", 10000)(exec: Handle) {
        let driver = driver()?;
        let mut state = driver.state();
        let (id, _) = state.exec(exec)?;
        state.graph_execs.remove(&id);
        driver.tell(Request::DropGraph(GraphId(id)))
    }
}

/// The card does not know a block of the graph as a free one: it is there since an earlier launch.
fn not_freed(code: Code) -> Code {
    if code == Code::INVALID_HANDLE { Code::INVALID_VALUE } else { code }
}

fn instantiate(exec: Out<Handle>, graph: Handle) -> Answer {
    let mut state = driver()?.state();
    let graph = state.graph(graph)?.1.clone();
    let id = state.fresh();
    state.define(id, graph)?;
    exec.set(Tag::GraphExec.handle(id))
}

/// Answers the result and the node that it is about.
fn update(exec: Handle, graph: Handle) -> Answer<Result<(), (u32, Handle)>> {
    let mut state = driver()?.state();
    let new = state.graph(graph)?.1.clone();
    let (id, exec) = state.exec(exec)?;
    let mut changed = exec.graph.clone();
    if let Err((mismatch, node)) = changed.update(&new) {
        return Ok(Err((mismatch as u32, Tag::GraphNode.handle(node))));
    }
    state.define(id, changed).map(Ok)
}

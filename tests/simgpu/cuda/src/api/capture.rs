//! Stream capture.

use simgpu_card::ids::StreamId;

use crate::api::edge;
use crate::api::prelude::*;
use crate::capture::Status;
use crate::graphs::Frontier;

api! {
    fn cuStreamBeginCapture("cuStreamBeginCapture", 10000; "_ptsz", 10000)[default](stream: Handle) {
        let stream = current::stream(stream, default)?;
        driver()?.state().begin_capture(stream, crate::capture::GLOBAL, None, Frontier::new())
    }

    fn cuStreamBeginCapture_v2("cuStreamBeginCapture", 10010; "_ptsz", 10010)[default](stream: Handle, mode: u32) {
        let stream = current::stream(stream, default)?;
        driver()?.state().begin_capture(stream, mode, None, Frontier::new())
    }

    fn cuStreamBeginCaptureToGraph("cuStreamBeginCaptureToGraph", 12030; "_ptsz", 12030)[default](
        stream: Handle, graph: Handle, after: In<Handle>, _edges: In<c_void>, count: usize, mode: u32,
    ) {
        let stream = current::stream(stream, default)?;
        let mut state = driver()?.state();
        let (id, found) = state.graph(graph)?;
        let after = edge::frontier(found, after, count)?;
        state.begin_capture(stream, mode, Some(id), after)
    }

    fn cuStreamEndCapture("cuStreamEndCapture", 10000; "_ptsz", 10000)[default](stream: Handle, graph: Out<Handle>) {
        let stream = current::stream(stream, default)?;
        let mut state = driver()?.state();
        let (captured, into) = match state.end_capture(stream) {
            Ok(ended) => ended,
            Err(error) => {
                graph.set_if_wanted(0);
                return Err(error);
            }
        };
        let id = into.unwrap_or_else(|| state.fresh());
        state.graphs.insert(id, captured);
        graph.set(Tag::Graph.handle(id))
    }

    fn cuStreamIsCapturing("cuStreamIsCapturing", 10000; "_ptsz", 10000)[default](stream: Handle, status: Out<u32>) {
        let stream = current::stream(stream, default)?;
        let mut state = driver()?.state();
        state.refuse_implicit(stream)?;
        status.set(number(state.capture_status(stream)).0)
    }

    fn cuStreamGetCaptureInfo("cuStreamGetCaptureInfo", 10010; "_ptsz", 10010)[default](
        stream: Handle, status: Out<u32>, id: Out<u64>,
    ) {
        info(current::stream(stream, default)?, status, id)
    }

    fn cuStreamGetCaptureInfo_v2("cuStreamGetCaptureInfo", 11030; "_ptsz", 11030)[default](
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, after: Out<*const Handle>,
        count: Out<usize>,
    ) {
        let stream = current::stream(stream, default)?;
        info(stream, status, id)?;
        graph_info(stream, graph, after, count)
    }

    fn cuStreamGetCaptureInfo_v3("cuStreamGetCaptureInfo", 12030; "_ptsz", 12030)[default](
        stream: Handle, status: Out<u32>, id: Out<u64>, graph: Out<Handle>, after: Out<*const Handle>,
        edges: Out<*const c_void>, count: Out<usize>,
    ) {
        let stream = current::stream(stream, default)?;
        info(stream, status, id)?;
        edges.set_if_wanted(std::ptr::null());
        graph_info(stream, graph, after, count)
    }

    fn cuThreadExchangeStreamCaptureMode("cuThreadExchangeStreamCaptureMode", 10010)(mode: InOut<u32>) {
        let wanted = In::from(mode).get()?;
        if wanted > crate::capture::RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        Out::from(mode).set(current::exchange_capture_mode(wanted))
    }
}

/// `CUstreamCaptureStatus`, and the capture's number.
fn number(status: Status) -> (u32, u64) {
    match status {
        Status::None => (0, 0),
        Status::Active(id) => (1, id.into()),
        Status::Invalidated(id) => (2, id.into()),
    }
}

fn info(stream: StreamId, status: Out<u32>, id: Out<u64>) -> Answer {
    let mut state = driver()?.state();
    state.refuse_implicit(stream)?;
    let (status_number, capture) = number(state.capture_status(stream));
    status.set(status_number)?;
    id.set_if_wanted(capture);
    Ok(())
}

/// The graph under way and the nodes that the stream's next piece comes after. The list belongs to the
/// thread and lives until its next question, as long as the real one is good for.
fn graph_info(stream: StreamId, graph: Out<Handle>, after: Out<*const Handle>, count: Out<usize>) -> Answer {
    thread_local! {
        static NODES: std::cell::RefCell<Vec<Handle>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let state = driver()?.state();
    let Some((capture, frontier)) = state.frontier(stream) else {
        return Ok(());
    };
    let nodes: Vec<Handle> = frontier.iter().map(|id| Tag::GraphNode.handle(*id)).collect();
    graph.set_if_wanted(capture.into.map_or(0, |id| Tag::Graph.handle(id)));
    count.set_if_wanted(nodes.len());
    NODES.with_borrow_mut(|kept| {
        *kept = nodes;
        after.set_if_wanted(kept.as_ptr());
    });
    Ok(())
}

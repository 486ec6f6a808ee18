//! Stream capture: work that is written down instead of done.
//!
//! ```text
//! begin(A)          A: []                 frontier of A: what the next piece of A comes after
//! launch x on A     A: [x]      x
//! record e on A     e: [x]
//! B waits for e     B: [x]                B has joined the capture, without a BeginCapture of its own
//! launch y on B     B: [y]      x -> y
//! record f on B, A waits for f  A: [x,y]  B is joined again; else ending is UNJOINED
//! end(A)            a graph of x and y
//! ```
//!
//! A capture is easily broken. Synchronising with it, the legacy stream of its context, and (unless it is
//! relaxed) calls that might wait for unfinished work *invalidate* it: they fail, and so does the end of
//! the capture.

use std::collections::HashMap;
use std::thread::{self, ThreadId};

use simgpu_card::ids::{ContextId, EventId, StreamId};
use simgpu_card::wire::{Op, StreamKind};

use crate::codes::{Answer, Code};
use crate::current;
use crate::graphs::{Frontier, Graph, Kind, Node};
use crate::state::{Recorded, State, Stream};

pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

#[derive(Debug)]
pub(crate) struct Capture {
    mode: u32,
    thread: ThreadId,
    origin: StreamId,
    pub(crate) graph: Graph,
    /// The graph that gets the nodes, for `cuStreamBeginCaptureToGraph`.
    pub(crate) into: Option<u32>,
    frontiers: HashMap<StreamId, Frontier>,
    invalid: bool,
}

/// Route of a piece of work: to the card, or into a capture.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Route {
    Run,
    Capture(u32),
}

/// `CUstreamCaptureStatus`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    None,
    Active(u32),
    Invalidated(u32),
}

impl State {
    /// Begins a capture in a stream.
    pub(crate) fn begin_capture(
        &mut self,
        stream: StreamId,
        mode: u32,
        into: Option<u32>,
        after: Frontier,
    ) -> Answer {
        let found = self.stream(stream)?;
        if mode > RELAXED {
            return Err(Code::INVALID_VALUE);
        }
        if found.kind == StreamKind::Legacy {
            return Err(Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if let Some(running) = found.capture {
            return Err(self.invalidate(running, Code::INVALID_VALUE));
        }
        let capture = Capture {
            mode,
            thread: thread::current().id(),
            origin: stream,
            graph: into.and_then(|graph| self.graphs.get(&graph)).cloned().unwrap_or_default(),
            into,
            frontiers: HashMap::from([(stream, after)]),
            invalid: false,
        };
        let id = self.fresh();
        self.captures.insert(id, capture);
        self.stream(stream)?.capture = Some(id);
        Ok(())
    }

    /// Ends the capture that began in a stream and answers its graph.
    pub(crate) fn end_capture(&mut self, stream: StreamId) -> Answer<(Graph, Option<u32>)> {
        let id = self.stream(stream)?.capture.ok_or(Code::INVALID_VALUE)?;
        let capture = self.captures.get(&id).ok_or(Code::INVALID_VALUE)?;
        if capture.mode != RELAXED && capture.thread != thread::current().id() {
            return Err(self.invalidate(id, Code::STREAM_CAPTURE_WRONG_THREAD));
        }
        if capture.origin != stream {
            return Err(self.invalidate(id, Code::STREAM_CAPTURE_UNMATCHED));
        }
        let capture = self.captures.remove(&id).ok_or(Code::INVALID_VALUE)?;
        for stream in self.streams.values_mut().filter(|stream| stream.capture == Some(id)) {
            stream.capture = None;
        }
        match (capture.invalid, capture.is_joined()) {
            (true, _) => Err(Code::STREAM_CAPTURE_INVALIDATED),
            (_, false) => Err(Code::STREAM_CAPTURE_UNJOINED),
            _ => Ok((capture.graph, capture.into)),
        }
    }

    pub(crate) fn capture_status(&self, stream: StreamId) -> Status {
        let Some(id) = self.streams.get(&stream).and_then(|stream| stream.capture) else {
            return Status::None;
        };
        match self.captures.get(&id) {
            Some(capture) if capture.invalid => Status::Invalidated(id),
            Some(_) => Status::Active(id),
            None => Status::None,
        }
    }

    /// The nodes that the next piece of a capturing stream comes after.
    pub(crate) fn frontier(&self, stream: StreamId) -> Option<(&Capture, &Frontier)> {
        let capture = self.captures.get(&self.streams.get(&stream)?.capture?)?;
        Some((capture, capture.frontiers.get(&stream)?))
    }

    /// Whether work for a stream is done or written down.
    pub(crate) fn route(&mut self, stream: StreamId) -> Answer<Route> {
        let found = self.stream(stream)?;
        let (context, kind) = (found.context, found.kind);
        match self.capture_status(stream) {
            Status::Active(id) => return Ok(Route::Capture(id)),
            Status::Invalidated(_) => return Err(Code::STREAM_CAPTURE_INVALIDATED),
            Status::None if kind == StreamKind::Legacy => {}
            Status::None => return Ok(Route::Run),
        }
        match self.capture_ordered_with(context) {
            Some(id) => Err(self.invalidate(id, Code::STREAM_CAPTURE_IMPLICIT)),
            None => Ok(Route::Run),
        }
    }

    /// Waiting for the legacy stream, or asking whether it is done, breaks a capture in a stream that is
    /// ordered with it.
    pub(crate) fn refuse_waiting_for_legacy(&mut self, stream: StreamId) -> Answer {
        let found = self.stream(stream)?;
        let (context, kind) = (found.context, found.kind);
        match self.capture_ordered_with(context) {
            Some(id) if kind == StreamKind::Legacy => Err(self.invalidate(id, Code::STREAM_CAPTURE_IMPLICIT)),
            _ => Ok(()),
        }
    }

    /// Asking whether the legacy stream captures is refused while a stream that is ordered with it does.
    pub(crate) fn refuse_implicit(&mut self, stream: StreamId) -> Answer {
        let found = self.stream(stream)?;
        let (context, kind) = (found.context, found.kind);
        match self.capture_ordered_with(context) {
            Some(_) if kind == StreamKind::Legacy => Err(Code::STREAM_CAPTURE_IMPLICIT),
            _ => Ok(()),
        }
    }

    /// A capture in a stream that is ordered with the legacy stream of this context.
    fn capture_ordered_with(&self, context: ContextId) -> Option<u32> {
        let ordered = |stream: &&Stream| stream.context == context && stream.kind == StreamKind::Blocking;
        self.streams.values().filter(ordered).find_map(|stream| stream.capture)
    }

    /// Writes a piece of work down.
    pub(crate) fn write_down(&mut self, id: u32, stream: StreamId, op: Op) {
        let node = self.fresh();
        let Some(capture) = self.captures.get_mut(&id) else {
            return;
        };
        let frontier = capture.frontiers.entry(stream).or_default();
        let after = std::mem::replace(frontier, Frontier::from([node]));
        capture.graph.nodes.insert(node, Node::new(Kind::of(&op), vec![op], after));
    }

    /// Records an event in a capture: it stands for the stream's frontier.
    pub(crate) fn record_in_capture(&mut self, id: u32, stream: StreamId, event: EventId) {
        let frontier = self
            .captures
            .get(&id)
            .and_then(|capture| capture.frontiers.get(&stream))
            .cloned();
        if let Some(event) = self.events.get_mut(&event) {
            event.recorded = Recorded::InCapture(id, frontier.unwrap_or_default());
        }
    }

    /// A stream waits for an event of a capture and joins it. Answers `false` if the event is not of a
    /// capture.
    pub(crate) fn join(&mut self, stream: StreamId, event: EventId) -> Answer<bool> {
        let recorded = self
            .events
            .get(&event)
            .map(|event| event.recorded.clone())
            .ok_or(Code::INVALID_HANDLE)?;
        let own = self.stream(stream)?.capture;
        match (recorded, own) {
            (Recorded::InCapture(id, frontier), own) => {
                if own.is_some_and(|own| own != id) {
                    return Err(self.invalidate(id, Code::STREAM_CAPTURE_MERGE));
                }
                if !self.captures.contains_key(&id) {
                    return Err(Code::CAPTURED_EVENT);
                }
                if self.stream(stream)?.kind == StreamKind::Legacy {
                    return Err(self.invalidate(id, Code::STREAM_CAPTURE_IMPLICIT));
                }
                self.stream(stream)?.capture = Some(id);
                if let Some(capture) = self.captures.get_mut(&id) {
                    capture.frontiers.entry(stream).or_default().extend(frontier);
                }
                Ok(true)
            }
            (_, Some(id)) => Err(self.invalidate(id, Code::STREAM_CAPTURE_ISOLATION)),
            (_, None) => Ok(false),
        }
    }

    /// A call that might wait for unfinished work: it breaks the captures that forbid it.
    pub(crate) fn unsafe_call(&mut self) -> Answer {
        let (mine, mode) = (thread::current().id(), current::capture_mode());
        if self.captures.is_empty() || mode == RELAXED {
            return Ok(());
        }
        let forbids = |capture: &Capture| match capture.thread == mine {
            true => capture.mode != RELAXED,
            false => mode == GLOBAL && capture.mode == GLOBAL,
        };
        let broken: Vec<u32> = self.captures.iter().filter(|(_, c)| forbids(c)).map(|(id, _)| *id).collect();
        for id in &broken {
            self.invalidate(*id, Code::STREAM_CAPTURE_UNSUPPORTED);
        }
        if broken.is_empty() { Ok(()) } else { Err(Code::STREAM_CAPTURE_UNSUPPORTED) }
    }

    /// Waiting for a stream that captures breaks its capture.
    pub(crate) fn refuse_capturing(&mut self, stream: StreamId) -> Answer {
        match self.capture_status(stream) {
            Status::None => Ok(()),
            Status::Active(id) | Status::Invalidated(id) => {
                Err(self.invalidate(id, Code::STREAM_CAPTURE_UNSUPPORTED))
            }
        }
    }

    /// Waiting for a whole context breaks every capture in it.
    pub(crate) fn refuse_capturing_in(&mut self, context: ContextId) -> Answer {
        let streams = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context && stream.capture.is_some());
        let streams: Vec<StreamId> = streams.map(|(id, _)| *id).collect();
        streams.into_iter().try_for_each(|stream| self.refuse_capturing(stream))
    }

    fn invalidate(&mut self, id: u32, code: Code) -> Code {
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.invalid = true;
        }
        code
    }
}

impl Capture {
    /// Whether everything that was written down comes before the end of the first stream.
    fn is_joined(&self) -> bool {
        let mut reached = Frontier::new();
        let mut next: Vec<u32> = self.frontiers.get(&self.origin).into_iter().flatten().copied().collect();
        while let Some(node) = next.pop() {
            if reached.insert(node) {
                next.extend(self.graph.nodes.get(&node).into_iter().flat_map(|node| &node.after));
            }
        }
        self.frontiers.values().flatten().all(|node| reached.contains(node))
    }
}

//! The streams and events of one client: what may start, and what is done.
//!
//! Every dependency is the same sentence: *stream S has completed position P* (a fence). Work waits for the
//! work before it in its stream and for its fences. An event is the fence of its last record; the legacy
//! stream is fences both ways between it and the blocking streams of its context; to synchronise is to wait
//! for fences.

use std::collections::{BTreeMap, VecDeque};

use crate::board::Reached;
use crate::ids::{ContextId, EventId, StreamId, Time};
use crate::wire::{Failure, Op, StreamKind, Work};

/// "This stream has completed that many pieces of work."
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fence {
    stream: StreamId,
    position: u64,
}

/// Work with what came along in its message.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) op: Op,
    pub(crate) payload: Vec<u8>,
    pub(crate) token: Option<u64>,
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    kind: StreamKind,
    waiting: VecDeque<(Task, Vec<Fence>)>,
    /// Facts about the head of the queue while it is under way.
    head: Option<Head>,
    submitted: u64,
    completed: u64,
    closing: bool,
}

#[derive(Debug)]
struct Head {
    records: Option<EventId>,
    question: Option<u64>,
}

impl Task {
    /// The token of a question that is answered when this is done.
    fn question(&self) -> Option<u64> {
        self.token.filter(|_| matches!(self.op, Op::Download { .. }))
    }
}

#[derive(Debug, Default)]
struct Event {
    fence: Option<Fence>,
    at: Option<Time>,
    /// Number of times that it was recorded.
    records: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Queues {
    streams: BTreeMap<StreamId, Stream>,
    events: BTreeMap<EventId, Event>,
}

impl Queues {
    pub(crate) fn create(&mut self, stream: StreamId, context: ContextId, kind: StreamKind) {
        let fresh = Stream {
            context,
            kind,
            waiting: VecDeque::new(),
            head: None,
            submitted: 0,
            completed: 0,
            closing: false,
        };
        self.streams.insert(stream, fresh);
    }

    /// The stream ends once its work is done.
    pub(crate) fn destroy(&mut self, stream: StreamId) {
        if let Some(found) = self.streams.get_mut(&stream) {
            found.closing = true;
        }
        self.sweep(stream);
    }

    pub(crate) fn destroy_context(&mut self, context: ContextId) {
        self.streams.retain(|_, stream| stream.context != context);
    }

    pub(crate) fn drop_event(&mut self, event: EventId) {
        self.events.remove(&event);
    }

    pub(crate) fn context_of(&self, stream: StreamId) -> Option<ContextId> {
        self.streams.get(&stream).map(|stream| stream.context)
    }

    pub(crate) fn submit(&mut self, stream: StreamId, task: Task) -> Result<(), Failure> {
        let target = self.streams.get(&stream).ok_or(Failure::Unknown)?;
        let (context, kind, position) = (target.context, target.kind, target.submitted + 1);
        let mut after = match kind {
            StreamKind::Legacy => self.tails(context, |other| other == StreamKind::Blocking),
            StreamKind::Blocking => self.tails(context, |other| other == StreamKind::Legacy),
            StreamKind::NonBlocking => Vec::new(),
        };
        match task.op {
            Op::WaitEvent(event) => after.extend(self.events.get(&event).and_then(|event| event.fence)),
            Op::Record(event) | Op::RecordContext(event) => {
                if matches!(task.op, Op::RecordContext(_)) {
                    after = self.tails(context, |_| true);
                }
                let event = self.events.entry(event).or_default();
                (event.fence, event.at) = (Some(Fence { stream, position }), None);
                event.records += 1;
            }
            _ => {}
        }
        after.retain(|fence| fence.stream != stream);
        if let Some(target) = self.streams.get_mut(&stream) {
            target.submitted = position;
            target.waiting.push_back((task, after));
        }
        Ok(())
    }

    /// The next stream whose head may start, and that head. It counts as started.
    pub(crate) fn start_next(&mut self) -> Option<(StreamId, Task)> {
        let ready = |stream: &Stream| {
            let mut fences = stream.waiting.front().into_iter().flat_map(|(_, after)| after);
            stream.head.is_none() && !stream.waiting.is_empty() && fences.all(|fence| self.done(*fence))
        };
        let id = *self.streams.iter().find(|(_, stream)| ready(stream))?.0;
        let stream = self.streams.get_mut(&id)?;
        let (task, _) = stream.waiting.pop_front()?;
        let records = match task.op {
            Op::Record(event) | Op::RecordContext(event) => Some(event),
            _ => None,
        };
        stream.head = Some(Head { records, question: task.question() });
        Some((id, task))
    }

    /// The head of a stream is done. Answers the event that was reached, if that was its last record.
    pub(crate) fn complete(&mut self, id: StreamId, now: Time) -> Option<Reached> {
        let stream = self.streams.get_mut(&id)?;
        let head = stream.head.take()?;
        stream.completed += 1;
        let here = Fence { stream: id, position: stream.completed };
        let mut reached = None;
        if let Some(id) = head.records
            && let Some(event) = self.events.get_mut(&id).filter(|event| event.fence == Some(here))
        {
            event.at = Some(now);
            reached = Some(Reached { event: id, record: event.records, at: now });
        }
        self.sweep(id);
        reached
    }

    /// Positions of streams that must be reached for this work to be done.
    pub(crate) fn fences(&self, work: Work) -> Result<Vec<Fence>, Failure> {
        match work {
            Work::Stream(stream) => {
                let found = self.streams.get(&stream).ok_or(Failure::Unknown)?;
                let mut fences = vec![Fence { stream, position: found.submitted }];
                if found.kind == StreamKind::Legacy {
                    fences.extend(self.tails(found.context, |kind| kind == StreamKind::Blocking));
                }
                Ok(fences)
            }
            Work::Position(stream, position) => Ok(vec![Fence { stream, position }]),
            Work::Context(context) => Ok(self.tails(context, |_| true)),
            Work::Event(event) => {
                Ok(self.events.get(&event).and_then(|event| event.fence).into_iter().collect())
            }
        }
    }

    /// Positions of streams that must be reached for the client to be idle.
    pub(crate) fn all_fences(&self) -> Vec<Fence> {
        self.streams
            .iter()
            .map(|(&stream, found)| Fence { stream, position: found.submitted })
            .collect()
    }

    /// A stream that is no more has done all it ever will.
    pub(crate) fn done(&self, fence: Fence) -> bool {
        self.streams
            .get(&fence.stream)
            .is_none_or(|stream| stream.completed >= fence.position)
    }

    pub(crate) fn time_of(&self, event: EventId) -> Result<Time, Failure> {
        let event = self.events.get(&event).ok_or(Failure::Unknown)?;
        event
            .at
            .ok_or(if event.fence.is_some() { Failure::NotReady } else { Failure::Unknown })
    }

    /// Drops all work, as after an error from which nothing recovers, and answers the questions that it
    /// would have answered.
    pub(crate) fn abandon(&mut self) -> Vec<u64> {
        let mut questions = Vec::new();
        for stream in self.streams.values_mut() {
            let head = stream.head.take().and_then(|head| head.question);
            let waiting = stream.waiting.drain(..).filter_map(|(task, _)| task.question());
            questions.extend(head.into_iter().chain(waiting));
            stream.completed = stream.submitted;
        }
        questions
    }

    fn tails(&self, context: ContextId, chosen: impl Fn(StreamKind) -> bool) -> Vec<Fence> {
        let streams = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context && chosen(stream.kind));
        streams
            .filter(|(_, stream)| stream.completed < stream.submitted)
            .map(|(&id, stream)| Fence { stream: id, position: stream.submitted })
            .collect()
    }

    fn sweep(&mut self, id: StreamId) {
        if self
            .streams
            .get(&id)
            .is_some_and(|stream| stream.closing && stream.completed == stream.submitted)
        {
            self.streams.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;

    const CONTEXT: ContextId = ContextId(1);
    const LEGACY: StreamId = StreamId(0);
    const BLOCKING: StreamId = StreamId(1);
    const FREE: StreamId = StreamId(2);

    fn queues() -> Queues {
        let mut queues = Queues::default();
        queues.create(LEGACY, CONTEXT, StreamKind::Legacy);
        queues.create(BLOCKING, CONTEXT, StreamKind::Blocking);
        queues.create(FREE, CONTEXT, StreamKind::NonBlocking);
        queues
    }

    fn submit(queues: &mut Queues, stream: StreamId, op: Op) {
        queues.submit(stream, Task { op, payload: Vec::new(), token: None }).unwrap();
    }

    fn started(queues: &mut Queues) -> Vec<StreamId> {
        std::iter::from_fn(|| queues.start_next().map(|(stream, _)| stream)).collect()
    }

    #[test]
    fn a_stream_runs_one_at_a_time_and_others_beside_it() {
        let mut queues = queues();
        for stream in [BLOCKING, BLOCKING, FREE] {
            submit(&mut queues, stream, Op::Kernel(Kernel::Empty));
        }
        assert_eq!(started(&mut queues), [BLOCKING, FREE]);
        queues.complete(BLOCKING, Time::ZERO);
        assert_eq!(started(&mut queues), [BLOCKING]);
    }

    #[test]
    fn legacy_and_blocking_streams_wait_for_each_other_and_free_ones_do_not() {
        let mut queues = queues();
        for stream in [BLOCKING, LEGACY, BLOCKING, FREE] {
            submit(&mut queues, stream, Op::Kernel(Kernel::Empty));
        }
        assert_eq!(started(&mut queues), [BLOCKING, FREE]);
        queues.complete(BLOCKING, Time::ZERO);
        assert_eq!(started(&mut queues), [LEGACY]);
        queues.complete(LEGACY, Time::ZERO);
        assert_eq!(started(&mut queues), [BLOCKING]);
    }

    #[test]
    fn an_event_orders_two_streams_and_keeps_its_time() {
        let (mut queues, event) = (queues(), EventId(7));
        submit(&mut queues, FREE, Op::Record(event));
        submit(&mut queues, BLOCKING, Op::WaitEvent(event));
        assert_eq!(queues.time_of(event), Err(Failure::NotReady));
        assert_eq!(started(&mut queues), [FREE]);
        queues.complete(FREE, Time::from_millis(3));
        assert_eq!(queues.time_of(event), Ok(Time::from_millis(3)));
        assert_eq!(started(&mut queues), [BLOCKING]);
    }

    #[test]
    fn a_context_event_waits_for_every_stream_and_orders_nobody() {
        let (mut queues, event, markers) = (queues(), EventId(7), StreamId(3));
        queues.create(markers, CONTEXT, StreamKind::NonBlocking);
        submit(&mut queues, FREE, Op::Kernel(Kernel::Empty));
        submit(&mut queues, markers, Op::RecordContext(event));
        submit(&mut queues, BLOCKING, Op::Kernel(Kernel::Empty));
        assert_eq!(started(&mut queues), [BLOCKING, FREE]);
        queues.complete(FREE, Time::ZERO);
        assert_eq!(started(&mut queues), [markers]);
    }

    #[test]
    fn a_destroyed_stream_finishes_its_work_first() {
        let mut queues = queues();
        submit(&mut queues, FREE, Op::Kernel(Kernel::Empty));
        let fence = queues.fences(Work::Stream(FREE)).unwrap()[0];
        queues.destroy(FREE);
        assert!(!queues.done(fence));
        assert_eq!(started(&mut queues), [FREE]);
        queues.complete(FREE, Time::ZERO);
        assert!(queues.done(fence));
    }
}

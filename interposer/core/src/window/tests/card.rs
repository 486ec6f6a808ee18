//! Model of a card in virtual time. It has one engine, or one per stream, and runs each stream in order. Time
//! passes when the program launches or waits.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::Nanos;

use crate::driver::types::{CUcontext, CUevent};
use crate::window::Card;
use crate::window::aimd::DRAIN_TARGET;
use crate::window::costs::Kernel;
use crate::window::launch_window::{Launch, Window};
use crate::window::stream::Stream;

/// Host time of one launch.
const HOST: u64 = 1_000;
pub(super) const MICRO: u64 = 1_000;
pub(super) const MILLI: u64 = 1_000_000;

/// Model of the card and of the program's clock.
#[derive(Default)]
pub(super) struct Model {
    state: RefCell<State>,
    target: Option<Nanos>,
    /// Time for which a pause is too long.
    late: u64,
}

#[derive(Default)]
struct State {
    now: u64,
    /// Sum of the time in which the engine was idle, in nanoseconds.
    idle: u64,
    streams: BTreeMap<(u8, usize, usize), VecDeque<Op>>,
    engine_per_stream: bool,
    launched: u64,
    /// For each event, when the work before its last record was done; `None` while it is not.
    done: Vec<Option<u64>>,
    /// Context of each event.
    contexts: Vec<usize>,
    capturing: bool,
    refusing: bool,
    exiting: bool,
    orders_others: bool,
    /// Stream of the last launch, if no launch marker came since.
    last: Option<Stream>,
    order: u64,
}

enum Op {
    Kernel {
        left: u64,
        order: u64,
    },
    /// Kernel that ends when this many kernels have been launched.
    Until(u64),
    Mark(usize),
}

/// Next step of a program.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub(super) stream: Stream,
    pub(super) size: u64,
    pub(super) cost: u64,
    /// Which kernel it is. `None` if all launches of this cost are one kernel.
    pub(super) kernel: Option<usize>,
    /// The stream waits until this many launches were made.
    pub(super) until: Option<u64>,
    pub(super) programmatic: bool,
}

impl Step {
    pub(super) fn new(cost: u64) -> Self {
        let stream = Stream::Own(0x40);
        Self { stream, size: 1, cost, kernel: None, until: None, programmatic: false }
    }

    /// A launch of a kernel whose cost differs from launch to launch.
    pub(super) fn of(self, kernel: usize) -> Self {
        Self { kernel: Some(kernel), ..self }
    }

    pub(super) fn kernel(self) -> Kernel {
        match self.kernel {
            Some(kernel) => Kernel::new(kernel, [1; 3]),
            None => Kernel::new(usize::try_from(self.cost).unwrap(), [2; 3]),
        }
    }

    pub(super) fn on(self, stream: Stream) -> Self {
        Self { stream, ..self }
    }
}

/// Measurements of the second half of a test run.
#[derive(Debug)]
pub(super) struct Seen {
    /// Longest time that a drop would have taken at any moment of the second half.
    pub(super) drain: Nanos,
    /// Sum of the time in which the card was idle, in nanoseconds.
    pub(super) idle: u64,
    /// Length of the second half, in nanoseconds.
    pub(super) span: u64,
}

impl Model {
    pub(super) fn with_an_engine_per_stream() -> Self {
        let model = Self::default();
        model.state.borrow_mut().engine_per_stream = true;
        model
    }

    pub(super) fn whose_markers_order_others() -> Self {
        let model = Self::default();
        model.state.borrow_mut().orders_others = true;
        model
    }

    /// Model of a card with a target for the length of work in flight, where pauses end too late by so much.
    pub(super) fn with_target(target: Nanos, late: u64) -> Self {
        Self { target: Some(target), late, ..Self::default() }
    }

    pub(super) fn capture(&self, capturing: bool) {
        self.state.borrow_mut().capturing = capturing;
    }

    /// Makes the driver refuse launch markers, or accept them again.
    pub(super) fn refuse(&self, refusing: bool) {
        self.state.borrow_mut().refusing = refusing;
    }

    pub(super) fn exit(&self) {
        self.state.borrow_mut().exiting = true;
    }

    pub(super) fn pass_time(&self, nanos: u64) {
        self.state.borrow_mut().advance(nanos);
    }

    pub(super) fn now_nanos(&self) -> u64 {
        self.state.borrow().now
    }

    /// Time for which the card has work.
    pub(super) fn left(&self) -> Nanos {
        Nanos(self.state.borrow().drain())
    }

    pub(super) fn markers_made(&self) -> usize {
        self.state.borrow().done.len()
    }

    /// Makes one launch of a program.
    pub(super) fn launch(&self, window: &Window, step: Step) {
        let Step { stream, size, programmatic, .. } = step;
        let launch = Launch { stream, kernel: step.kernel(), size, programmatic };
        window.admit(launch, self.target.unwrap_or(DRAIN_TARGET), self);
        self.state.borrow_mut().launch(step);
    }

    /// Runs a program to its end.
    pub(super) fn run(&self, window: &Window, steps: impl ExactSizeIterator<Item = Step>) -> Seen {
        let half = steps.len() / 2;
        let (mut drain, mut idle, mut from) = (0, 0, 0);
        for (number, step) in steps.enumerate() {
            if number == half {
                (idle, from) = (self.state.borrow().idle, self.state.borrow().now);
            }
            self.launch(window, step);
            if number >= half {
                drain = drain.max(self.state.borrow().drain());
            }
        }
        let state = self.state.borrow();
        Seen { drain: Nanos(drain), idle: state.idle - idle, span: state.now - from }
    }
}

fn key(stream: Stream) -> (u8, usize, usize) {
    match stream {
        Stream::Own(handle) => (0, handle, 0),
        Stream::Legacy(context) => (1, context, 0),
        Stream::PerThread(context, thread) => (2, context, thread),
    }
}

impl State {
    fn launch(&mut self, step: Step) {
        self.advance(HOST);
        self.launched += 1;
        self.order += 1;
        self.last = Some(step.stream);
        let order = self.order;
        let queue = self.streams.entry(key(step.stream)).or_default();
        if step.programmatic {
            assert!(!matches!(queue.back(), Some(Op::Mark(_))), "a marker before a programmatic launch");
        }
        queue.extend(step.until.map(Op::Until));
        queue.push_back(Op::Kernel { left: step.cost, order });
    }

    fn drain(&self) -> u64 {
        let work = |queue: &VecDeque<Op>| -> u64 {
            let left = |op: &Op| if let Op::Kernel { left, .. } = op { *left } else { 0 };
            queue.iter().map(left).sum()
        };
        let streams = self.streams.values().map(work);
        if self.engine_per_stream {
            streams.max().unwrap_or_default()
        } else {
            streams.sum()
        }
    }

    fn advance(&mut self, mut nanos: u64) {
        loop {
            let running = self.running();
            let next = running.iter().map(|(_, left)| *left).min();
            let step = next.unwrap_or(nanos).min(nanos);
            if next.is_none() {
                self.idle += step;
            }
            self.now += step;
            nanos -= step;
            for (stream, _) in running {
                if let Some(Op::Kernel { left, .. }) =
                    self.streams.get_mut(&stream).and_then(VecDeque::front_mut)
                {
                    *left -= step;
                }
            }
            if nanos == 0 {
                self.settle();
                return;
            }
        }
    }

    /// Kernels that run now, with their remaining time.
    fn running(&mut self) -> Vec<((u8, usize, usize), u64)> {
        self.settle();
        let mut ready: Vec<_> = self
            .streams
            .iter()
            .filter_map(|(stream, queue)| match queue.front()? {
                Op::Kernel { left, order, .. } => Some((*order, *stream, *left)),
                _ => None,
            })
            .collect();
        ready.sort_unstable();
        ready.truncate(if self.engine_per_stream { usize::MAX } else { 1 });
        ready.into_iter().map(|(_, stream, left)| (stream, left)).collect()
    }

    /// Removes kernels that are done.
    fn settle(&mut self) {
        for queue in self.streams.values_mut() {
            while let Some(op) = queue.front() {
                match *op {
                    Op::Kernel { left: 0, .. } => {}
                    Op::Until(launched) if launched <= self.launched => {}
                    Op::Mark(event) => self.done[event] = Some(self.now),
                    _ => break,
                }
                queue.pop_front();
            }
        }
    }
}

impl Card for Model {
    fn context_of(&self, stream: Stream) -> CUcontext {
        std::ptr::without_provenance_mut(match stream {
            Stream::Own(_) => 0x1000,
            Stream::Legacy(context) | Stream::PerThread(context, _) => context,
        })
    }

    fn create(&self, context: CUcontext) -> Option<CUevent> {
        let mut state = self.state.borrow_mut();
        state.contexts.push(context.addr());
        state.done.push(Some(0));
        Some(std::ptr::without_provenance_mut(state.done.len()))
    }

    fn destroy(&self, _: CUevent) {}

    fn mark(&self, stream: Stream, event: CUevent) -> bool {
        let mut state = self.state.borrow_mut();
        assert!(!state.capturing, "a marker while the process captures");
        let context = state.contexts[event.addr() - 1];
        assert_eq!(context, self.context_of(stream).addr(), "an event of another context");
        if state.orders_others {
            assert_eq!(state.last, Some(stream), "a marker that orders others, and not right after a launch");
        }
        if state.refusing {
            return false;
        }
        state.last = None;
        let event = event.addr() - 1;
        // An event stands for its last record only.
        for queue in state.streams.values_mut() {
            queue.retain(|op| !matches!(op, Op::Mark(earlier) if *earlier == event));
        }
        state.done[event] = None;
        state.streams.entry(key(stream)).or_default().push_back(Op::Mark(event));
        state.settle();
        true
    }

    fn is_done(&self, event: CUevent) -> bool {
        let state = self.state.borrow();
        assert!(!state.capturing, "a question while the process captures");
        state.done[event.addr() - 1].is_some()
    }

    fn elapsed(&self, from: CUevent, to: CUevent) -> Option<Nanos> {
        let state = self.state.borrow();
        let [from, to] = [from, to].map(|event| state.done[event.addr() - 1]);
        Some(Nanos(to? - from?))
    }

    fn orders_others(&self, _: Stream) -> bool {
        self.state.borrow().orders_others
    }

    fn is_capturing(&self) -> bool {
        self.state.borrow().capturing
    }

    fn now(&self) -> Nanos {
        Nanos(self.state.borrow().now)
    }

    fn pause(&self, span: Nanos) -> bool {
        let mut state = self.state.borrow_mut();
        state.advance(span.0 + self.late);
        !state.exiting
    }

    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        (!self.is_capturing()).then(ask)
    }
}

//! Calls that give work to the card: all pass the gate, and those that put kernels, copies or fills into a stream pass the
//! window before it while that is on. What a stream waits for or writes passes no window, since work in flight may wait for it.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use gpushare_proto::page::{FLAG_CONTENDED, FLAG_LIMITED, Page};
use gpushare_proto::{GateWord, Nanos};

use crate::driver::types::{
    CUDA_SUCCESS, CUfunction, CUgraph, CUgraphExec, CUresult, CUstream, DefaultStream, LAUNCH_PROGRAMMATIC,
};
use crate::gate::{self, GATE, Pass, page};
use crate::process::panics::guest_or;
use crate::state::State;
use crate::window::driver::OnDriver;
use crate::window::graphs::contents;
use crate::window::throttle::Launch;

/// Passes the gate; holds it open while the pass lives.
#[inline]
pub fn pass() -> Pass<'static> {
    pass_by(page())
}

/// The same by a page that was looked at already.
#[inline]
pub fn pass_by(page: &Page) -> Pass<'static> {
    match GATE.enter(&page.gate) {
        Ok(pass) => pass,
        Err(word) => wait(word),
    }
}

/// The same for work in a stream, which may be what others wait for.
///
/// It is described where the gate is closed and not before: an open one pays nothing for it.
///
/// # Safety
/// A configuration is null or readable, as the driver's function demands.
#[inline]
pub unsafe fn pass_with(page: &Page, work: impl FnOnce() -> Work) -> Pass<'static> {
    match GATE.enter(&page.gate) {
        Ok(pass) => pass,
        // SAFETY: the caller says so.
        Err(word) => unsafe { wait_with(word, work()) },
    }
}

/// Waits at the closed gate. A panic of ours there lets the thread through.
#[cold]
fn wait(word: GateWord) -> Pass<'static> {
    let wait = || match State::existing() {
        Some(state) => state.gate.wait(word),
        None => GATE.enter_anyway(),
    };
    guest_or(wait, || GATE.enter_anyway())
}

/// # Safety
/// As above.
#[cold]
#[inline(never)]
unsafe fn wait_with(word: GateWord, work: Work) -> Pass<'static> {
    // SAFETY: the caller says so.
    let pass = || unsafe {
        let state = State::existing()?;
        if !work.talks(state) {
            return None;
        }
        state.gate.pass_communication(word)
    };
    guest_or(pass, || None).unwrap_or_else(|| wait(word))
}

/// Whether launches are counted: others use the card, or the session has a compute limit.
#[inline]
#[must_use]
pub fn is_windowed(page: &Page) -> bool {
    page.flags.load(Ordering::Relaxed) & (FLAG_CONTENDED | FLAG_LIMITED) != 0
}

/// What is put into a stream.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A copy, a fill, or what has no name.
    One(CUstream),
    /// A kernel.
    Kernel(CUfunction, CUstream),
    /// A kernel with a configuration, which may be null.
    Configured(CUfunction, *const LaunchConfig),
    /// A graph.
    Graph(CUgraphExec, CUstream),
}

impl Work {
    /// Whether it talks to other cards, by its name or by its stream.
    ///
    /// # Safety
    /// A configuration is null or readable, as the driver's function demands.
    unsafe fn talks(self, state: &State) -> bool {
        let (stream, is_one) = match self {
            Self::One(stream) => (stream, false),
            Self::Kernel(function, stream) => {
                (stream, state.gate.collectives.is_collective(&state.driver, function))
            }
            // SAFETY: the caller says so.
            Self::Configured(function, config) => match unsafe { config.as_ref() } {
                Some(config) => {
                    (config.stream, state.gate.collectives.is_collective(&state.driver, function))
                }
                None => return false,
            },
            Self::Graph(graph, stream) => (stream, state.window.graphs().talks(graph)),
        };
        is_one || state.gate.marked.contains(stream)
    }
}

/// `CUlaunchConfig`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: CUstream,
    attributes: *const LaunchAttribute,
    attribute_count: c_uint,
}

/// `CUlaunchAttribute`: what it is, and 64 bytes of which the first four are the answer to "programmatic?".
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [u64; 8],
}

impl LaunchConfig {
    /// Whether the launch may begin before the one ahead of it in its stream ends.
    ///
    /// # Safety
    /// The attributes are there, as the driver's function demands.
    unsafe fn is_programmatic(&self) -> bool {
        if self.attributes.is_null() {
            return false;
        }
        // SAFETY: the caller says so.
        let attributes =
            unsafe { std::slice::from_raw_parts(self.attributes, self.attribute_count as usize) };
        attributes
            .iter()
            .any(|attribute| attribute.id == LAUNCH_PROGRAMMATIC && attribute.value[0] as u32 != 0)
    }
}

/// Passes the window; the gate comes next.
///
/// # Safety
/// A configuration is null or readable with its attributes, as the driver's function demands.
#[cold]
#[inline(never)]
pub unsafe fn pass_window(work: Work, default: DefaultStream) {
    // SAFETY: the caller says so.
    guest_or(|| unsafe { admit(work, default) }, || None);
}

/// # Safety
/// As above.
unsafe fn admit(work: Work, default: DefaultStream) -> Option<()> {
    // Within a call that is inside the gate a wait would hold up a drop.
    if gate::is_inside() {
        return None;
    }
    let state = State::existing()?;
    let window = state.window.get()?;
    let (stream, size, programmatic) = match work {
        Work::One(stream) | Work::Kernel(_, stream) => (stream, 1, false),
        Work::Graph(graph, stream) => (stream, state.window.graphs().size(graph), false),
        // SAFETY: null, or readable as the caller says.
        Work::Configured(_, config) => unsafe {
            let config = config.as_ref()?;
            (config.stream, 1, config.is_programmatic())
        },
    };
    let card = OnDriver::new(&state.driver, &state.gate.captures);
    let launch = Launch { stream: card.stream(stream, default), size, programmatic };
    let target = Nanos(u64::from(page().drain_target.load(Ordering::Relaxed)) * 1_000);
    window.admit(launch, target, &card);
    Some(())
}

/// A graph is made ready to be launched.
///
/// # Safety
/// `made` is null or writable, as the driver's function demands.
pub unsafe fn instantiate(
    made: *mut CUgraphExec,
    graph: CUgraph,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = real();
    if let (CUDA_SUCCESS, Some(state), false) = (result, State::existing(), made.is_null())
        && state.window.get().is_some()
    {
        // SAFETY: the driver just wrote the handle there.
        state
            .window
            .graphs()
            .made(unsafe { made.read() }, contents(&state.driver, &state.gate.collectives, graph));
    }
    result
}

/// The same for a call that may also bring it to the card.
///
/// # Safety
/// As above.
pub unsafe fn instantiate_and_upload(
    made: *mut CUgraphExec,
    graph: CUgraph,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let passing = || {
        let _pass = pass();
        real()
    };
    // SAFETY: the caller says so.
    unsafe { instantiate(made, graph, passing) }
}

/// A graph that was ready is destroyed.
pub fn destroy_graph(graph: *mut c_void, real: impl FnOnce() -> CUresult) -> CUresult {
    match State::existing() {
        Some(state) => state.window.graphs().destroy(graph, real),
        None => real(),
    }
}

/// Passes the gate for a call that blocks until its default stream has done everything before it. While
/// the gate may close it waits for that stream first, outside the gate, so that it is inside only for its own copy.
#[inline]
pub fn pass_blocking(stream: DefaultStream) -> Pass<'static> {
    if is_windowed(page()) {
        guest_or(|| settle(stream), || ());
    }
    pass()
}

#[cold]
fn settle(stream: DefaultStream) {
    let Some(state) = State::existing() else { return };
    // A wait would break a capture; the call itself then tells the application what it may not do.
    if state.gate.captures.any() {
        return;
    }
    let synchronize = match stream {
        DefaultStream::Legacy => state.driver.stream_synchronize,
        DefaultStream::PerThread => state.driver.stream_synchronize_ptsz,
    };
    // SAFETY: null is the default stream of either kind. An error comes again from the call itself.
    unsafe { synchronize(null_mut()) };
}

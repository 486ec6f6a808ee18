//! Hooks of calls that give work to the card. All of them pass the gate. While the launch window is on,
//! kernels, copies and fills in a stream pass the launch window first.
//!
//! Waits and writes of a stream skip the launch window, because work in flight may depend on them.

use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;

use gpushare_proto::page::{FLAG_CAPTURING, FLAG_CONTENDED, FLAG_LIMITED, FLAG_MAPPED, Page};
use gpushare_proto::{GateWord, Nanos};

use super::addresses::look;
use crate::driver::types::{
    CUDA_SUCCESS, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUresult, CUstream, DefaultStream,
    LAUNCH_PROGRAMMATIC, STREAM_PER_THREAD,
};
use crate::gate::{self, GATE, Pass, page};
use crate::memory::allocations::Origin;
use crate::process::panics::guest_or;
use crate::remap::names::Arguments;
use crate::state::State;
use crate::window::costs::Kernel;
use crate::window::driver::OnDriver;
use crate::window::graphs::contents;
use crate::window::launch_window::{AtGate, Launch};

/// Largest number of bytes that [`stage`] copies: the driver takes so many of pageable memory along with the
/// command.
const STAGED: usize = 64 << 10;

/// Guard of a thread inside the gate, or the result of the call whose wait at the gate was interrupted.
pub type Passed = Result<Pass<'static>, CUresult>;

/// Enters the gate, and waits while it is closed. While the returned guard lives, a drain waits for this
/// thread.
///
/// # Errors
/// [`INTERRUPTED`](gate::interrupt::INTERRUPTED) if the program interrupts the wait. The call returns that,
/// and the driver does not see it.
#[inline]
pub fn pass() -> Passed {
    pass_by(page())
}

/// Does the same as [`pass`], with a shared page that the caller has loaded.
///
/// # Errors
/// As [`pass`].
#[inline]
pub fn pass_by(page: &Page) -> Passed {
    match GATE.enter(&page.gate) {
        Ok(pass) => Ok(pass),
        Err(_) => wait(),
    }
}

/// Does the same as [`pass_by`], for work in a stream that may carry communication between cards.
///
/// `work` is called only if the gate is closed, so an open gate costs nothing more.
///
/// # Errors
/// As [`pass`].
///
/// # Safety
/// A launch configuration is null or readable, as the driver's function demands.
#[inline]
pub unsafe fn pass_with(page: &Page, work: impl FnOnce() -> Work) -> Passed {
    match GATE.enter(&page.gate) {
        Ok(pass) => Ok(pass),
        // SAFETY: the caller's promise.
        Err(word) => unsafe { wait_with(word, work()) },
    }
}

/// Waits at the closed gate. If gpushare panics there, the thread passes.
#[cold]
fn wait() -> Passed {
    let wait = || match State::existing() {
        Some(state) => state.gate.wait(),
        None => Ok(GATE.enter_anyway()),
    };
    guest_or(wait, || Ok(GATE.enter_anyway()))
}

/// # Safety
/// A launch configuration is null or readable, as the driver's function demands.
#[cold]
#[inline(never)]
unsafe fn wait_with(word: GateWord, work: Work) -> Passed {
    // SAFETY: the caller's promise.
    let pass = || unsafe {
        let state = State::existing()?;
        if !work.communicates(state) {
            return None;
        }
        state.gate.pass_communication(word)
    };
    let waits = || {
        // SAFETY: the caller's promise.
        let _waiting = guest_or(|| unsafe { wait_at_gate(work) }, || None);
        wait()
    };
    guest_or(pass, || None).map_or_else(waits, Ok)
}

/// Counts work that passed the launch window as waiting at the gate. Returns `None` for other work.
///
/// # Safety
/// A launch configuration is null or readable, as the driver's function demands.
unsafe fn wait_at_gate(work: Work) -> Option<AtGate<'static>> {
    let state = State::existing().filter(|_| is_windowed(page()))?;
    // SAFETY: the caller's promise.
    let (kernel, size) = unsafe { (work.kernel(), work.size(state)) };
    // Ordered work is in no window.
    if size == 0 {
        return None;
    }
    Some(state.window.get()?.wait_at_gate(kernel, size))
}

/// Returns whether launches pass the launch window: another session uses the card, or the session has a
/// compute limit.
#[inline]
fn is_windowed(page: &Page) -> bool {
    page.flags.load(Ordering::Relaxed) & (FLAG_CONTENDED | FLAG_LIMITED) != 0
}

/// Returns whether launches are looked at one by one: they pass the launch window, a capture has begun, or
/// memory is mapped from the host.
#[inline]
pub fn is_watched(page: &Page) -> bool {
    const WATCHED: u32 = FLAG_CONTENDED | FLAG_LIMITED | FLAG_CAPTURING | FLAG_MAPPED;
    page.flags.load(Ordering::Relaxed) & WATCHED != 0
}

/// Records work for a thread's own default stream while a capture has begun and not ended. The drain cannot
/// ask about such a stream.
#[inline]
pub fn note_stream(page: &Page, stream: CUstream, default: DefaultStream) {
    if page.flags.load(Ordering::Relaxed) & FLAG_CAPTURING != 0
        && is_own(stream, default)
        && let Some(state) = State::existing()
    {
        state.gate.captures.note_unnamed();
    }
}

/// Returns whether an argument of a driver call names the calling thread's own default stream.
fn is_own(stream: CUstream, default: DefaultStream) -> bool {
    stream.addr() == STREAM_PER_THREAD || (stream.is_null() && default == DefaultStream::PerThread)
}

/// Work that a call puts into a stream.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A call that passes no launch window.
    Ordered(CUstream),
    /// A copy, a fill, or a launch without further description.
    One(CUstream),
    /// A kernel, its arguments, its grid, and the stream of its launch.
    Kernel(CUfunction, Arguments, [c_uint; 3], CUstream),
    /// A kernel, its arguments, and its launch configuration (a pointer that may be null).
    Configured(CUfunction, Arguments, *const LaunchConfig),
    /// An executable graph and the stream of its launch.
    Graph(CUgraphExec, CUstream),
}

impl Work {
    /// Returns whether the work communicates with other cards, by the kernel's name or by a mark on its
    /// stream.
    ///
    /// # Safety
    /// A launch configuration is null or readable, as the driver's function demands.
    unsafe fn communicates(self, state: &State) -> bool {
        let (stream, is_one) = match self {
            Self::Ordered(stream) | Self::One(stream) => (stream, false),
            Self::Kernel(function, _, _, stream) => {
                (stream, state.gate.collectives.is_collective(&state.driver, function))
            }
            // SAFETY: the caller's promise.
            Self::Configured(function, _, config) => match unsafe { config.as_ref() } {
                Some(config) => {
                    (config.stream, state.gate.collectives.is_collective(&state.driver, function))
                }
                None => return false,
            },
            Self::Graph(graph, stream) => (stream, state.window.graphs.communicates(graph)),
        };
        is_one || state.gate.marked.contains(stream)
    }

    /// Notes the addresses among the arguments of a kernel.
    ///
    /// # Safety
    /// Arguments are null, or readable as the kernel's parameters demand.
    unsafe fn name_addresses(self, state: &State) {
        let (Self::Kernel(function, arguments, ..) | Self::Configured(function, arguments, _)) = self else {
            return;
        };
        // SAFETY: the caller's promise.
        unsafe { state.memory.remap.names.note_arguments(&state.driver, function, arguments) };
    }

    /// Returns what the cost of the work is learned by.
    ///
    /// # Safety
    /// A launch configuration is null or readable, as the driver's function demands.
    unsafe fn kernel(self) -> Kernel {
        match self {
            Self::Ordered(_) | Self::One(_) => Kernel::OTHER,
            Self::Kernel(function, _, grid, _) => Kernel::new(function.addr(), grid),
            // SAFETY: the caller's promise.
            Self::Configured(function, _, config) => match unsafe { config.as_ref() } {
                Some(config) => Kernel::new(function.addr(), config.grid),
                None => Kernel::OTHER,
            },
            Self::Graph(graph, _) => Kernel::new(graph.addr(), [0; 3]),
        }
    }

    /// Returns the number of launches that the work counts as in the launch window.
    ///
    /// # Safety
    /// A launch configuration is null or readable, as the driver's function demands.
    unsafe fn size(self, state: &State) -> u64 {
        match self {
            Self::Ordered(_) => 0,
            Self::One(_) | Self::Kernel(..) => 1,
            // SAFETY: the caller's promise.
            Self::Configured(_, _, config) => u64::from(unsafe { config.as_ref() }.is_some()),
            Self::Graph(graph, _) => state.window.graphs.size(graph),
        }
    }
}

/// Configuration of a kernel launch (`CUlaunchConfig`).
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

/// Attribute of a kernel launch (`CUlaunchAttribute`): an id and a value of 64 bytes. For a programmatic
/// launch the first four bytes of the value are a flag.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct LaunchAttribute {
    id: c_uint,
    pad: c_uint,
    value: [u64; 8],
}

impl LaunchConfig {
    /// Returns whether the launch may begin before the launch ahead of it in its stream ends.
    ///
    /// # Safety
    /// The attributes are readable, as the driver's function demands.
    unsafe fn is_programmatic(&self) -> bool {
        if self.attributes.is_null() {
            return false;
        }
        // SAFETY: the caller's promise.
        let attributes =
            unsafe { std::slice::from_raw_parts(self.attributes, self.attribute_count as usize) };
        attributes
            .iter()
            .any(|attribute| attribute.id == LAUNCH_PROGRAMMATIC && attribute.value[0] as u32 != 0)
    }
}

/// Passes the launch window, which limits the work in flight, if it is on. The caller passes the gate next.
///
/// # Safety
/// A launch configuration is null or readable with its attributes, as the driver's function demands.
#[cold]
#[inline(never)]
pub unsafe fn pass_window(work: Work, default: DefaultStream) {
    // SAFETY: the caller's promise.
    guest_or(|| unsafe { admit(work, default) }, || None);
}

/// # Safety
/// A launch configuration is null or readable with its attributes, as the driver's function demands.
unsafe fn admit(work: Work, default: DefaultStream) -> Option<()> {
    // A thread that is inside the gate already must not wait, because that would delay a drop.
    if gate::is_inside() {
        return None;
    }
    let state = State::existing()?;
    let page = page();
    if page.flags.load(Ordering::Relaxed) & FLAG_MAPPED != 0 {
        // SAFETY: the caller's promise.
        unsafe { work.name_addresses(state) };
    }
    let window = state.window.get()?;
    let (stream, programmatic) = match work {
        Work::Ordered(stream)
        | Work::One(stream)
        | Work::Kernel(_, _, _, stream)
        | Work::Graph(_, stream) => (stream, false),
        // SAFETY: null, or readable as the caller promises.
        Work::Configured(_, _, config) => unsafe {
            let config = config.as_ref()?;
            (config.stream, config.is_programmatic())
        },
    };
    note_stream(page, stream, default);
    if !is_windowed(page) {
        return None;
    }
    let card = OnDriver::new(&state.driver, &state.gate.captures);
    // SAFETY: the caller's promise.
    let (kernel, size) = unsafe { (work.kernel(), work.size(state)) };
    let launch = Launch { stream: card.stream(stream, default), kernel, size, programmatic };
    let target = Nanos(u64::from(page.drain_target.load(Ordering::Relaxed)) * 1_000);
    window.admit(launch, target, &card);
    Some(())
}

/// `cuGraphInstantiate` and its newer forms: counts the kernels of the new graph. The driver looks at the
/// addresses in its nodes.
pub unsafe fn instantiate(
    made: *mut CUgraphExec,
    graph: CUgraph,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let result = look(real);
    if let (CUDA_SUCCESS, Some(state), false) = (result, State::existing(), made.is_null())
        && state.window.get().is_some()
    {
        // SAFETY: the driver just wrote the handle there.
        state
            .window
            .graphs
            .insert(unsafe { made.read() }, contents(&state.driver, &state.gate.collectives, graph));
    }
    result
}

/// Does the same as [`instantiate`], and passes the gate, since the call may also upload the graph to the
/// card.
pub unsafe fn instantiate_and_upload(
    made: *mut CUgraphExec,
    graph: CUgraph,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let passing = || match pass() {
        Ok(_pass) => real(),
        Err(interrupted) => interrupted,
    };
    // SAFETY: the caller's promise.
    unsafe { instantiate(made, graph, passing) }
}

/// `cuGraphExecDestroy`: destroys the executable graph and removes it from the table.
pub fn destroy_graph(graph: *mut c_void, real: impl FnOnce() -> CUresult) -> CUresult {
    match State::existing() {
        Some(state) => state.window.graphs.destroy(graph, real),
        None => real(),
    }
}

/// Way to run a fill or a copy that natively returns at once for device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Asynchronous form in the default stream, since the driver would wait for managed memory that stands in
    /// for device memory.
    Asynchronous,
    /// Call as it is, since the driver does not wait.
    AtOnce,
    /// Call as it is, after a wait outside the gate, since the driver waits natively too.
    Blocking,
}

/// Chooses the way to run a fill or a copy of the memory at `addresses`.
pub fn way(addresses: &[CUdeviceptr]) -> Way {
    guest_or(|| choose(addresses), || Way::Blocking)
}

fn choose(addresses: &[CUdeviceptr]) -> Way {
    let Some(state) = State::existing() else { return Way::Blocking };
    let origin = |address: &CUdeviceptr| state.memory.blocks.around(*address).map(|(_, block)| block.origin);
    let is_rewritten = addresses.iter().any(|address| origin(address) == Some(Origin::Rewritten));
    if !is_rewritten && !is_windowed(page()) {
        return Way::AtOnce;
    }
    let is_device_memory = |address: &CUdeviceptr| match origin(address) {
        Some(Origin::Rewritten | Origin::Native | Origin::Remapped | Origin::Imported) => true,
        Some(Origin::Managed | Origin::FixedManaged) => false,
        // The driver does not know memory that is away.
        None => state.memory.mapped.around(*address).is_some() || state.driver.is_device_memory(*address),
    };
    // A capture would record the asynchronous form, where the synchronous one is an error.
    if state.gate.captures.any() || !addresses.iter().all(is_device_memory) {
        return Way::Blocking;
    }
    if is_rewritten { Way::Asynchronous } else { Way::AtOnce }
}

/// Copies a few bytes from the host at `source` to rewritten memory at `address` by `copy`, the asynchronous
/// form in the default stream, since the driver's synchronous form is slow for managed memory. Returns `None`
/// for other memory and for more bytes.
///
/// The copy waits for the stream before it begins, as the synchronous form. Pageable memory may change as
/// soon as this returns, since the driver has taken its bytes then. From other memory the copy is done.
pub fn stage(
    address: CUdeviceptr,
    source: *mut c_void,
    bytes: usize,
    stream: DefaultStream,
    copy: impl FnOnce() -> CUresult,
) -> Option<CUresult> {
    if bytes > STAGED {
        return None;
    }
    let state = State::existing().filter(|state| !state.gate.captures.any())?;
    super::identity::rewritten(address)?;
    let synchronize = || {
        let synchronize = match stream {
            DefaultStream::Legacy => state.driver.stream_synchronize,
            DefaultStream::PerThread => state.driver.stream_synchronize_ptsz,
        };
        // SAFETY: null is the default stream of either kind.
        unsafe { synchronize(null_mut()) }
    };
    let before = synchronize();
    let copied = if before == CUDA_SUCCESS { copy() } else { before };
    if copied != CUDA_SUCCESS || state.driver.is_pageable(source) {
        return Some(copied);
    }
    Some(synchronize())
}

/// Passes the gate for a call that blocks until its default stream is done. While the gate may close, first
/// waits for that stream outside the gate. So the thread is inside the gate only for the call's own copy.
///
/// # Errors
/// As [`pass`].
#[inline]
pub fn pass_blocking(stream: DefaultStream) -> Passed {
    let page = page();
    if is_windowed(page) {
        guest_or(|| wait_for_default_stream(stream), || ());
    }
    note_stream(page, null_mut(), stream);
    pass_by(page)
}

#[cold]
fn wait_for_default_stream(stream: DefaultStream) {
    let Some(state) = State::existing() else { return };
    // A wait would invalidate a capture. The call itself returns the application's error.
    if state.gate.captures.any() {
        return;
    }
    let synchronize = match stream {
        DefaultStream::Legacy => state.driver.stream_synchronize,
        DefaultStream::PerThread => state.driver.stream_synchronize_ptsz,
    };
    // SAFETY: null is the default stream of either kind. The call itself returns any error again.
    unsafe { synchronize(null_mut()) };
}

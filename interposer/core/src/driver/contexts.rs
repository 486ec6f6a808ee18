//! Live contexts of the application.
//!
//! The drainer borrows contexts and never retains them. A hook that may destroy a context locks this list
//! meanwhile. A borrower locks the list for each short visit. A call that takes long does not lock it, and
//! who may destroy a context waits for that call.
//!
//! While the process is frozen, calls of the driver wait, and they may have to wait for the next daemon. The
//! way to that one needs the list. So whoever locks the list for calls of the driver waits before, and holds
//! a pass meanwhile.
//!
//! The streams that the program made have a lock of their own, since a thread that makes one must not wait
//! for a context that is being destroyed. A stream is removed before the driver destroys it.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::driver::types::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_SUCCESS, CUcontext, CUdevice, CUevent, CUresult, CUstream,
    EVENT_DISABLE_TIMING, STREAM_NON_BLOCKING,
};
use crate::driver::{Driver, answer};
use crate::freeze::hold::{Pass, pause};
use crate::process::lock;

/// Kind of a CUDA context by how it was created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The primary context of a device, shared by all parts of the program that retain it.
    Primary,
    /// A context that the application created by `cuCtxCreate`.
    Created,
    /// A green context (a part of a device), with the address of its green handle. Both end together. The
    /// memory belongs to the primary context, which lives as long as any green context.
    Green(usize),
}

/// Live CUDA context, with the event and the stream that gpushare creates in it. Both end with the context.
#[derive(Debug)]
pub struct Live {
    context: CUcontext,
    device: CUdevice,
    kind: Kind,
    /// Number of users by `cuCtxAttach` and `cuCtxDetach`, the creator included.
    users: u32,
    event: Option<CUevent>,
    stream: Option<CUstream>,
}

// SAFETY: the driver is thread-safe, and the handles are only passed back to it.
unsafe impl Send for Live {}

/// Live contexts, and the streams that the program made in them.
#[derive(Debug, Default)]
pub struct Contexts {
    live: Mutex<List>,
    /// Notified when a long call in a context has ended.
    has_ended: Condvar,
    /// Addresses of the contexts of the program's streams, by the streams' handles.
    streams: Mutex<BTreeMap<usize, usize>>,
}

/// List of the live CUDA contexts of the process.
#[derive(Debug, Default)]
pub struct List {
    contexts: Vec<Live>,
    /// Number of threads that make a long call in one of them.
    long_calls: u32,
}

/// Locked list of the live contexts. Calls of the driver do not wait meanwhile, and the process does not
/// park.
#[derive(Debug)]
pub struct Visit<'a> {
    list: MutexGuard<'a, List>,
    _pass: Pass,
}

impl Deref for Visit<'_> {
    type Target = List;

    fn deref(&self) -> &List {
        &self.list
    }
}

impl DerefMut for Visit<'_> {
    fn deref_mut(&mut self) -> &mut List {
        &mut self.list
    }
}

impl Contexts {
    /// Adds a context. Returns the number of contexts on its device, or `None` if the context was listed
    /// already.
    pub fn created(&self, context: CUcontext, device: CUdevice, kind: Kind) -> Option<u32> {
        let mut live = lock(&self.live);
        if context.is_null() || live.contexts.iter().any(|known| known.context == context) {
            return None;
        }
        live.contexts
            .push(Live { context, device, kind, users: 1, event: None, stream: None });
        Some(live.count(device))
    }

    /// Returns the device of each live context that has memory of its own.
    pub fn devices(&self) -> Vec<CUdevice> {
        lock(&self.live)
            .iter()
            .filter(|known| !known.is_part())
            .map(Live::device)
            .collect()
    }

    /// Locks the list, once calls of the driver do not wait. A context may be destroyed only while the guard
    /// of [`Self::visit_to_destroy`] lives.
    pub fn visit(&self) -> Visit<'_> {
        Self::visit_once(|| lock(&self.live))
    }

    /// Locks the list once no long call is under way, for a call that may destroy a context.
    pub fn visit_to_destroy(&self) -> Visit<'_> {
        Self::visit_once(|| {
            let list = self.has_ended.wait_while(lock(&self.live), |list| list.long_calls > 0);
            list.unwrap_or_else(PoisonError::into_inner)
        })
    }

    fn visit_once<'a>(lock: impl Fn() -> MutexGuard<'a, List>) -> Visit<'a> {
        loop {
            let list = lock();
            if let Some(pass) = Pass::take() {
                return Visit { list, _pass: pass };
            }
            drop(list);
            pause();
        }
    }

    /// Makes a call that takes long with a context current in the calling thread, that of a device which has
    /// memory of its own. The list is not locked, and no context is destroyed meanwhile. `call` is given the
    /// address of the context.
    ///
    /// # Errors
    /// Error of `call`; there is no such context, or the driver did not make it current.
    pub(crate) fn call_in<T>(
        &self,
        driver: &Driver,
        device: CUdevice,
        call: impl FnOnce(usize) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        let (context, _ends) = {
            let mut list = lock(&self.live);
            let of_device = |live: &&Live| live.device == device && !live.is_part();
            let live = list.iter().find(of_device).ok_or(CUDA_ERROR_INVALID_CONTEXT)?;
            let context = live.context;
            list.long_calls += 1;
            (context, LongCall(self))
        };
        // SAFETY: the context is not destroyed before the call ends.
        unsafe { with_current(driver, context, || call(context.addr())) }
    }

    /// Adds a stream that the program made in the context at an address.
    pub(crate) fn add_stream(&self, stream: CUstream, context: usize) {
        lock(&self.streams).insert(stream.expose_provenance(), context);
    }

    /// Removes a stream that may be destroyed, and returns the address of its context; `None` for an unknown
    /// stream.
    pub(crate) fn take_stream(&self, stream: CUstream) -> Option<usize> {
        lock(&self.streams).remove(&stream.addr())
    }

    /// Returns whether `holds` is true for each stream of a live context. No stream is destroyed meanwhile.
    pub(crate) fn all_streams(&self, context: CUcontext, holds: impl Fn(CUstream) -> bool) -> bool {
        let streams = lock(&self.streams);
        let mut of_context = streams.iter().filter(|(_, of)| **of == context.addr());
        of_context.all(|(stream, _)| holds(std::ptr::with_exposed_provenance_mut(*stream)))
    }

    /// Removes the streams of a destroyed context.
    pub(crate) fn end_streams(&self, context: CUcontext) {
        lock(&self.streams).retain(|_, of| *of != context.addr());
    }
}

/// Long call in a context, until it is dropped.
struct LongCall<'a>(&'a Contexts);

impl Drop for LongCall<'_> {
    fn drop(&mut self) {
        lock(&self.0.live).long_calls -= 1;
        self.0.has_ended.notify_all();
    }
}

/// Runs `work` with a context current in the calling thread.
///
/// # Errors
/// Error of `work`, or of the driver if it did not make the context current.
///
/// # Safety
/// The context is not destroyed meanwhile.
unsafe fn with_current<T>(
    driver: &Driver,
    context: CUcontext,
    work: impl FnOnce() -> Result<T, CUresult>,
) -> Result<T, CUresult> {
    // SAFETY: the context is alive.
    match unsafe { (driver.ctx_push_current)(context) } {
        CUDA_SUCCESS => {}
        error => return Err(error),
    }
    let result = work();
    let mut popped = null_mut();
    // SAFETY: pops the context that was pushed here.
    unsafe { (driver.ctx_pop_current)(&raw mut popped) };
    result
}

impl List {
    /// Returns the number of live contexts on a device. Green contexts do not count, because each is part of
    /// a primary context.
    pub fn count(&self, device: CUdevice) -> u32 {
        let whole = self.contexts.iter().filter(|known| known.device == device && !known.is_part());
        u32::try_from(whole.count()).unwrap_or(u32::MAX)
    }

    /// Adds one to the number of users of a context.
    pub fn attach(&mut self, context: CUcontext) {
        if let Some(known) = self.find(context) {
            known.users = known.users.saturating_add(1);
        }
    }

    /// Subtracts one user of a context, and returns whether no user is left. Returns `false` for an unknown
    /// context.
    pub fn detach(&mut self, context: CUcontext) -> bool {
        self.find(context).is_some_and(|known| {
            known.users = known.users.saturating_sub(1);
            known.users == 0
        })
    }

    /// Returns a live context by its handle.
    pub fn find(&mut self, context: CUcontext) -> Option<&mut Live> {
        self.contexts.iter_mut().find(|known| known.context == context)
    }

    /// Returns the device of a live context.
    pub fn device_of(&self, context: CUcontext) -> Option<CUdevice> {
        self.iter().find(|known| known.context == context).map(Live::device)
    }

    /// Removes a dead context and returns its device; `None` for an unknown context.
    pub fn remove(&mut self, context: CUcontext) -> Option<CUdevice> {
        let at = self.contexts.iter().position(|known| known.context == context)?;
        Some(self.contexts.swap_remove(at).device)
    }

    /// Returns the live primary context of a device.
    pub fn primary(&self, device: CUdevice) -> Option<CUcontext> {
        self.primaries().find(|known| known.device == device).map(Live::context)
    }

    /// Returns the device whose primary context is `context`.
    pub fn primary_of(&self, context: CUcontext) -> Option<CUdevice> {
        self.primaries().find(|known| known.context == context).map(Live::device)
    }

    fn primaries(&self) -> impl Iterator<Item = &Live> {
        self.contexts.iter().filter(|known| known.kind == Kind::Primary)
    }

    /// Returns the CUDA context that belongs to a green handle.
    pub fn green(&self, handle: usize) -> Option<CUcontext> {
        self.contexts
            .iter()
            .find(|known| known.kind == Kind::Green(handle))
            .map(Live::context)
    }

    /// Iterates over the live contexts.
    pub fn iter(&self) -> impl Iterator<Item = &Live> {
        self.contexts.iter()
    }

    /// Iterates over the live contexts, mutably, so that the caller can enter them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.contexts.iter_mut()
    }
}

impl Live {
    /// Returns the CUDA handle of the context.
    pub fn context(&self) -> CUcontext {
        self.context
    }

    /// Returns the CUDA ordinal of the context's device.
    pub fn device(&self) -> CUdevice {
        self.device
    }

    /// Returns whether the context is a part of a primary context.
    pub(crate) fn is_part(&self) -> bool {
        matches!(self.kind, Kind::Green(_))
    }

    /// Runs `work` with the context current in the calling thread.
    pub fn enter<T>(&mut self, driver: &Driver, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.try_enter(driver, |live| Ok(work(live))).ok()
    }

    /// Runs `work` with the context current in the calling thread.
    ///
    /// # Errors
    /// Error of `work`, or of the driver if it did not make the context current.
    pub fn try_enter<T>(
        &mut self,
        driver: &Driver,
        work: impl FnOnce(&mut Self) -> Result<T, CUresult>,
    ) -> Result<T, CUresult> {
        // SAFETY: the context is alive, because destroying it needs the lock that the caller holds.
        unsafe { with_current(driver, self.context, || work(self)) }
    }

    /// Returns gpushare's own CUDA event in this context. Call this inside [`Self::enter`].
    pub fn event(&mut self, driver: &Driver) -> Option<CUevent> {
        // SAFETY: writes one handle; the context is current.
        let create = |event: &mut _| unsafe { (driver.event_create)(event, EVENT_DISABLE_TIMING) };
        self.event = self.event.or_else(|| answer(null_mut(), create));
        self.event
    }

    /// Returns gpushare's stream in this context. Call it inside [`Self::enter`].
    pub fn stream(&mut self, driver: &Driver) -> Option<CUstream> {
        // SAFETY: writes one handle; the context is current.
        let create = |stream: &mut _| unsafe { (driver.stream_create)(stream, STREAM_NON_BLOCKING) };
        self.stream = self.stream.or_else(|| answer(null_mut(), create));
        self.stream
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn context(number: usize) -> CUcontext {
        std::ptr::without_provenance_mut(number)
    }

    #[test]
    fn contexts_are_counted_by_device_and_known_once() {
        let contexts = Contexts::default();
        assert_eq!(contexts.created(context(1), 0, Kind::Primary), Some(1));
        assert_eq!(contexts.created(context(1), 0, Kind::Primary), None);
        assert_eq!(contexts.created(context(2), 0, Kind::Created), Some(2));
        assert_eq!(contexts.created(context(3), 1, Kind::Created), Some(1));
        let mut live = contexts.visit();
        assert_eq!(live.primary(0), Some(context(1)));
        assert_eq!(live.primary(1), None);
        assert_eq!((live.primary_of(context(1)), live.primary_of(context(2))), (Some(0), None));
        assert_eq!(live.remove(context(1)), Some(0));
        assert_eq!(live.remove(context(1)), None);
        assert_eq!((live.count(0), live.count(1)), (1, 1));
    }

    #[test]
    fn a_context_is_used_until_its_last_user_detaches() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Created);
        let mut live = contexts.visit();
        live.attach(context(1));
        assert!(!live.detach(context(1)));
        assert!(live.detach(context(1)));
        assert!(!live.detach(context(9)), "an unknown context is never dead");
    }

    #[test]
    fn a_green_context_is_found_by_its_own_handle() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Primary);
        contexts.created(context(2), 0, Kind::Green(7));
        assert_eq!(contexts.visit().green(7), Some(context(2)));
        assert_eq!(contexts.visit().primary(0), Some(context(1)));
    }

    #[test]
    fn the_streams_of_a_context_end_with_it() {
        let (contexts, stream) = (Contexts::default(), std::ptr::without_provenance_mut);
        contexts.add_stream(stream(0x10), 1);
        contexts.add_stream(stream(0x20), 2);
        assert!(!contexts.all_streams(context(1), |_| false) && contexts.all_streams(context(3), |_| false));
        assert_eq!(contexts.take_stream(stream(0x10)), Some(1));
        assert!(contexts.all_streams(context(1), |_| false), "it may be destroyed by now");
        contexts.add_stream(stream(0x10), 1);
        contexts.end_streams(context(1));
        assert_eq!([0x10, 0x20].map(|handle| contexts.take_stream(stream(handle))), [None, Some(2)]);
    }

    #[test]
    fn parts_of_a_card_are_no_contexts_of_their_own() {
        let contexts = Contexts::default();
        contexts.created(context(1), 0, Kind::Primary);
        assert_eq!(contexts.created(context(2), 0, Kind::Green(7)), Some(1));
        assert_eq!(contexts.created(context(3), 0, Kind::Created), Some(2));
        assert_eq!(contexts.devices(), [0, 0]);
    }
    #[test]
    fn a_context_is_not_destroyed_during_a_long_call_and_others_visit_it() {
        let (driver, contexts) = (crate::driver::fake::driver(), Contexts::default());
        assert_eq!(
            contexts.call_in(&driver, 0, |_| Ok(())),
            Err(CUDA_ERROR_INVALID_CONTEXT),
            "there is none"
        );
        contexts.created(context(1), 0, Kind::Primary);
        let [has_begun, may_end] = [(); 2].map(|()| std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let call = scope.spawn(|| {
                let driver = crate::driver::fake::driver();
                contexts.call_in(&driver, 0, |context| {
                    has_begun.wait();
                    may_end.wait();
                    Ok((context, std::time::Instant::now()))
                })
            });
            has_begun.wait();
            assert_eq!(contexts.visit().primary(0), Some(context(1)));
            let destroyed =
                scope.spawn(|| (contexts.visit_to_destroy().remove(context(1)), std::time::Instant::now()));
            may_end.wait();
            let ((of, ended), (device, removed)) = (call.join().unwrap().unwrap(), destroyed.join().unwrap());
            assert_eq!((of, device), (1, Some(0)));
            assert!(ended <= removed, "destroyed under the call");
        });
    }

    #[test]
    fn a_thread_that_waits_with_a_call_does_not_hold_the_list() {
        use crate::freeze::hold::{is_awaited, testing::Held};
        let contexts = &Contexts::default();
        contexts.created(context(1), 0, Kind::Primary);
        let held = Held::begin();
        std::thread::scope(|scope| {
            let [visit, destroy] = [Contexts::visit, Contexts::visit_to_destroy]
                .map(|visit| scope.spawn(move || visit(contexts).count(0)));
            while !is_awaited() {
                std::thread::yield_now();
            }
            assert_eq!(contexts.devices(), [0], "as the way to the next daemon asks");
            assert!(!visit.is_finished() && !destroy.is_finished());
            drop(held);
            assert_eq!([visit, destroy].map(|visit| visit.join().unwrap()), [1; 2]);
        });
    }
}

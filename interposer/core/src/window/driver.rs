//! The [`Card`] of a real process: driver calls, the clock, and the page's bell, which ends a pause.

use std::ptr::null_mut;
use std::time::Duration;

use gpushare_proto::Nanos;
use gpushare_sys::unwind::cancellation_point;
use gpushare_sys::{bell, clock};

use super::Card;
use super::stream::Stream;
use crate::driver::types::{
    CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUcontext, CUevent, CUstream, DefaultStream, EVENT_DEFAULT,
    STREAM_LEGACY, STREAM_PER_THREAD,
};
use crate::driver::{Driver, answer};
use crate::gate;
use crate::gate::captures::Captures;
use crate::gate::page;
use crate::process::is_exiting;

/// Access of the launch window to the driver and to the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OnDriver {
    driver: &'static Driver,
    captures: &'static Captures,
}

impl OnDriver {
    pub(crate) fn new(driver: &'static Driver, captures: &'static Captures) -> Self {
        Self { driver, captures }
    }

    /// Returns the identity of the stream that an argument of a driver call names in the calling thread.
    pub(crate) fn stream(&self, stream: CUstream, default: DefaultStream) -> Stream {
        let current = || self.driver.current_context().addr();
        match (stream.expose_provenance(), default) {
            (0, DefaultStream::Legacy) | (STREAM_LEGACY, _) => Stream::Legacy(current()),
            (0, DefaultStream::PerThread) | (STREAM_PER_THREAD, _) => {
                Stream::PerThread(current(), gate::thread_number())
            }
            (own, _) => Stream::Own(own),
        }
    }

    fn legacy(&self, context: usize, event: CUevent) -> bool {
        let driver = self.driver;
        let recorded = match driver.ctx_record_event {
            // SAFETY: the context is the calling thread's, and the event belongs to it.
            Some(record) => unsafe { record(std::ptr::with_exposed_provenance_mut(context), event) },
            None => match driver.event_record {
                // SAFETY: the event belongs to the current context; null is the legacy stream.
                Some(record) => unsafe { record(event, null_mut()) },
                None => return false,
            },
        };
        recorded == CUDA_SUCCESS
    }
}

impl Card for OnDriver {
    fn context_of(&self, stream: Stream) -> CUcontext {
        match stream {
            Stream::Own(handle) => self.driver.context_of(std::ptr::with_exposed_provenance_mut(handle)),
            Stream::Legacy(context) | Stream::PerThread(context, _) => {
                std::ptr::with_exposed_provenance_mut(context)
            }
        }
    }

    fn create(&self, context: CUcontext) -> Option<CUevent> {
        // The context is alive, because a stream of it is being launched on.
        self.driver.create_event(context, EVENT_DEFAULT)
    }

    fn destroy(&self, event: CUevent) {
        if let Some(destroy) = self.driver.event_destroy {
            // SAFETY: the event is gpushare's own and no longer used.
            unsafe { destroy(event) };
        }
    }

    fn mark(&self, stream: Stream, event: CUevent) -> bool {
        let driver = self.driver;
        let (record, stream) = match stream {
            Stream::Legacy(context) => return self.legacy(context, event),
            Stream::Own(handle) => (driver.event_record, std::ptr::with_exposed_provenance_mut(handle)),
            // Only the thread itself can name this stream, and it is the calling one.
            Stream::PerThread(..) => (driver.event_record_ptsz, null_mut()),
        };
        // SAFETY: the stream is the application's, which launches on it now; the event belongs to its
        // context.
        record.is_some_and(|record| unsafe { record(event, stream) } == CUDA_SUCCESS)
    }

    fn is_done(&self, event: CUevent) -> bool {
        // SAFETY: the event lives as long as its context, which is destroyed only after the slot's holder is
        // done. Every answer but "not ready" ends the wait, because a context with a sticky error runs
        // nothing more.
        unsafe { (self.driver.event_query)(event) != CUDA_ERROR_NOT_READY }
    }

    fn elapsed(&self, from: CUevent, to: CUevent) -> Option<Nanos> {
        let ask = self.driver.event_elapsed_time?;
        // SAFETY: writes one number; both events are gpushare's own, and live as long as their context, which is
        // destroyed only after the slot's holder is done.
        let milliseconds = answer(0.0, |milliseconds| unsafe { ask(milliseconds, from, to) })?;
        // Sub-microsecond digits are beyond the card's clock.
        Duration::try_from_secs_f32(milliseconds / 1e3).ok().map(Nanos::from)
    }

    fn orders_others(&self, stream: Stream) -> bool {
        matches!(stream, Stream::Legacy(_)) && self.driver.ctx_record_event.is_none()
    }

    fn is_capturing(&self) -> bool {
        self.captures.any()
    }

    fn now(&self) -> Nanos {
        clock::monotonic()
    }

    fn pause(&self, span: Nanos) -> bool {
        // A cancelled thread ends here. It holds nothing, and without gpushare it would not wait.
        cancellation_point();
        let page = page();
        // An early wake-up only means another look.
        let _ = bell::sleep(page, bell::heard(page), Some(Duration::from(span)));
        !is_exiting()
    }

    fn undisturbed<T>(&self, ask: impl FnOnce() -> T) -> Option<T> {
        self.captures.undisturbed(ask)
    }
}

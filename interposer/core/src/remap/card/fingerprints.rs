//! Fingerprints of chunks: when their kernel is loaded, proved, launched and given up.

use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use super::kernel::{Kernel, Use};
use super::{OnCard, Stream, UNUSABLE, UnderWay};
use crate::driver::contexts::Live;
use crate::driver::try_answer;
use crate::driver::types::CUDA_ERROR_INVALID_CONTEXT;
use crate::process::lock;
use crate::remap::vmm::{Span, VmmError};

/// Number of looks for the end of a fingerprint without a pause. It takes 0.1 ms.
const LOOKS: u32 = 200;
/// Pause between two later looks.
const POLL: Duration = Duration::from_micros(50);

impl OnCard {
    /// Loads the kernel for fingerprints into the context that is current in the calling thread, unless it is
    /// loaded. It is proved before its first use, when no work of the application can keep it waiting.
    pub(in crate::remap) fn load_fingerprints(&self) {
        let mut known = lock(&self.fingerprints.kernel);
        if !matches!(*known, Use::Unloaded) {
            return;
        }
        // SAFETY: writes one handle.
        let current = try_answer(null_mut(), |context| unsafe { (self.driver.ctx_get_current)(context) });
        if let Ok(context) = current {
            // Without the kernel, all memory that leaves is copied.
            let _ = self.driver.relaxed(|| self.load(&mut known, context.addr()));
        }
    }

    /// Loads the kernel into the current context.
    fn load(&self, known: &mut Use, context: usize) -> Result<Kernel, VmmError> {
        let Some(key) = self.fingerprints.key() else {
            self.fingerprints.give_up(known, format_args!("the system gives no random key"));
            return Err(UNUSABLE);
        };
        let ended = self.fingerprints.ended.load(Ordering::SeqCst);
        match Kernel::load(self.driver, context, key, ended) {
            Ok(kernel) => {
                self.fingerprints.context.store(context, Ordering::SeqCst);
                *known = Use::Loaded(kernel);
                Ok(kernel)
            }
            Err(error) => {
                // What the driver cannot compile or has no memory for is not tried for each chunk.
                self.fingerprints
                    .give_up(known, format_args!("loading their kernel ended with CUDA error {error}"));
                Err(VmmError::of_work(error))
            }
        }
    }

    /// Returns the kernel, which is loaded and proved at first.
    pub(super) fn kernel(&self, known: &mut Use) -> Result<Kernel, VmmError> {
        let ended = self.fingerprints.ended.load(Ordering::SeqCst);
        let context = self.in_context(|live| Ok(live.context().addr()))?;
        let is_here = |kernel: &Kernel| kernel.is_alive(ended) && kernel.context == context;
        let kernel = match *known {
            Use::Proved(kernel) if is_here(&kernel) => return Ok(kernel),
            Use::Loaded(kernel) if is_here(&kernel) => kernel,
            Use::Unusable => return Err(UNUSABLE),
            Use::Proved(_) | Use::Loaded(_) | Use::Unloaded => {
                let load = |live: &mut Live| Ok(self.load(known, live.context().addr()));
                self.in_context(load).map_err(VmmError::of_work)??
            }
        };
        let is_right = self.compute(&kernel, &[kernel.known()], Kernel::is_right)?;
        if !is_right {
            self.fingerprints
                .give_up(known, format_args!("their kernel computes wrong values"));
            return Err(UNUSABLE);
        }
        *known = Use::Proved(kernel);
        Ok(kernel)
    }

    /// Launches the kernel for each of some ranges, waits for the end, and reads what it has computed.
    pub(super) fn compute<T>(
        &self,
        kernel: &Kernel,
        spans: &[Span],
        read: impl FnOnce(&Kernel) -> T,
    ) -> Result<T, VmmError> {
        let is_alive = || kernel.is_alive(self.fingerprints.ended.load(Ordering::SeqCst));
        let begin = |(place, span): (usize, &Span)| {
            let launch = |live: &Live, stream| match live.context().addr() == kernel.context && is_alive() {
                true => kernel.launch(self.driver, place, *span, stream),
                false => CUDA_ERROR_INVALID_CONTEXT,
            };
            self.begin(Stream::Kernel, span.address, launch).map_err(VmmError::of_work)
        };
        // What has begun ends, also after an error: the next launches write to the same memory.
        let begun = spans.iter().enumerate().map(begin).collect::<Vec<_>>();
        let ended = begun.into_iter().map(|work| self.wait_for(work?, is_alive)).collect::<Vec<_>>();
        ended.into_iter().collect::<Result<(), _>>()?;
        let contexts = self.contexts.visit();
        // Its pinned memory ends with the context.
        let has_memory = contexts.iter().any(|live| live.context().addr() == kernel.context) && is_alive();
        has_memory
            .then(|| read(kernel))
            .ok_or(VmmError::Refused(CUDA_ERROR_INVALID_CONTEXT))
    }

    /// Waits for the end of a kernel, which takes a fraction of a millisecond.
    fn wait_for(&self, work: UnderWay, is_alive: impl Fn() -> bool) -> Result<(), VmmError> {
        let mut looks = 0;
        loop {
            // Another context may have the address of one that has ended.
            if !is_alive() {
                return Err(VmmError::Refused(CUDA_ERROR_INVALID_CONTEXT));
            }
            match self.end(work) {
                Some(result) => return result,
                None if looks < LOOKS => std::hint::spin_loop(),
                None => thread::sleep(POLL),
            }
            looks += 1;
        }
    }
}

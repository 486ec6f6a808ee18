//! Work in flight on the card, by context, polled until the work is done.
//!
//! An event behind all work of a context proves that the context is idle. Drivers before CUDA 12.5 have no
//! such event; there the context is synchronised.
//!
//! The driver refuses both at once while a stream of the context captures, even if the capture was
//! invalidated and the program never ends it. Then idleness is proved in parts:
//!
//! ```text
//!   work before the capture began    the event that was recorded just before (hooks/capture.rs)
//!   streams that the program made    cuStreamQuery; a capturing stream executes nothing
//!   the legacy stream                cuStreamQuery; unusable while a blocking stream captures
//!   threads' own default streams     only the thread itself can name one: none got work since
//! ```
//!
//! Without the proof the process does not report that it is drained, and the daemon reports it as stuck.
//!
//! A context that answers with an error runs nothing more, so the process is drained in spite of it. But only
//! success proves what its work has done, so such a context is named ([`InFlight::failed`]).

use std::cell::Cell;
use std::ptr::without_provenance_mut;

use super::captures::Captures;
use crate::driver::Driver;
use crate::driver::contexts::{Contexts, Live};
use crate::driver::types::{
    CAPTURE_STATUS_NONE, CUDA_ERROR_NOT_READY, CUDA_SUCCESS, CUdevice, CUevent, CUresult,
    REFUSED_FOR_CAPTURE, STREAM_LEGACY,
};

/// Contexts that may have work in flight, and those that have failed.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// Addresses of contexts, and how each is proved idle.
    marks: Vec<(usize, Proof)>,
    failed: Vec<Failed>,
}

/// Context that answered a question about its work with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    pub(super) device: CUdevice,
    pub(super) result: CUresult,
}

#[derive(Clone, Copy, Debug)]
enum Proof {
    /// Event behind all work of the context.
    Event(CUevent),
    /// A capture of the context has begun and not ended.
    Parts,
}

impl InFlight {
    /// Records an event at the end of each context's work. Returns `None` while a capture runs, which the
    /// event would break.
    pub(super) fn mark(driver: &Driver, contexts: &Contexts, captures: &Captures) -> Option<Self> {
        let mut in_flight = Self::default();
        let mut contexts = contexts.visit();
        // Captures begin under the same lock, so none begins from here on.
        if captures.any() {
            return None;
        }
        for live in contexts.iter_mut() {
            let context = live.context().addr();
            match proof(driver, captures, live) {
                Ok(proof) => in_flight.marks.extend(proof.map(|proof| (context, proof))),
                Err(result) => in_flight.failed.push(Failed { device: live.device(), result }),
            }
        }
        Some(in_flight)
    }

    /// Returns whether nothing runs any more that was in flight when the marks were made.
    pub(super) fn is_done(&mut self, driver: &Driver, contexts: &Contexts, captures: &Captures) -> bool {
        let mut live = contexts.visit();
        // A look at a stream would break its capture.
        if captures.any() {
            return false;
        }
        let Self { marks, failed } = self;
        marks.retain_mut(|(context, mark)| {
            // A context that was destroyed meanwhile took its work and its event along.
            let Some(live) = live.iter_mut().find(|live| live.context().addr() == *context) else {
                return false;
            };
            let is_done = match *mark {
                // SAFETY: the event lives as long as its context, which the lock keeps.
                Proof::Event(event) => is_idle(unsafe { (driver.event_query)(event) }),
                Proof::Parts if captures.has(*context) => {
                    live.try_enter(driver, |live| are_parts_idle(driver, contexts, captures, live))
                }
                // The capture has ended.
                Proof::Parts => proof(driver, captures, live).map(|proof| {
                    *mark = proof.unwrap_or(*mark);
                    proof.is_none()
                }),
            };
            match is_done {
                Ok(is_done) => !is_done,
                Err(result) => {
                    failed.push(Failed { device: live.device(), result });
                    false
                }
            }
        });
        marks.is_empty()
    }

    /// Returns the contexts that have failed. Nothing proves what their work has done.
    pub(super) fn failed(self) -> Vec<Failed> {
        self.failed
    }
}

/// Marks the end of the present work of a context; returns `None` if no work is in flight.
///
/// # Errors
/// The context has failed.
fn proof(driver: &Driver, captures: &Captures, live: &mut Live) -> Result<Option<Proof>, CUresult> {
    // The event covers the work before the capture, and stays as it is until the capture ends.
    if captures.has(live.context().addr()) {
        return Ok(Some(Proof::Parts));
    }
    let mark = |live: &mut Live| {
        if let (Some(record), Some(event)) = (driver.ctx_record_event, live.event(driver)) {
            // SAFETY: both are alive and belong together.
            match unsafe { record(live.context(), event) } {
                CUDA_SUCCESS => return Ok(Some(Proof::Event(event))),
                // A capture that began past gpushare's hooks.
                result if REFUSED_FOR_CAPTURE.contains(&result) => return Ok(Some(Proof::Parts)),
                _ => {}
            }
        }
        // SAFETY: waits for the current context; has no arguments.
        let result = unsafe { (driver.ctx_synchronize)() };
        is_idle(result).map(|is_idle| (!is_idle).then_some(Proof::Parts))
    };
    live.try_enter(driver, mark)
}

/// Returns whether a context, which is current, has no work in flight, though a stream of it captures.
///
/// # Errors
/// A part has failed, and all others are idle.
fn are_parts_idle(
    driver: &Driver,
    contexts: &Contexts,
    captures: &Captures,
    live: &mut Live,
) -> Result<bool, CUresult> {
    let context = live.context();
    let Some(before) = live.event(driver).filter(|_| captures.are_covered(context.addr())) else {
        return Ok(false);
    };
    let failed = Cell::new(None);
    let rests = |answer| {
        is_idle(answer).unwrap_or_else(|result| {
            failed.set(Some(result));
            true
        })
    };
    // SAFETY: the stream is alive: the legacy one, or one of the locked list.
    let is_stream_idle = |stream| rests(unsafe { (driver.stream_query)(stream) });
    // SAFETY: the event lives as long as its context, which the caller has locked.
    let is_idle = rests(unsafe { (driver.event_query)(before) })
        && (driver.is_legacy_unusable() || is_stream_idle(without_provenance_mut(STREAM_LEGACY)))
        && contexts.all_streams(context, |stream| match driver.capture_status(stream) {
            None | Some(CAPTURE_STATUS_NONE) => is_stream_idle(stream),
            // Nothing says what a stream had in flight that joined a capture later.
            Some(_) => captures.began_in(stream),
        });
    failed.get().filter(|_| is_idle).map_or(Ok(is_idle), Err)
}

/// Returns whether the answer to a question about work shows that nothing is in flight.
///
/// # Errors
/// The answer itself, if the context has failed.
fn is_idle(answer: CUresult) -> Result<bool, CUresult> {
    match answer {
        CUDA_SUCCESS => Ok(true),
        CUDA_ERROR_NOT_READY => Ok(false),
        refused if REFUSED_FOR_CAPTURE.contains(&refused) => Ok(false),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::contexts::Kind;
    use crate::driver::fake::{answers, driver};
    use crate::driver::types::{
        CAPTURE_STATUS_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUcontext, CUstream,
    };

    const CONTEXT: CUcontext = without_provenance_mut(0x100);
    const CAPTURING: CUstream = without_provenance_mut(0x1000);
    const OTHER: CUstream = without_provenance_mut(0x2000);
    const IMPLICIT: CUresult = 906;
    const ILLEGAL_ADDRESS: CUresult = 700;

    struct Process {
        driver: Driver,
        contexts: Contexts,
        captures: Captures,
    }

    impl Process {
        /// Returns a process with a context and two streams.
        fn new() -> Self {
            let (driver, contexts, captures) = (driver(), Contexts::default(), Captures::default());
            contexts.created(CONTEXT, 0, Kind::Created);
            contexts.add_stream(CAPTURING, CONTEXT.addr());
            contexts.add_stream(OTHER, CONTEXT.addr());
            Self { driver, contexts, captures }
        }

        /// Returns a process with a capture that was invalidated and not ended.
        fn invalidated(covered: bool) -> Self {
            let process = Self::new();
            process.captures.begin(CAPTURING, CONTEXT, covered);
            answers(|answers| {
                let refused = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
                (answers.record, answers.synchronize) = (refused, refused);
                answers.streams.insert(CAPTURING.addr(), refused);
                answers.captures.insert(CAPTURING.addr(), Ok(CAPTURE_STATUS_INVALIDATED));
            });
            assert!(!process.captures.is_capturing(&process.driver, &process.contexts));
            process
        }

        fn mark(&self) -> InFlight {
            InFlight::mark(&self.driver, &self.contexts, &self.captures).unwrap()
        }

        fn is_done(&self, marks: &mut InFlight) -> bool {
            marks.is_done(&self.driver, &self.contexts, &self.captures)
        }
    }

    #[test]
    fn an_event_says_when_a_context_is_idle() {
        let process = Process::new();
        let mut marks = process.mark();
        answers(|answers| answers.event = CUDA_ERROR_NOT_READY);
        assert!(!process.is_done(&mut marks));
        answers(|answers| answers.event = CUDA_SUCCESS);
        assert!(process.is_done(&mut marks));
    }

    #[test]
    fn a_context_that_refuses_marks_is_idle_when_each_of_its_streams_is() {
        let process = Process::invalidated(true);
        for busy in [OTHER.addr(), STREAM_LEGACY] {
            let mut marks = process.mark();
            answers(|answers| answers.streams.insert(busy, CUDA_ERROR_NOT_READY));
            assert!(!process.is_done(&mut marks), "{busy:#x}");
            answers(|answers| answers.streams.insert(busy, CUDA_SUCCESS));
            assert!(process.is_done(&mut marks));
        }
        let mut marks = process.mark();
        answers(|answers| answers.event = CUDA_ERROR_NOT_READY);
        assert!(!process.is_done(&mut marks), "the work before the capture");
    }

    #[test]
    fn a_legacy_stream_that_takes_no_work_is_idle() {
        let process = Process::invalidated(true);
        answers(|answers| {
            answers.streams.insert(STREAM_LEGACY, IMPLICIT);
            answers.captures.insert(STREAM_LEGACY, Err(IMPLICIT));
        });
        assert!(process.is_done(&mut process.mark()));
    }

    #[test]
    fn work_that_nobody_can_ask_about_is_not_done() {
        let process = Process::invalidated(false);
        assert!(!process.is_done(&mut process.mark()), "nothing marks the work before the capture");

        let process = Process::invalidated(true);
        process.captures.note_unnamed();
        assert!(!process.is_done(&mut process.mark()), "a stream that only its thread can name");

        let process = Process::invalidated(true);
        answers(|answers| answers.captures.insert(OTHER.addr(), Ok(CAPTURE_STATUS_INVALIDATED)));
        assert!(!process.is_done(&mut process.mark()), "a stream that joined the capture");

        let process = Process::new();
        answers(|answers| answers.record = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        assert!(!process.is_done(&mut process.mark()), "a capture that no hook saw");
    }

    #[test]
    fn a_context_whose_capture_ends_is_marked_again() {
        let process = Process::invalidated(false);
        let mut marks = process.mark();
        assert!(!process.is_done(&mut marks));
        process.captures.end(CAPTURING);
        answers(|answers| (answers.record, answers.event) = (CUDA_SUCCESS, CUDA_ERROR_NOT_READY));
        assert!(!process.is_done(&mut marks));
        answers(|answers| answers.event = CUDA_SUCCESS);
        assert!(process.is_done(&mut marks));
    }

    /// Such a context runs nothing more, so the lock goes on.
    #[test]
    fn a_context_with_a_sticky_error_has_nothing_in_flight_and_is_named() {
        let lost = vec![Failed { device: 0, result: ILLEGAL_ADDRESS }];
        let failed = |process: &Process, mut marks: InFlight| {
            assert!(process.is_done(&mut marks));
            marks.failed()
        };
        let process = Process::new();
        assert_eq!(failed(&process, process.mark()), []);
        let marks = process.mark();
        answers(|answers| answers.event = ILLEGAL_ADDRESS);
        assert_eq!(failed(&process, marks), lost, "its event");
        answers(|answers| (answers.record, answers.synchronize) = (ILLEGAL_ADDRESS, ILLEGAL_ADDRESS));
        assert_eq!(failed(&process, process.mark()), lost, "its mark");

        let process = Process::new();
        answers(|answers| answers.push = ILLEGAL_ADDRESS);
        assert_eq!(failed(&process, process.mark()), lost, "it cannot be made current");

        let process = Process::invalidated(true);
        answers(|answers| answers.streams.insert(OTHER.addr(), ILLEGAL_ADDRESS));
        assert_eq!(failed(&process, process.mark()), lost, "a stream beside a capture");
    }
}

//! Streams, events, host functions, waits on values, capture and replay.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use clap::ValueEnum;

use crate::driver::{DevicePtr, Handle};
use crate::error::CudaError;
use crate::gpu::Gpu;

/// Whether a stream waits for the legacy default stream.
const NON_BLOCKING: u32 = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`.
const WAIT_GEQ: u32 = 0;
const NOT_READY: c_int = 600;

/// How strict a capture is with other threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CaptureMode {
    /// No thread may make an unsafe call.
    #[default]
    Global,
    /// This thread may make none.
    Thread,
    /// All may.
    Relaxed,
}

/// A host function that blocks its stream until somebody opens it.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    /// Lets the host function return.
    pub fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    fn wait(&self) {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.0.1.wait_while(open, |open| !*open));
    }
}

/// The driver calls this from a thread of its own.
unsafe extern "C" fn wait_for_latch(latch: *mut c_void) {
    // SAFETY: `Gpu::block_on` leaked exactly one box for exactly one call.
    let latch = unsafe { Box::from_raw(latch.cast::<Latch>()) };
    latch.wait();
}

/// `true` for finished, `false` for work still in flight.
fn finished(answer: Result<(), CudaError>) -> Result<bool, CudaError> {
    match answer {
        Ok(()) => Ok(true),
        Err(CudaError::Driver { code: NOT_READY, .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Every method fails with what the driver answered. Handles are the driver's own, and it checks them.
impl Gpu {
    /// A stream that does not wait for the legacy one.
    pub fn stream(&self) -> Result<Handle, CudaError> {
        let mut stream = 0;
        // SAFETY: the result is writable.
        unsafe { self.device.driver.stream_create(&raw mut stream, NON_BLOCKING)? };
        Ok(stream)
    }

    /// Destroys a stream.
    pub fn destroy_stream(&self, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller forgets the handle.
        unsafe { self.device.driver.stream_destroy(stream) }
    }

    /// Waits for a stream.
    pub fn synchronize_stream(&self, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: takes nothing but a handle.
        unsafe { self.device.driver.stream_synchronize(stream) }
    }

    /// Whether a stream has nothing left to do.
    pub fn stream_finished(&self, stream: Handle) -> Result<bool, CudaError> {
        // SAFETY: takes nothing but a handle.
        finished(unsafe { self.device.driver.stream_query(stream) })
    }

    /// Calls a host function on a stream that blocks it until `latch` is open.
    pub fn block_on(&self, latch: &Latch, stream: Handle) -> Result<(), CudaError> {
        let argument = Box::into_raw(Box::new(latch.clone()));
        // SAFETY: the driver calls the function once with its argument, which nobody frees before.
        let answer = unsafe { self.device.driver.launch_host_func(stream, wait_for_latch, argument.cast()) };
        if answer.is_err() {
            // SAFETY: the driver refused the call, so the box is still ours.
            drop(unsafe { Box::from_raw(argument) });
        }
        answer
    }

    /// Blocks a stream until the word at `address` is at least `value`.
    pub fn wait_value(&self, address: DevicePtr, value: u32, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: a device address, which the driver checks.
        unsafe { self.device.driver.stream_wait_value(stream, address, value, WAIT_GEQ) }
    }

    /// Stores `value` at `address` when the stream comes to it.
    pub fn write_value(&self, address: DevicePtr, value: u32, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: a device address, which the driver checks.
        unsafe { self.device.driver.stream_write_value(stream, address, value, 0) }
    }

    /// An event that keeps time.
    pub fn event(&self) -> Result<Handle, CudaError> {
        let mut event = 0;
        // SAFETY: the result is writable.
        unsafe { self.device.driver.event_create(&raw mut event, 0)? };
        Ok(event)
    }

    /// Destroys an event.
    pub fn destroy_event(&self, event: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller forgets the handle.
        unsafe { self.device.driver.event_destroy(event) }
    }

    /// Records an event on a stream.
    pub fn record(&self, event: Handle, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: takes nothing but handles.
        unsafe { self.device.driver.event_record(event, stream) }
    }

    /// Whether what an event recorded is over.
    pub fn event_finished(&self, event: Handle) -> Result<bool, CudaError> {
        // SAFETY: takes nothing but a handle.
        finished(unsafe { self.device.driver.event_query(event) })
    }

    /// Waits on the host for what an event recorded.
    pub fn synchronize_event(&self, event: Handle) -> Result<(), CudaError> {
        // SAFETY: takes nothing but a handle.
        unsafe { self.device.driver.event_synchronize(event) }
    }

    /// Makes a stream wait for what an event recorded.
    pub fn wait_event(&self, event: Handle, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: takes nothing but handles.
        unsafe { self.device.driver.stream_wait_event(stream, event, 0) }
    }

    /// Milliseconds between two finished events.
    pub fn elapsed_ms(&self, from: Handle, to: Handle) -> Result<f32, CudaError> {
        let mut milliseconds = 0.0;
        // SAFETY: the result is writable.
        unsafe {
            self.device.driver.event_elapsed(&raw mut milliseconds, from, to)?;
        }
        Ok(milliseconds)
    }

    /// Starts to record what follows on `stream` instead of running it.
    pub fn begin_capture(&self, stream: Handle, mode: CaptureMode) -> Result<(), CudaError> {
        // SAFETY: takes nothing but a handle and a constant of the headers.
        unsafe { self.device.driver.stream_begin_capture(stream, mode as c_int) }
    }

    /// Ends the capture and makes its graph launchable.
    pub fn end_capture(&self, stream: Handle) -> Result<Handle, CudaError> {
        let graph = self.end_capture_as_template(stream)?;
        let exec = self.instantiate(graph)?;
        // SAFETY: nobody else knows the graph.
        unsafe { self.device.driver.graph_destroy(graph)? };
        Ok(exec)
    }

    /// Ends the capture. Its graph is not launchable yet.
    pub fn end_capture_as_template(&self, stream: Handle) -> Result<Handle, CudaError> {
        let mut graph = 0;
        // SAFETY: the result is writable.
        unsafe { self.device.driver.stream_end_capture(stream, &raw mut graph)? };
        Ok(graph)
    }

    /// Makes a graph launchable.
    pub fn instantiate(&self, graph: Handle) -> Result<Handle, CudaError> {
        let mut exec = 0;
        // SAFETY: the result is writable.
        unsafe { self.device.driver.graph_instantiate(&raw mut exec, graph, 0)? };
        Ok(exec)
    }

    /// Changes a launchable graph to what another graph of the same shape does.
    pub fn update(&self, exec: Handle, graph: Handle) -> Result<(), CudaError> {
        let (mut failed, mut result) = (0, 0);
        // SAFETY: the results are writable.
        unsafe { self.device.driver.graph_update(exec, graph, &raw mut failed, &raw mut result) }
    }

    /// Launches a captured graph.
    pub fn replay(&self, graph: Handle, stream: Handle) -> Result<(), CudaError> {
        // SAFETY: takes nothing but handles.
        unsafe { self.device.driver.graph_launch(graph, stream) }
    }

    /// Destroys a captured graph.
    pub fn destroy_graph(&self, graph: Handle) -> Result<(), CudaError> {
        // SAFETY: the caller forgets the handle.
        unsafe { self.device.driver.graph_exec_destroy(graph) }
    }
}

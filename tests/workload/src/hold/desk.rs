//! What all threads of `hold` work on: the GPU, from the first command that needs it, and every named thing.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::{Mutex, OnceLock};

use gpushare_proto::Bytes;
use serde_json::{Value, json};

use super::command::{Command, On};
use super::names::{Names, Unknown};
use crate::contexts::Held;
use crate::driver::Handle;
use crate::error::CudaError;
use crate::gpu::{DEFAULT_STREAM, Gpu};
use crate::kernels::Kernel;
use crate::memory::{Buffer, Door};
use crate::segments::Segment;
use crate::streams::Latch;

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD`.
const LEGACY_STREAM: Handle = 1;
const PER_THREAD_STREAM: Handle = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error("`{program}` cannot be executed: {cause}")]
    Exec { program: String, cause: std::io::Error },
}

impl Failure {
    pub(super) fn report(&self) -> Value {
        match self {
            Self::Cuda(error) => error.report(),
            Self::Unknown(error) => json!({ "error": "unknown name", "message": error.to_string() }),
            Self::Exec { .. } => json!({ "error": "exec", "message": self.to_string() }),
        }
    }
}

/// The values of an answer, or why there are none.
pub(super) type Answer = Result<Value, Failure>;

/// Host memory of an asynchronous copy: the driver may write it at any time, so it is never freed.
pub(super) type HostWords = &'static [AtomicU32];

/// The GPU and the names.
pub(super) struct Desk {
    start: Box<dyn Fn() -> Result<Gpu, CudaError> + Send + Sync>,
    gpu: OnceLock<Result<Gpu, CudaError>>,
    pub(super) buffers: Names<Buffer>,
    pub(super) segments: Names<Segment>,
    /// Segments that end at the exit of the program.
    pub(super) ending: Mutex<Vec<String>>,
    pub(super) fetched: Names<HostWords>,
    pub(super) streams: Names<Handle>,
    pub(super) events: Names<Handle>,
    pub(super) latches: Names<Latch>,
    pub(super) graphs: Names<Handle>,
    pub(super) templates: Names<Handle>,
    pub(super) contexts: Names<Held>,
}

impl Desk {
    pub(super) fn new(start: impl Fn() -> Result<Gpu, CudaError> + Send + Sync + 'static) -> Self {
        Self {
            start: Box::new(start),
            gpu: OnceLock::new(),
            buffers: Names::new("buffer"),
            segments: Names::new("segment"),
            ending: Mutex::default(),
            fetched: Names::new("fetched buffer"),
            streams: Names::new("stream"),
            events: Names::new("event"),
            latches: Names::new("latch"),
            graphs: Names::new("graph"),
            templates: Names::new("template"),
            contexts: Names::new("context"),
        }
    }

    /// The GPU, with its context current on this thread.
    pub(super) fn gpu(&self) -> Result<&Gpu, CudaError> {
        let gpu = self.gpu_without_context()?;
        if !STAYS.get() {
            gpu.enter()?;
        }
        Ok(gpu)
    }

    /// The GPU, for calls that need no current context.
    pub(super) fn gpu_without_context(&self) -> Result<&Gpu, CudaError> {
        self.gpu.get_or_init(|| (self.start)()).as_ref().map_err(Clone::clone)
    }

    /// Allocates the buffer `hold` and fills it with ones.
    pub(super) fn hold(&self, bytes: Bytes) -> Result<(), CudaError> {
        let gpu = self.gpu()?;
        let buffer = gpu.allocate(bytes, Door::Mem)?;
        self.buffers.put("hold", buffer);
        let fill = Kernel::Fill { p: buffer.address, n: buffer.words(), value: 1 };
        gpu.launch(fill, DEFAULT_STREAM)?;
        gpu.synchronize()
    }

    /// The stream that a line names.
    pub(super) fn stream(&self, stream: &On) -> Result<Handle, Unknown> {
        match stream.on.as_deref() {
            None => Ok(DEFAULT_STREAM),
            Some("legacy") => Ok(LEGACY_STREAM),
            Some("per-thread") => Ok(PER_THREAD_STREAM),
            Some(name) => self.streams.get(name),
        }
    }

    /// Does what a line says.
    pub(super) fn execute(&self, command: &Command) -> Answer {
        match command {
            Command::Memory(command) => self.memory(command),
            Command::Segment(command) => self.segments(command),
            Command::Copy(command) => self.copies(command),
            Command::Launch(command) => self.launches(command),
            Command::Stream(command) => self.on_streams(command),
            Command::Context(command) => self.in_contexts(command),
            Command::Host(command) => self.host(command),
        }
    }
}

thread_local! {
    /// Whether the context of this thread is made current no more, so that a command makes its own calls only.
    static STAYS: Cell<bool> = const { Cell::new(false) };
}

/// Makes the context current no more before each command of this thread.
pub(super) fn stay() {
    STAYS.set(true);
}

/// The answer of a command that has nothing to tell.
pub(super) fn done() -> Answer {
    Ok(json!({}))
}

//! Launch window of this process, and its executable graphs. The window is created when the process begins to
//! share a card, since a launch must not allocate.

use std::sync::OnceLock;

use super::driver::OnDriver;
use super::graphs::Graphs;
use super::launch_window::Window;
use super::markers::Frozen;
use crate::driver::types::{CUcontext, CUstream};

/// Launch window of the process, and the kernels of its executable graphs.
#[derive(Debug, Default)]
pub(crate) struct ProcessWindow {
    window: OnceLock<Window>,
    pub(crate) graphs: Graphs,
}

impl ProcessWindow {
    pub(crate) fn open(&self) {
        self.window.get_or_init(Window::default);
    }

    /// Returns the launch window; `None` in a process that shares no card.
    pub(crate) fn get(&self) -> Option<&Window> {
        self.window.get()
    }

    pub(crate) fn end_stream(&self, stream: CUstream, card: &OnDriver) {
        if let Some(window) = self.window.get() {
            window.subtract(window.markers.end_stream(stream.addr(), card));
        }
    }

    /// Keeps all threads off the launch markers in a context that may be destroyed, during the guard's
    /// lifetime.
    #[must_use]
    pub(crate) fn freeze(&self, context: CUcontext) -> Option<Frozen<'_>> {
        Some(self.window.get()?.markers.freeze(context))
    }

    pub(crate) fn end_context(&self, frozen: Option<Frozen<'_>>) {
        if let (Some(window), Some(frozen)) = (self.window.get(), frozen) {
            window.subtract(frozen.end_context());
        }
    }
}

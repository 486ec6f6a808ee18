//! The window of this process and the graphs that it knows. The window is made when the process shares a
//! card, since a launch must not allocate.

use std::sync::OnceLock;

use super::driver::OnDriver;
use super::graphs::Graphs;
use super::launch_window::Window;
use super::markers::Frozen;
use crate::driver::types::{CUcontext, CUstream};

/// Window of the process, and the contents of its executable graphs.
#[derive(Debug, Default)]
pub(crate) struct ProcessWindow {
    window: OnceLock<Window>,
    pub(crate) graphs: Graphs,
}

impl ProcessWindow {
    /// Makes the window, if it is not there yet.
    pub(crate) fn open(&self) {
        self.window.get_or_init(Window::default);
    }

    /// Returns the window of a process that shares a card.
    pub(crate) fn get(&self) -> Option<&Window> {
        self.window.get()
    }

    /// Forgets a stream that is being destroyed.
    pub(crate) fn end_stream(&self, stream: CUstream, card: &OnDriver) {
        if let Some(window) = self.window.get() {
            window.subtract(window.markers.end_stream(stream.addr(), card));
        }
    }

    /// Keeps all threads off the markers in a context that may be destroyed, while the guard lives.
    #[must_use]
    pub(crate) fn freeze(&self, context: CUcontext) -> Option<Frozen<'_>> {
        Some(self.window.get()?.markers.freeze(context))
    }

    /// Forgets the markers of a context that was destroyed.
    pub(crate) fn end_context(&self, frozen: Option<Frozen<'_>>) {
        if let (Some(window), Some(frozen)) = (self.window.get(), frozen) {
            window.subtract(frozen.end_context());
        }
    }
}

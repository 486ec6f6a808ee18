//! Exports of the process: other processes of its user, which the daemon names, get memory that the program has given
//! them a handle of.

use std::sync::atomic::{AtomicUsize, Ordering};

use gpushare_proto::GpuUuid;
use gpushare_proto::sharing::{ExportName, Meeting};

use super::State;
use crate::process::spawn;
use crate::sharing::{meeting, transfer};

/// Most importers that are served at once. Later ones wait in vain and try again.
const MOST_SERVED: usize = 32;

static SERVED: AtomicUsize = AtomicUsize::new(0);

/// Place among the importers that are served at once.
struct Served(());

impl Served {
    fn begin() -> Option<Self> {
        let add = |served| (served < MOST_SERVED).then_some(served + 1);
        SERVED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(Self(()))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        SERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    /// Sends exported memory to the process that waits at a meeting. A thread of its own does so, since the importer may
    /// be slow.
    pub(super) fn hand_over(&'static self, export: ExportName, meeting: Meeting) {
        let Some(served) = Served::begin() else { return };
        // Without a thread the importer waits in vain.
        let _ = spawn("gpushare-export", move || {
            let _served = served;
            let Ok(stream) = meeting::join(&meeting) else { return };
            let uuid = |device| self.driver.uuid(device).map(GpuUuid::bytes);
            let memory = self.memory.remap.hand_over(&export, uuid);
            let sent = transfer::send(&stream, memory.as_ref().map_err(|error| *error));
            if memory.is_ok() && sent.is_ok() {
                self.memory.remap.add_importer(&export, stream);
            }
        });
    }
}

//! Log lines that are written once, however often their reason recurs.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use tracing::warn;

/// Number of lines that are remembered. After that all are forgotten, and may be written again.
const KEPT: usize = 256;

/// Lines that were written.
#[derive(Debug, Default)]
pub(crate) struct Notes(Mutex<BTreeSet<String>>);

impl Notes {
    /// Writes a warning, unless it was written before.
    pub(crate) fn warn(&self, line: &str) {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.len() >= KEPT {
            written.clear();
        }
        if written.insert(line.to_owned()) {
            warn!("{line}");
        }
    }

    /// Forgets all lines: their reasons are gone.
    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

//! The flag that the process is ending. No thread may wait for the card from then on.

use std::sync::atomic::{AtomicBool, Ordering};

static EXITING: AtomicBool = AtomicBool::new(false);

/// Returns whether the process is ending.
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

pub(crate) fn begin() {
    EXITING.store(true, Ordering::Release);
}

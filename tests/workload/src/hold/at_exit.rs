//! `hold`: calls at the end of the program, as destructors of static objects make them.

use std::sync::{Arc, OnceLock};

use super::desk::Desk;

static DESK: OnceLock<Arc<Desk>> = OnceLock::new();

/// Sets the desk, which names the segments that are to end.
pub(super) fn keep(desk: &Arc<Desk>) {
    let _ = DESK.set(Arc::clone(desk));
}

/// Registers the calls, after the driver was opened and before there is a context. So they come before the
/// end of the driver, and after the handlers of libraries that act on contexts.
pub(super) fn register() {
    // SAFETY: a plain function of the program.
    unsafe { libc::atexit(run) };
}

extern "C" fn run() {
    let Some(desk) = DESK.get() else { return };
    for name in std::mem::take(&mut *desk.ending()) {
        match desk.end_segment(&name) {
            Ok(()) => eprintln!("segment {name} ended at exit"),
            Err(failure) => eprintln!("segment {name} did not end at exit: {}", failure.report()),
        }
    }
}

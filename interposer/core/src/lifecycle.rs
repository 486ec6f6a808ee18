//! What a guest owes its host at the two ends of a life: the child of a fork starts as if CUDA was never
//! touched, and a process that ends is not held up at a gate.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use crate::{process, waiting};

static EXITING: AtomicBool = AtomicBool::new(false);
static REGISTER: Once = Once::new();
/// Sockets of the link, for the child of a fork: plain integers, since its parent's locks may be held for ever.
static SOCKETS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];
/// The socket of a question that is being asked; there is one at a time.
static QUESTION: AtomicI32 = AtomicI32::new(-1);

/// Watches for fork and exit from now on. Called before the first connection, so that a process
/// that never touches CUDA has no handler.
pub fn watch() {
    REGISTER.call_once(|| {
        // SAFETY: both are plain functions that live as long as the library, which is never unloaded.
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

/// The sockets that the child of a fork must close; −1 for none.
pub fn guard_sockets(sockets: [i32; 2]) {
    for (guarded, socket) in SOCKETS.iter().zip(sockets) {
        guarded.store(socket, Ordering::Relaxed);
    }
}

/// The socket of a question, which the child of a fork must close while the guard lives.
#[must_use]
pub fn guard_question(socket: i32) -> Question {
    QUESTION.store(socket, Ordering::Relaxed);
    Question(())
}

/// While it lives a question's socket is guarded. To be dropped before the socket.
#[derive(Debug)]
pub struct Question(());

impl Drop for Question {
    fn drop(&mut self) {
        QUESTION.store(-1, Ordering::Relaxed);
    }
}

/// Whether the process is ending: nobody may wait any more.
#[must_use]
pub fn is_exiting() -> bool {
    EXITING.load(Ordering::Acquire)
}

/// Only what is safe between fork and exec: atomics and `close`.
extern "C" fn in_child() {
    process::forget();
    for socket in SOCKETS.iter().chain([&QUESTION]) {
        let socket = socket.swap(-1, Ordering::Relaxed);
        if socket >= 0 {
            // SAFETY: ours, inherited; the parent keeps its own.
            unsafe { libc::close(socket) };
        }
    }
}

extern "C" fn at_exit() {
    EXITING.store(true, Ordering::Release);
    waiting::release_all();
    // A panic must not cross into the C library; there is nothing left to do about one.
    let _ = std::panic::catch_unwind(process::summarise);
}

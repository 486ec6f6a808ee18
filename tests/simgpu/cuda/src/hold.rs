//! Calls of a process that is locked for a checkpoint: new ones wait, and the card counts those under way.
//!
//! A call announces itself and then looks whether it has to wait. The card does it in the other order, so one
//! of them sees the other.

use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use crate::driver::driver;
use crate::mapping::Board;

/// Calls that only ask the library. They never wait.
const LIBRARY_ONLY: [&str; 5] =
    ["cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress", "cuGetProcAddress_v2"];

/// How often a call that waits looks again.
const LOOK: Duration = Duration::from_micros(200);

/// Call under way.
#[derive(Debug)]
pub(crate) struct Inside(&'static Board);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside().fetch_sub(1, SeqCst);
    }
}

/// Waits until the process is not locked, and counts the call until the result is dropped.
pub(crate) fn enter(call: &str) -> Option<Inside> {
    if LIBRARY_ONLY.contains(&call) {
        return None;
    }
    loop {
        let board = &driver().ok()?.board;
        board.inside().fetch_add(1, SeqCst);
        let inside = Inside(board);
        if !board.is_held() {
            return Some(inside);
        }
        drop(inside);
        thread::sleep(LOOK);
    }
}

/// Waits until the process is not locked.
pub(crate) fn wait() {
    drop(enter("exit"));
}

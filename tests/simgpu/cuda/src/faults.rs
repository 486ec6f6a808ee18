//! Faults on order, and errors from which the process does not recover (`simgpu_card::fault` reads the
//! orders).
//!
//! A fault that concerns work, not the call, is noted for the thread while the call runs; what puts the
//! work into a stream (`work.rs`) takes it from there. What is left when the call is done delays the call.

use std::cell::Cell;
use std::sync::OnceLock;
use std::thread;

use simgpu_card::fault::{Effect, Faults};
use simgpu_card::kernel::Kernel;
use simgpu_card::wire::Op;

use crate::api::rows;
use crate::codes::{Answer, Code};

static FAULTS: OnceLock<Option<Faults>> = OnceLock::new();

thread_local! {
    static OF_THIS_CALL: Cell<Option<Effect>> = const { Cell::new(None) };
}

/// Reads the orders; a wrong one is told on stderr, since nothing after it would be what was meant.
pub(crate) fn check() -> Answer {
    let exports: Vec<&str> = rows().map(|row| row.export).collect();
    let checked = read().and_then(|faults| faults.map_or(Ok(()), |faults| faults.check(&exports)));
    match checked {
        Ok(()) => Ok(()),
        Err(sentence) => {
            eprintln!("simgpu: {sentence}");
            Err(Code::INVALID_VALUE)
        }
    }
}

/// The code that a call answers instead of doing anything.
pub(crate) fn answer(call: &str) -> Option<u32> {
    let faults = FAULTS.get_or_init(|| read().ok().flatten()).as_ref()?;
    let effect = faults.of(call);
    OF_THIS_CALL.set(effect);
    match effect {
        Some(Effect::Answer(code)) => Some(code),
        // SAFETY: sends a signal to the process itself.
        Some(Effect::Die) => unsafe {
            libc::kill(libc::getpid(), libc::SIGKILL);
            None
        },
        _ => None,
    }
}

/// The work that is put into the stream instead of this.
pub(crate) fn bend(op: Op) -> Vec<Op> {
    match OF_THIS_CALL.take() {
        Some(Effect::Hang) => vec![Op::Kernel(Kernel::Spin { flag: 0, nanoseconds: u64::MAX })],
        Some(Effect::Fail(error)) => vec![Op::Fail(error)],
        Some(Effect::Slow(time)) => vec![Op::Pause(time), op],
        Some(Effect::Answer(_) | Effect::Die) | None => vec![op],
    }
}

/// A call that put no work into a stream is late itself: it has done what it should, and its caller does
/// not know yet.
pub(crate) fn linger() {
    match OF_THIS_CALL.take() {
        Some(Effect::Slow(time)) => thread::sleep(time),
        Some(Effect::Hang) => loop {
            thread::park();
        },
        Some(Effect::Answer(_) | Effect::Die | Effect::Fail(_)) | None => {}
    }
}

fn read() -> Result<Option<Faults>, String> {
    let orders = std::env::var("SIMGPU_FAULTS").ok();
    orders.as_deref().map(Faults::parse).transpose()
}

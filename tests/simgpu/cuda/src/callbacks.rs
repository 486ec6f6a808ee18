//! Host functions: one thread calls them, in the order in which the card finds them due.
//!
//! The card sends the number of a function over a second connection and the stream waits until we say that
//! it has returned. The thread starts with the first such function and blocks all signals.

use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use simgpu_card::connection::Connection;
use simgpu_card::ids::HostCallId;
use simgpu_card::wire::Request;

use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::handles::Handle;

/// A function of the caller and what it is given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostFunction {
    /// `cuLaunchHostFunc`.
    Plain(extern "C" fn(*mut c_void), UserData),
    /// `cuStreamAddCallback`: also gets the stream and its status.
    WithStream(extern "C" fn(Handle, u32, *mut c_void), Handle, UserData),
}

/// The caller's pointer, never looked at.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserData(*mut c_void);

// SAFETY: only handed back to the caller's own function, on the thread that the driver calls it on, as documented.
unsafe impl Send for UserData {}

#[derive(Default)]
struct Table {
    functions: HashMap<HostCallId, (HostFunction, Calls)>,
    next: u64,
    running: bool,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// How often a function will be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    Once,
    /// By every launch of a graph.
    Many,
}

/// Keeps a function and answers its number.
pub(crate) fn register(function: HostFunction, calls: Calls) -> Answer<HostCallId> {
    let mut table = lock();
    let table = table.get_or_insert_default();
    if !std::mem::replace(&mut table.running, true) {
        let connection = driver()?.open_callbacks()?;
        start(connection)?;
    }
    table.next += 1;
    table.functions.insert(HostCallId(table.next), (function, calls));
    Ok(HostCallId(table.next))
}

fn start(connection: Connection) -> Answer {
    let blocked = BlockedSignals::new();
    let thread = std::thread::Builder::new().name("simcuda-host".to_owned());
    let started = thread.spawn(move || serve(&connection));
    drop(blocked);
    started.map(|_| ()).map_err(|_| Code::OUT_OF_MEMORY)
}

fn serve(connection: &Connection) {
    while let Ok((id, call)) = connection.next_call() {
        match take(id) {
            Some(HostFunction::Plain(function, data)) => function(data.0),
            Some(HostFunction::WithStream(function, stream, data)) => function(stream, 0, data.0),
            None => {}
        }
        if connection.tell(Request::HostDone(call), &[]).is_err() {
            return;
        }
    }
}

fn take(id: HostCallId) -> Option<HostFunction> {
    let mut table = lock();
    let functions = &mut table.as_mut()?.functions;
    let (function, calls) = functions.get(&id).copied()?;
    if calls == Calls::Once {
        functions.remove(&id);
    }
    Some(function)
}

fn lock() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Blocks all signals of this thread while it lives; a thread that starts meanwhile inherits that.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        let mut all = std::mem::MaybeUninit::uninit();
        let mut before = std::mem::MaybeUninit::zeroed();
        // SAFETY: `sigfillset` fills the first set; the second is filled by `pthread_sigmask`, and zero is valid.
        unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Self(before.assume_init())
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: restores the mask that `new` read.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, std::ptr::null_mut()) };
    }
}

//! What runs inside a sharing process. The exported entry points are in `interposer/`; everything that
//! they decide is here, where it can be tested.
//!
//! In reading order: the gate that a launch passes; the way into the real driver; the books of
//! what the process has; the connection to the daemon; the threads that act on its word; and the doors, one
//! module per family of hooked calls. Under `--cfg loom` only the gate is built: the rest talks to the kernel.

pub mod sync;

pub mod gate;

macro_rules! chapters {
    ($($(#[$doc:meta])* $visibility:vis mod $name:ident;)*) => { $( #[cfg(not(loom))] $(#[$doc])* $visibility mod $name; )* };
}

chapters! {
    pub mod cuda;
    pub mod dynlink;
    pub mod rows;
    pub mod unknown;
    pub mod driver;

    pub mod books;
    pub mod handles;
    pub mod capture;
    pub mod collectives;
    pub mod marked;
    pub mod contexts;
    pub mod leases;
    pub mod pools;

    pub mod window;

    pub mod notice;
    pub mod guest;
    pub mod demands;
    pub mod connection;
    pub mod account;
    pub mod link;
    pub mod process;
    pub mod ledger;
    pub mod room;
    pub mod lifecycle;

    pub mod waiting;
    pub mod grace;
    pub mod mover;

    pub mod doors;
    pub mod nvml;
}

/// Locks a mutex, also one that a panicking thread left: what our mutexes guard is valid between any two
/// statements that change it, and a guest must not die of another thread's panic.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

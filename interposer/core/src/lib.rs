//! What runs inside a sharing process. The exported entry points are in `interposer/`; everything that
//! they decide is here, where it can be tested.
//!
//! In reading order: the gate that a launch passes; the way into the real driver; the books of
//! what the process has; the connection to the daemon; the threads that act on its word; and the hooks, one
//! module per family of hooked calls. Under `--cfg loom` only the gate is built: the rest talks to the kernel.

pub mod sync;
pub mod gate;

#[cfg(not(loom))]
pub mod driver;

#[cfg(not(loom))]
pub mod books;
#[cfg(not(loom))]
pub mod capture;
#[cfg(not(loom))]
pub mod collectives;
#[cfg(not(loom))]
pub mod handles;
#[cfg(not(loom))]
pub mod leases;
#[cfg(not(loom))]
pub mod marked;
#[cfg(not(loom))]
pub mod pools;

#[cfg(not(loom))]
pub mod window;

#[cfg(not(loom))]
pub mod account;
#[cfg(not(loom))]
pub mod connection;
#[cfg(not(loom))]
pub mod demands;
#[cfg(not(loom))]
pub mod guest;
#[cfg(not(loom))]
pub mod ledger;
#[cfg(not(loom))]
pub mod lifecycle;
#[cfg(not(loom))]
pub mod link;
#[cfg(not(loom))]
pub mod notice;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod room;

#[cfg(not(loom))]
pub mod grace;
#[cfg(not(loom))]
pub mod mover;
#[cfg(not(loom))]
pub mod waiting;

#[cfg(not(loom))]
pub mod hooks;
#[cfg(not(loom))]
pub mod nvml;

/// Locks a mutex, also one that a panicking thread left: what our mutexes guard is valid between any two
/// statements that change it, and a guest must not die of another thread's panic.
#[cfg(not(loom))]
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

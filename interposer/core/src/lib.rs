//! Library inside a sharing process. The exported functions are in `interposer/`; all their decisions are
//! made here, where tests can reach them.
//!
//! Modules in reading order: the guest in the host's process, the real driver, the daemon, memory that goes from one
//! process to another, memory, memory that moves at fixed addresses, the gate, the launch window, the state that
//! joins these parts, and the hooks for each family of driver calls.
//!
//! Under `--cfg loom` only the counters of the gate are built, for `tests/loom_gate.rs`.

#[cfg(loom)]
#[path = "gate/entry.rs"]
pub mod gate;
#[cfg(not(loom))]
pub mod process;
#[cfg(not(loom))]
pub mod driver;
#[cfg(not(loom))]
pub mod daemon;
#[cfg(not(loom))]
pub mod sharing;
#[cfg(not(loom))]
pub mod memory;
#[cfg(not(loom))]
pub mod remap;
#[cfg(not(loom))]
pub mod gate;
#[cfg(not(loom))]
pub mod freeze;
#[cfg(not(loom))]
pub mod window;
#[cfg(not(loom))]
mod state;
#[cfg(not(loom))]
pub mod hooks;
#[cfg(not(loom))]
pub mod nvml;

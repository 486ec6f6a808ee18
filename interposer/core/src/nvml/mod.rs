//! NVML (NVIDIA Management Library) as a session sees it: the same card that CUDA reports, with only the
//! session's own processes on it.
//!
//! | question | answer inside a session |
//! |---|---|
//! | memory of a card or of a MIG instance | the quota as total, the session's allocations as used |
//! | compute processes | the session's own, with their charged bytes |
//! | graphics processes, MPS clients, process samples, accounting | those that belong to the session |
//! | utilization of the card | the session's part of it; all of it if alone |
//! | compute processes by pid, as `nvidia-smi` asks the kernel | the session's own (`control.rs`) |
//! | everything else (BAR1, clocks, power, temperature, names) | the card's own |
//!
//! Pids are those of the caller's PID namespace if it shares one with the process. Otherwise they are those
//! that the kernel told the daemon.
//!
//! The real function is always called first, and its errors are returned. Outside a session nothing changes.
//! A program may use NVML without CUDA and before `cuInit`, so nothing here creates a context, a client or a
//! thread.
//!
//! # Safety
//! An unsafe function named after one of NVML takes pointers as NVML demands them of its caller.
#![expect(clippy::missing_safety_doc, reason = "the demand of all hooks is stated once, above")]

pub mod types;
pub mod rows;
mod library;
mod session;
pub mod memory;
pub mod processes;
pub mod samples;
pub mod utilization;
pub mod control;

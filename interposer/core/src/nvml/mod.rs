//! NVML, NVIDIA's management library, as a session sees it: the same card that CUDA tells it about, and nobody but itself
//! on it.
//!
//! | question | answer inside a session |
//! |---|---|
//! | memory of a card or of a MIG instance | the quota as total, what the session has as used |
//! | processes that compute | the session's own, with what each has in the books |
//! | processes that draw, MPS clients, process samples, accounting | those of them that are the session's own |
//! | utilization of the card | the sum of the session's own processes, where NVML knows it by process |
//! | the same processes by pid, as `nvidia-smi` asks the kernel past NVML's functions | the session's own (`control.rs`) |
//! | everything else (BAR1, clocks, power, temperature, names) | the card's own: there is one of it |
//!
//! Pids are as the caller sees them where it shares a PID namespace with the process, as in a container of its own; of
//! processes elsewhere they are as the kernel told the daemon.
//!
//! The real function is always asked first, and what it refuses stays refused. Outside a session nothing changes.
//! NVML is used without CUDA and before `cuInit`: nothing here makes a context, a client or a thread.

pub mod types;
pub mod rows;
mod library;
mod session;
pub mod memory;
pub mod processes;
pub mod samples;
pub mod control;

//! The real CUDA driver: its types, the functions that gpushare calls itself, the live contexts, and the hook
//! table, which joins each hooked symbol with the driver's own function.

pub mod types;

pub mod dynlink;
mod functions;
pub mod contexts;
pub mod hook_table;
mod questions;
pub(crate) mod rdma;
pub mod unknown;
#[cfg(test)]
pub(crate) mod fake;

pub use functions::{Driver, ImportCalls, MemoryCalls};
pub(crate) use functions::{answer, try_answer};

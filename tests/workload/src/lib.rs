//! The CUDA programs of demo, tests and benches: written against the driver API like any other program,
//! with kernels as PTX text (no nvcc) and without a word about gpushare, but for one in `sharing`.
//!
//! In reading order: how functions are found and called, a device and what it is, a context with the
//! kernels loaded, memory, streams, what gpushare can be told; then the programs: `probe`, `train` and the
//! line-driven `hold`.

pub mod error;
pub mod resolve;
pub mod driver;
pub mod contexts;
pub mod device;
pub mod kernels;
pub mod gpu;
pub mod memory;
pub mod segments;
pub mod streams;
pub mod sharing;
pub mod pattern;
pub mod clock;
pub mod report;
pub mod train;
pub mod hold;

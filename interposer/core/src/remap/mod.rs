//! Memory backend `remap`: device memory at fixed addresses whose physical memory comes and goes.
//!
//! ```text
//!   cuMemAlloc ──▶ blocks ──▶ arena (small requests) ──▶ space ──▶ chunk, chunk, …   one handle each
//!   cuMemFree ──▶ blocks                                              │
//!                                                                     ▼
//!   goal of the daemon ──▶ swap ──▶ calls ──▶ vmm ──▶ driver     create, map, copy, unmap, release
//!                           │ ▲
//!                 pins ─────┘ └── host                          slots of registered memory
//! ```
//!
//! Everything but the lanes is pure: no module calls the driver, takes a lock or reads a clock. Lanes and hooks
//! make the calls that are handed out and report their answers (`docs/design/remap.md`).

pub mod vmm;
pub mod space;
pub mod arena;
pub mod host;
pub mod chunk;
pub mod pins;
pub mod swap;
pub mod blocks;
pub mod lanes;
#[cfg(test)]
mod fake;

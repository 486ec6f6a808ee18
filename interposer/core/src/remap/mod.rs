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
//! Everything up to `blocks` is pure: no module calls the driver, takes a lock or reads a clock. Lanes and
//! hooks make the calls that are handed out and report their answers. `card` is the real driver, `guard`
//! marks the gate, and `cards` is what hooks and drainer use (`docs/design/remap.md`).

pub mod vmm;
pub mod space;
pub mod arena;
pub mod host;
pub mod chunk;
pub mod pins;
pub mod swap;
pub mod blocks;
pub mod lanes;
pub mod names;
mod fingerprint;
mod guard;
mod regions;
mod sharing;
mod card;
mod cards;
#[cfg(test)]
mod fake;

pub(crate) use cards::{NotAllocated, Remap, Want};
pub(crate) use guard::{Gate, Proof};

//! Fuzz targets: each takes any bytes, and panics if a promise is broken.
//!
//! ```text
//!   cargo xtask fuzz ──▶ seeded mutations of golden bytes ─┐
//!   cargo fuzz (nightly) ──▶ libFuzzer, by coverage ───────┼──▶ codec:  decode, encode, split
//!                                                          └──▶ core:   bytes ─▶ events with times ─▶ invariants
//! ```
#![forbid(unsafe_code)]

pub mod codec;

pub mod events;

pub mod mutate;

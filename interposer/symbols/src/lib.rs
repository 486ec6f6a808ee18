//! Symbol table of the CUDA driver from 12.0 to the newest release ([`NEWEST`]), with gpushare's treatment of
//! each symbol.
//!
//! A symbol is a *variant*: one export, found by its own name, or through `cuGetProcAddress` by a base name,
//! a version and flags. Every function that an application can call needs a row, because a call without one
//! might allocate uncharged memory or start work outside the gate. A new CUDA release adds its variants to
//! the files of `table/`: one line per base name, in the group with the right reason.
//!
//! The hooks are the lines of `interposer/src/`. A test compares them with this table.
#![forbid(unsafe_code)]

mod disposition;
mod variant;
mod table;
mod index;

pub use disposition::{Disposition, Family};
pub use index::{COUNT, by_base, by_export, disposition, place_of, places_of, variants};
pub use variant::{Variant, Version, is_driver_name, is_per_thread};

/// Newest CUDA release whose variants are all in the table.
pub const NEWEST: Version = Version(13_050);

//! Every symbol of the CUDA driver, from 12.0 to the newest release that [`NEWEST`] names, and what gpushare does
//! about it.
//!
//! A symbol is a *variant*: one export, reached by its own name, or by a base name, a version and flags through
//! `cuGetProcAddress`. Nothing that an application can call may be without a row here: what is neither hooked
//! nor known to be harmless could allocate outside the books or work outside the gate. Who adds a CUDA release
//! adds its variants to the files of `table/`, one line per base name, in the group that says why.
//!
//! The hooks themselves are the lines of `interposer/src/`; a test holds those against these.
#![forbid(unsafe_code)]

mod disposition;
mod variant;
mod table;
mod index;
mod exports;

pub use disposition::{Disposition, Family};
pub use exports::{NoLibrary, driver_exports, is_driver_name};
pub use index::{COUNT, by_base, by_export, disposition, place_of, places_of, variants};
pub use variant::{Variant, Version, is_per_thread};

/// The newest CUDA release whose variants are all in the table.
pub const NEWEST: Version = Version(13_050);

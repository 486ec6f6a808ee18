//! Hooks: gpushare's functions around each family of driver calls. A hook gets the application's arguments,
//! and as last argument `real`, which calls the driver with them.
//!
//! # Safety
//! An unsafe hook takes pointers as the driver demands them: null, or readable and writable for their types.
//! Hooks with other demands state them.
#![expect(clippy::missing_safety_doc, reason = "the demand of all hooks is stated once, above")]

pub mod addresses;
pub mod allocation;
pub mod array;
pub mod capture;
pub mod context;
pub mod figures;
pub mod graph_memory;
pub mod graphics;
mod handles;
pub mod identity;
pub mod interrupt;
pub mod ipc;
pub mod location;
pub mod lookup;
pub mod mapping;
pub mod sparse;
pub mod marks;
pub mod module;
pub mod peers;
pub mod pool;
pub mod stream;
pub mod waits;
pub mod work;

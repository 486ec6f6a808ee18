//! Hooks: what gpushare does around each family of driver calls. A hook gets the application's arguments, and
//! last the driver's function with these arguments as `real`.
//!
//! # Safety
//! An unsafe hook takes pointers as the driver's function demands them of its caller: null, or readable and
//! writable for their types. Hooks that demand anything else say so.
#![expect(clippy::missing_safety_doc, reason = "the demand of all hooks is stated once, above")]

pub mod allocation;
pub mod array;
pub mod capture;
pub mod context;
pub mod figures;
pub mod graph_memory;
pub mod identity;
pub mod ipc;
pub mod location;
pub mod lookup;
pub mod mapping;
pub mod marks;
pub mod module;
pub mod pool;
pub mod work;

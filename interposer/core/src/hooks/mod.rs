//! The hooks: what each family of hooked calls does around the real one. Every function here gets the
//! driver's own function first, then the application's arguments as they came.

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

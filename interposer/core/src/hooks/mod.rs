//! Hooks: what gpushare does around each family of driver calls. A hook gets the application's arguments, and
//! last the driver's function with these arguments as `real`.

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

//! Types that all parts of gpushare share: quantities, ids, messages and file names.
//!
//! In reading order: units and ids; a session's part in a card's utilization; the memory page that a process
//! shares with the daemon; device memory and host copies that processes share; sessions, settings, frost,
//! views, handoffs and increments of them; messages of both sockets; lines of the audit log; codec of
//! messages; names of files and environment variables; lookup of a session; printable characters; memory
//! backends.
#![forbid(unsafe_code)]

pub mod units;
pub mod ids;
mod utilization;
pub mod page;
pub mod sharing;
pub mod copies;
mod gpu_choice;
pub mod session;
pub mod ranges;
mod settings;
mod frost;
mod views;
pub mod explain;
pub mod dry_run;
pub mod handoff;
pub mod follow;
pub mod tenant;
pub mod admin;
pub mod audit;
pub mod codec;
pub mod names;
pub mod lookup;
pub mod text;
pub mod backend;

pub use backend::{Abilities, Backend};
pub use ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
pub use page::{GateState, GateWord};
pub use units::{Bytes, Nanos, Percent};
pub use utilization::UtilizationPart;

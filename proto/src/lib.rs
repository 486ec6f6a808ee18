//! What the parts of gpushare say to each other.
//!
//! In reading order: the units and ids that every crate uses, the page a client shares with the
//! daemon, the messages on the two sockets, the lines of the audit log, the codec that carries messages, the names of files and
//! environment variables that people meet, how they call a session, and which of somebody else's characters they see.
#![forbid(unsafe_code)]

pub mod units;

pub mod ids;

pub mod page;

pub mod tenant;

pub mod session;

pub mod admin;

pub mod explain;

pub mod dry_run;

pub mod audit;

pub mod codec;

pub mod names;

pub mod lookup;

pub mod text;

pub mod backend;

pub use backend::Backend;
pub use ids::{ClientId, Epoch, GpuId, GpuUuid, RequestId, SessionId, Token};
pub use page::{GateState, GateWord};
pub use units::{Bytes, Nanos, Percent};

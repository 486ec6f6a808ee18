//! Messages of the tenant socket, between a process that uses a card and the daemon. Any user may connect, so
//! these messages can affect only the peer's own session.
//!
//! ```text
//!   process                                 daemon
//!   Hello ─────────────────────────────────▶        identity: the kernel's credentials, then the token
//!         ◀───────────────────── Welcome + page     a sealed memory file, by SCM_RIGHTS
//!   Attach{uuid} ──────────────────────────▶        before the first context on a card
//!         ◀──────────────────────────── Attached
//!   Reserve | ReservePiece{bytes} ─────────▶        only when the lease is short
//!         ◀───────────────── Reserved | Refused
//!   Headroom{bytes} ───────────────────────▶        after the driver found no memory
//!         ◀──────────────────────────── Headroom
//!   Wait ──────────────────────────────────▶        a thread sleeps at the closed gate
//!         ◀──────────────────────────────── Gate    every change of the gate, also written to the page
//!   Entered / Released ────────────────────▶        memory is on the card / drained, lock given back
//!   NearlyDrained ─────────────────────────▶        work in flight ends within two milliseconds
//!   Resides / MoveFailed ──────────────────▶        remapped memory has moved, as the goal in the page says / could not
//!   CardFull ──────────────────────────────▶        it could not, since the card has less memory than the goal allows
//!   Import{export, meeting} ───────────────▶        before memory of another process is opened
//!         ◀────── ImportAnswered | ImportWanted     to the importer / to the exporter
//! ```
//!
//! Freezing of a process, which is off without [`FEATURE_FREEZE`](crate::page::FEATURE_FREEZE):
//!
//! ```text
//!   Freezable{obstacle} ───────────────────▶        what stands in the way; first on every connection
//!         ◀─────────────────────────── flag         in the page: no call of the driver may begin
//!   Parked{number} ────────────────────────▶        none is under way either
//!   Called ────────────────────────────────▶        a thread waits with a call
//!   Held ──────────────────────────────────▶        the last daemon had set the flag and did not take it back
//! ```
//!
//! Host copies of equal bytes, on a second connection of a process, which is a tool's
//! ([`FEATURE_COPIES`](crate::page::FEATURE_COPIES), [`crate::copies`]):
//!
//! ```text
//!   Copy{name, bytes, chunks} ─────────────▶        chunks of the process have such bytes
//!         ◀────────────── CopyAnswered + file       the file comes with `Fill` and `Made`
//!   EndCopy{name, bytes} ──────────────────▶        it has no such bytes or uses the copy no more
//! ```
//!
//! Enums are append-only: a new message is added at the end, and no variant's fields change.

mod hello;
mod request;
mod reply;

use crate::units::Nanos;

pub use hello::{GpuInfo, Hello, Returning, ReturningGpu, Role};
pub use reply::{
    CardMemory, CardPart, Failure, FailureCode, OwnWait, ProcessMemory, SessionMemory, TenantReply, Welcome,
};
pub use request::{FreezeObstacle, Residence, TenantRequest};

pub use crate::gpu_choice::{GpuChoice, UnknownCard};
pub use crate::session::NewSession;

/// Constant bytes at the start of a connection's first message, in front of the protocol version.
pub const MAGIC: [u8; 4] = *b"GPSH";
/// Version of the protocol between processes, tools and the daemon in this build.
pub const PROTOCOL: u16 = 1;

/// Time before the expected end of its work in flight at which a process whose gate was closed reports
/// [`TenantRequest::NearlyDrained`].
pub const NEARLY_DRAINED: Nanos = Nanos::from_millis(2);

/// Maximum number of unknown driver functions that a process reports.
pub const MAX_UNKNOWN: usize = 16;
/// Maximum length of the name of a reported unknown driver function, in bytes.
pub const MAX_UNKNOWN_NAME: usize = 64;

//! Memory that goes from one process to another: its handle, the meeting of the two processes, and the transfer of
//! the driver's descriptors. Nothing here calls the driver or the daemon.
//!
//! ```text
//!   exporter   handle ── by whatever way the programs have ──▶ handle   importer
//!              join   ◀──── meeting, through the daemon ────── wait
//!              send   ── descriptors of all pieces ──────────▶ receive
//!                     ──── open until either is gone ─────────
//! ```

pub mod handle;
pub mod meeting;
pub mod transfer;

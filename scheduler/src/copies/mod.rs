//! Host copies of equal bytes that processes of one user share.
//!
//! ```text
//!   Copy{name, bytes, chunks} ─▶ table ── two chunks? no file? ──▶ files: a new memory file ──▶ Fill
//!                                  │   ── a file, not sealed ────▶ files: look at its seals ──▶ Busy or Made
//!   end of a connection ──────────▶│   ── the last one has left ─▶ a thread closes the file
//! ```
//!
//! The table decides, and knows no file. It belongs to the daemon's task, like the rest of the engine. No
//! user's answer depends on what another user has, up to the number of files that the daemon can have open.
//! `docs/design/shared-copies.md` says what processes can do to each other with it.

mod files;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use files::MemoryFiles;
pub(crate) use table::{Asked, Bounds, Key, Table};

/// Table of the copies of this daemon.
pub(crate) type Copies = Table<MemoryFiles>;

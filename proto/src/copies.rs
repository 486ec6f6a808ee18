//! Host copies of equal bytes, which processes of one user share. Each copy is a memory file that nobody can
//! change any more. The daemon makes the empty file and passes it on; it never reads the bytes.
//!
//! ```text
//!   process A                        daemon                          process B
//!   Copy{name, bytes} ─────────────▶
//!          ◀──────────────── Alone        nobody else has such bytes
//!                                         ◀───────────── Copy{name, bytes}
//!                                         Fill + file ──────────────────▶   writes the bytes, and seals the file
//!   Copy{name, bytes} ─────────────▶
//!          ◀───────── Made + file         the daemon has looked at the seals
//!   compares the file with its own bytes
//! ```
//!
//! Equal names do not prove equal bytes. So a process uses a copy only after it has compared every byte.

use serde::{Deserialize, Serialize};

use crate::units::Bytes;

/// Unit of the size of a copy: every size is a multiple of it.
pub const COPY_UNIT: Bytes = Bytes::mib(2);
/// Largest size of a copy.
pub const MAX_COPY: Bytes = Bytes::mib(128);

/// Name of the bytes of a chunk: 128 bits of a hash of them, which the processes choose. To the daemon a name
/// has no meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CopyName(pub [u8; 16]);

/// Returns whether a copy may have this size: a multiple of [`COPY_UNIT`] from one unit up to [`MAX_COPY`].
pub const fn is_size_of_copy(bytes: Bytes) -> bool {
    bytes.0 > 0 && bytes.0 <= MAX_COPY.0 && bytes.0.is_multiple_of(COPY_UNIT.0)
}

/// Answer of the daemon to a process that would share bytes. What other users have never changes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CopyAnswer {
    /// No other chunk of the user has such bytes. The daemon remembers that the process has, and the process
    /// asks again later.
    Alone,
    /// The file that comes with this message is empty. The process writes its bytes into it and seals it by
    /// `F_SEAL_WRITE`, `F_SEAL_SHRINK`, `F_SEAL_GROW` and `F_SEAL_SEAL`. If it cannot, it sends
    /// [`EndCopy`](crate::tenant::TenantRequest::EndCopy).
    Fill,
    /// The file that comes with this message is sealed and has the size that was asked for. The process
    /// compares it with its own bytes.
    Made,
    /// Another process fills the file, or this one has not read its earlier messages. The process asks again
    /// later.
    Busy,
    /// The process or its user has as many copies as it may have, the size is none of a copy, or the daemon
    /// has no more files. The daemon remembers nothing.
    Refused,
}

/// Host copies that a daemon keeps for the processes of all users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesView {
    /// Number of copies whose file is sealed or is being filled.
    pub copies: u64,
    /// Size of these copies together. Each counts once, however many processes use it.
    pub bytes: Bytes,
    /// Number of users whose processes have these copies.
    pub users: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_whole_units_and_not_too_large() {
        assert!([COPY_UNIT, Bytes::mib(32), MAX_COPY].into_iter().all(is_size_of_copy));
        let others = [Bytes::ZERO, Bytes::mib(1), Bytes::mib(3), MAX_COPY + COPY_UNIT, Bytes::MAX];
        assert!(!others.into_iter().any(is_size_of_copy));
    }
}

//! Device memory that a process shares with others of its user. The daemon only introduces the two processes:
//! no memory, no descriptor and no address of memory passes through it.
//!
//! ```text
//!   importer                         daemon                          exporter
//!   listens at a name of its own
//!   Import{export, meeting} ───────▶ the same user?
//!           ◀── ImportAnswered ──────┴──── ImportWanted{export, meeting} ──▶
//!           ◀───────────────── connects to the name, and sends the memory ──┘
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::ClientId;

/// Secret of 128 random bits, which the `Debug` output hides.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub [u8; 16]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Name of memory that a process has exported. Whoever knows the secret may ask for the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportName {
    /// Client id of the process that exported the memory.
    pub exporter: ClientId,
    /// Number of the export in that process.
    pub number: u64,
    /// Secret of the export.
    pub secret: Secret,
}

/// Socket at which an importer waits for an exporter. Any process of the machine may connect to it, so each of the
/// two proves that it heard of the meeting from the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meeting {
    /// Random name of the socket, in the abstract namespace.
    pub socket: [u8; 16],
    /// Proof of the exporter, which it sends first.
    pub exporter: Secret,
    /// Proof of the importer, which it sends to nobody else.
    pub importer: Secret,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_hides_from_logs() {
        let name = ExportName { exporter: ClientId(1), number: 2, secret: Secret([0xa5; 16]) };
        let text = format!("{name:?}");
        assert!(text.contains("Secret(..)") && !text.contains("165"), "{text}");
    }
}

//! Handle that a program gets for remapped memory (`CUipcMemHandle`). It is gpushare's own: no driver sees it.
//!
//! ```text
//!   byte 0   magic number
//!        8   version, and four bytes of zero
//!        16  client id of the exporter
//!        24  number of the export
//!        32  secret of the export
//!        48  offset of the program's block in the exported memory
//!        56  size of the block
//! ```

use gpushare_proto::sharing::{ExportName, Secret};
use gpushare_proto::{Bytes, ClientId};

/// Number of bytes of a handle.
pub const SIZE: usize = 64;

const MAGIC: [u8; 8] = *b"gpushare";
const VERSION: u64 = 1;

/// Handle of the driver API, which is passed by value (`CUipcMemHandle`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RawHandle(pub [u8; SIZE]);

/// Block that a program has exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle {
    /// Name of the memory that the block is part of.
    pub export: ExportName,
    /// Distance of the block from the beginning of that memory.
    pub offset: Bytes,
    /// Number of bytes that the program asked for.
    pub size: Bytes,
}

impl Handle {
    /// Returns the bytes of the handle.
    pub fn to_raw(self) -> RawHandle {
        let Self { export: ExportName { exporter, number, secret }, offset, size } = self;
        let mut bytes = [0; SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[32..48].copy_from_slice(&secret.0);
        for (at, word) in [(8, VERSION), (16, exporter.0), (24, number), (48, offset.0), (56, size.0)] {
            bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        RawHandle(bytes)
    }

    /// Reads a handle; `None` for one that is not gpushare's, or that another version has made.
    pub fn from_raw(RawHandle(bytes): &RawHandle) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        if bytes[..8] != MAGIC || word(8)? != VERSION {
            return None;
        }
        let secret = Secret(bytes[32..48].try_into().ok()?);
        let export = ExportName { exporter: ClientId(word(16)?), number: word(24)?, secret };
        Some(Self { export, offset: Bytes(word(48)?), size: Bytes(word(56)?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HANDLE: Handle = Handle {
        export: ExportName { exporter: ClientId(3), number: u64::MAX, secret: Secret([0xa5; 16]) },
        offset: Bytes::mib(1),
        size: Bytes(4097),
    };

    #[test]
    fn a_handle_survives_its_bytes() {
        assert_eq!(Handle::from_raw(&HANDLE.to_raw()), Some(HANDLE));
    }

    #[test]
    fn other_bytes_are_no_handle() {
        assert_eq!(Handle::from_raw(&RawHandle([0; SIZE])), None);
        for at in [0, 7, 8, 15] {
            let mut raw = HANDLE.to_raw();
            raw.0[at] ^= 1;
            assert_eq!(Handle::from_raw(&raw), None, "byte {at}");
        }
    }
}

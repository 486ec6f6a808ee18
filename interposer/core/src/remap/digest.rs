//! Digest of a chunk on the card, by which `--paranoid` finds work that was in flight while memory left.
//!
//! ```text
//!   chunk ── piece by piece ──▶ registered memory ──▶ hash (XXH3, 128 bits)
//! ```
//!
//! The bytes come over the bus, so a chunk that leaves is read three times: for the digest before its copy, for the
//! copy, and for the digest after it. A kernel would compute the digest on the card, at 40 times that rate. But it
//! would be gpushare's own code in the context of the program.

use gpushare_proto::Bytes;
use xxhash_rust::xxh3::Xxh3;

use super::vmm::{Span, VmmError};

/// Size of a piece.
pub(super) const PIECE: Bytes = Bytes::mib(8);

/// Returns a digest of the bytes of a mapped range. `read` copies a piece from the card and returns its bytes.
///
/// # Errors
/// The error of `read`.
pub(super) fn of<'a>(
    span: Span,
    mut read: impl FnMut(Span) -> Result<&'a [u8], VmmError>,
) -> Result<u128, VmmError> {
    let mut hash = Xxh3::new();
    for address in (span.address..span.end()).step_by(PIECE.0 as usize) {
        let size = PIECE.min(Bytes(span.end() - address));
        hash.update(read(Span { address, size })?);
    }
    Ok(hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Span = Span { address: 1 << 40, size: Bytes::mib(20) };

    fn digest(memory: &[u8]) -> u128 {
        let read = |piece: Span| {
            let start = (piece.address - SPAN.address) as usize;
            Ok(&memory[start..start + piece.size.0 as usize])
        };
        of(SPAN, read).unwrap()
    }

    #[test]
    fn a_digest_depends_on_every_byte_and_its_place() {
        let mut memory = vec![7; SPAN.size.0 as usize];
        let before = digest(&memory);
        assert_eq!(digest(&memory), before);
        for place in [0, PIECE.0 as usize, memory.len() - 1] {
            memory[place] = 8;
            assert_ne!(digest(&memory), before, "byte {place}");
            memory[place] = 7;
        }
        memory[5] = 1;
        let here = digest(&memory);
        memory.swap(5, 6);
        assert_ne!(digest(&memory), here);
    }

    #[test]
    fn a_piece_that_cannot_be_read_is_the_error() {
        let lost = Err(VmmError::ContextLost(700));
        assert_eq!(of(SPAN, |_| lost), Err(VmmError::ContextLost(700)));
    }
}

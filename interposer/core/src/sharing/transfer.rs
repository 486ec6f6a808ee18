//! Transfer of exported memory over the socket of a [meeting](super::meeting): a header, and then each piece with the
//! driver's descriptor of its handle.
//!
//! ```text
//!   header   result, number of pieces, UUID of the card
//!   piece    size, whether it is memory of the card, + descriptor
//!   ...
//! ```

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use gpushare_proto::Bytes;
use gpushare_sys::socket;

use crate::driver::types::{CUDA_SUCCESS, CUresult};

/// Most pieces that an importer takes: 16 TiB in the largest chunks.
const MOST_PIECES: u32 = 1 << 17;
const HEADER: usize = 24;
const PIECE: usize = 16;

/// Physical memory behind a part of an export.
#[derive(Debug)]
pub struct Piece {
    /// Number of bytes.
    pub size: Bytes,
    /// Whether the bytes are on the card, or in memory of the host that kernels reach over the bus.
    pub is_on_card: bool,
    /// Driver's descriptor of the memory.
    pub descriptor: OwnedFd,
}

/// Memory of an export, as the exporter sends it.
#[derive(Debug)]
pub struct Memory {
    /// UUID of the card.
    pub card: [u8; 16],
    /// Pieces, in the order of their addresses.
    pub pieces: Vec<Piece>,
}

impl Memory {
    /// Returns the number of bytes of all pieces.
    pub fn size(&self) -> Bytes {
        self.pieces.iter().map(|piece| piece.size).sum()
    }

    /// Returns the number of bytes on the card.
    pub fn on_card(&self) -> Bytes {
        self.pieces
            .iter()
            .filter(|piece| piece.is_on_card)
            .map(|piece| piece.size)
            .sum()
    }
}

/// Reason why memory was not received.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The exporter refused, with this result of the driver.
    #[error("the exporter refused with error {0}")]
    Refused(CUresult),
    /// The exporter ended, or is too slow.
    #[error("the exporter did not send the memory: {0}")]
    Socket(#[from] io::Error),
    /// The exporter sent something else.
    #[error("the exporter sent something else than memory")]
    Nonsense,
}

/// Sends memory, or the reason why not.
///
/// # Errors
/// Error of the socket.
pub fn send(stream: &UnixStream, memory: Result<&Memory, CUresult>) -> io::Result<()> {
    let mut header = [0; HEADER];
    let pieces = memory.map_or(&[][..], |memory| &memory.pieces);
    let count = u32::try_from(pieces.len()).map_err(io::Error::other)?;
    header[..4].copy_from_slice(&memory.err().unwrap_or(CUDA_SUCCESS).to_le_bytes());
    header[4..8].copy_from_slice(&count.to_le_bytes());
    header[8..].copy_from_slice(&memory.map_or([0; 16], |memory| memory.card));
    socket::send_all_with_fd(stream, &header, None)?;
    for piece in pieces {
        let mut bytes = [0; PIECE];
        bytes[..8].copy_from_slice(&piece.size.0.to_le_bytes());
        bytes[8] = piece.is_on_card.into();
        socket::send_all_with_fd(stream, &bytes, Some(piece.descriptor.as_fd()))?;
    }
    Ok(())
}

/// Receives memory.
///
/// # Errors
/// The reason why there is none.
pub fn receive(stream: &UnixStream) -> Result<Memory, TransferError> {
    let mut header = [0; HEADER];
    socket::recv_all_with_fd(stream, &mut header)?;
    let [result, count] = [0, 4].map(|at| [0, 1, 2, 3].map(|byte| header[at + byte]));
    match CUresult::from_le_bytes(result) {
        CUDA_SUCCESS => {}
        refused => return Err(TransferError::Refused(refused)),
    }
    let count = u32::from_le_bytes(count);
    if count == 0 || count > MOST_PIECES {
        return Err(TransferError::Nonsense);
    }
    let mut card = [0; 16];
    card.copy_from_slice(&header[8..]);
    let mut pieces = Vec::new();
    let mut size = 0_u64;
    for _ in 0..count {
        let mut bytes = [0; PIECE];
        let descriptor = socket::recv_all_with_fd(stream, &mut bytes)?.ok_or(TransferError::Nonsense)?;
        let length = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|byte| bytes[byte]));
        size = size.checked_add(length).filter(|_| length > 0).ok_or(TransferError::Nonsense)?;
        pieces.push(Piece { size: Bytes(length), is_on_card: bytes[8] == 1, descriptor });
    }
    Ok(Memory { card, pieces })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read as _;
    use std::thread;

    use super::*;

    fn piece(mib: u64, is_on_card: bool) -> Piece {
        let descriptor = File::open("/dev/null").unwrap().into();
        Piece { size: Bytes::mib(mib), is_on_card, descriptor }
    }

    #[test]
    fn memory_arrives_with_a_descriptor_for_each_piece() {
        let (a, b) = UnixStream::pair().unwrap();
        let sender = thread::spawn(move || {
            // More than a socket's buffer holds.
            let pieces = (0..600).map(|number| piece(2, number % 3 > 0)).collect();
            send(&a, Ok(&Memory { card: [7; 16], pieces })).unwrap();
        });
        let memory = receive(&b).unwrap();
        sender.join().unwrap();
        assert_eq!((memory.card, memory.pieces.len()), ([7; 16], 600));
        assert_eq!((memory.size(), memory.on_card()), (Bytes::mib(1200), Bytes::mib(800)));
        for piece in memory.pieces {
            assert_eq!(File::from(piece.descriptor).read(&mut [0]).unwrap(), 0, "it is /dev/null");
        }
    }

    #[test]
    fn a_refusal_arrives_as_such() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, Err(400)).unwrap();
        assert!(matches!(receive(&b), Err(TransferError::Refused(400))));
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let nonsense = |bytes: &[u8]| {
            let (a, b) = UnixStream::pair().unwrap();
            socket::send_all_with_fd(&a, bytes, None).unwrap();
            drop(a);
            receive(&b).unwrap_err()
        };
        let mut header = [0; HEADER];
        assert!(matches!(nonsense(&header), TransferError::Nonsense), "no pieces");
        header[4..8].fill(0xff);
        assert!(matches!(nonsense(&header), TransferError::Nonsense), "too many");
        header[4..8].copy_from_slice(&1_u32.to_le_bytes());
        assert!(matches!(nonsense(&header), TransferError::Socket(_)), "it ends there");
        let bytes = [&header[..], &[1; PIECE]].concat();
        assert!(matches!(nonsense(&bytes), TransferError::Nonsense), "without a descriptor");
    }
}

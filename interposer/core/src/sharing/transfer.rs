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

/// Physical memory behind a part of an export: its descriptor at the exporter, its handle at the importer.
#[derive(Debug)]
pub struct Piece<M> {
    /// Number of bytes.
    pub size: Bytes,
    /// Whether the bytes are on the card, or in memory of the host that kernels reach over the bus.
    pub is_on_card: bool,
    /// Driver's name of the memory.
    pub memory: M,
}

/// Memory of an export, as the importer receives it.
#[derive(Debug)]
pub struct Memory<M> {
    /// UUID of the card.
    pub card: [u8; 16],
    /// Pieces, in the order of their addresses.
    pub pieces: Vec<Piece<M>>,
}

impl<M> Memory<M> {
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
    /// The driver did not take the memory, with this result.
    #[error("the driver did not take the memory, with error {0}")]
    NotTaken(CUresult),
    /// The exporter ended, or is too slow.
    #[error("the exporter did not send the memory: {0}")]
    Socket(#[from] io::Error),
    /// The exporter sent something else.
    #[error("the exporter sent something else than memory")]
    Nonsense,
}

/// Sends memory of a card. A piece is made when its turn comes, and its descriptor is closed once it is sent: large
/// memory has more pieces than a process may have descriptors.
///
/// # Errors
/// Error of the socket or of a piece.
pub fn send(
    stream: &UnixStream,
    card: [u8; 16],
    pieces: impl ExactSizeIterator<Item = io::Result<Piece<OwnedFd>>>,
) -> io::Result<()> {
    send_header(stream, CUDA_SUCCESS, pieces.len(), card)?;
    for piece in pieces {
        let piece = piece?;
        let mut bytes = [0; PIECE];
        bytes[..8].copy_from_slice(&piece.size.0.to_le_bytes());
        bytes[8] = piece.is_on_card.into();
        socket::send_all_with_fd(stream, &bytes, Some(piece.memory.as_fd()))?;
    }
    Ok(())
}

/// Sends the reason why there is no memory.
///
/// # Errors
/// Error of the socket.
pub fn refuse(stream: &UnixStream, reason: CUresult) -> io::Result<()> {
    send_header(stream, reason, 0, [0; 16])
}

fn send_header(stream: &UnixStream, result: CUresult, count: usize, card: [u8; 16]) -> io::Result<()> {
    let mut header = [0; HEADER];
    let count = u32::try_from(count).map_err(io::Error::other)?;
    header[..4].copy_from_slice(&result.to_le_bytes());
    header[4..8].copy_from_slice(&count.to_le_bytes());
    header[8..].copy_from_slice(&card);
    socket::send_all_with_fd(stream, &header, None)
}

/// Receives memory. `import` makes the driver's handle of each descriptor, which it closes.
///
/// # Errors
/// The reason why there is none.
pub fn receive<M>(
    stream: &UnixStream,
    mut import: impl FnMut(OwnedFd) -> Result<M, CUresult>,
) -> Result<Memory<M>, TransferError> {
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
        let memory = import(descriptor).map_err(TransferError::NotTaken)?;
        pieces.push(Piece { size: Bytes(length), is_on_card: bytes[8] == 1, memory });
    }
    Ok(Memory { card, pieces })
}

#[cfg(test)]
mod tests {
    use std::fs::{self, DirEntry, File};
    use std::io::Read as _;
    use std::thread;

    use gpushare_sys::memory_file;

    use super::*;

    fn piece(mib: u64, is_on_card: bool) -> io::Result<Piece<OwnedFd>> {
        let memory = File::open("/dev/null")?.into();
        Ok(Piece { size: Bytes::mib(mib), is_on_card, memory })
    }

    fn received(stream: &UnixStream) -> Result<Memory<OwnedFd>, TransferError> {
        receive(stream, Ok)
    }

    #[test]
    fn memory_arrives_with_a_descriptor_for_each_piece() {
        let (a, b) = UnixStream::pair().unwrap();
        let sender = thread::spawn(move || {
            // More than a socket's buffer holds.
            send(&a, [7; 16], (0..600).map(|number| piece(2, number % 3 > 0))).unwrap();
        });
        let memory = received(&b).unwrap();
        sender.join().unwrap();
        assert_eq!((memory.card, memory.pieces.len()), ([7; 16], 600));
        assert_eq!((memory.size(), memory.on_card()), (Bytes::mib(1200), Bytes::mib(800)));
        for piece in memory.pieces {
            assert_eq!(File::from(piece.memory).read(&mut [0]).unwrap(), 0, "it is /dev/null");
        }
    }

    #[test]
    fn a_refusal_arrives_as_such() {
        let (a, b) = UnixStream::pair().unwrap();
        refuse(&a, 400).unwrap();
        assert!(matches!(received(&b), Err(TransferError::Refused(400))));
    }

    #[test]
    fn descriptors_are_closed_piece_by_piece() {
        let (a, b) = UnixStream::pair().unwrap();
        let memory = memory_file::create("piece-by-piece").unwrap();
        let is_piece = |descriptor: &io::Result<DirEntry>| {
            // Another test may have closed it.
            let target = descriptor.as_ref().ok().and_then(|known| fs::read_link(known.path()).ok());
            target.is_some_and(|target| target.to_string_lossy().contains("piece-by-piece"))
        };
        let open = || fs::read_dir("/proc/self/fd").unwrap().filter(is_piece).count();
        let piece = move || Ok(Piece { size: Bytes::mib(2), is_on_card: true, memory: memory.try_clone()? });
        let sender = thread::spawn(move || send(&a, [7; 16], (0..2000).map(|_| piece())));
        let mut most = 0;
        let memory = receive(&b, |descriptor| {
            drop(descriptor);
            most = most.max(open());
            Ok(())
        });
        sender.join().unwrap().unwrap();
        assert_eq!(memory.unwrap().pieces.len(), 2000);
        assert!(most < 200, "{most} were open at once");
    }

    #[test]
    fn memory_that_the_driver_does_not_take_is_none() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, [7; 16], std::iter::once(piece(2, true))).unwrap();
        let refused = receive(&b, |_| Err::<(), _>(2)).unwrap_err();
        assert!(matches!(refused, TransferError::NotTaken(2)));
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let nonsense = |bytes: &[u8]| {
            let (a, b) = UnixStream::pair().unwrap();
            socket::send_all_with_fd(&a, bytes, None).unwrap();
            drop(a);
            received(&b).unwrap_err()
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

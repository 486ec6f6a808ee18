//! Move of the process's managed memory to its cards, before the gate opens.
//!
//! ```text
//!   each context   blocks, up to the size of its card ──▶ a batch at a time in gpushare's own stream
//!                                                          the next batch follows when the stream is idle
//! ```
//!
//! The drainer reads the gate word between two looks at the stream, and leaves a move that nobody wants any
//! more: at most one batch is then under way. The list of contexts is locked only while a batch is asked for.
//! Memory beyond the size of a card would only push out what has just arrived, so page faults bring it.

use std::collections::BTreeMap;
use std::vec::IntoIter;

use gpushare_proto::Bytes;

use crate::driver::types::{CUDA_ERROR_NOT_READY, CUcontext, CUdevice, CUdeviceptr, CUstream};
use crate::driver::{Driver, contexts::Contexts};
use crate::memory::{Memory, Piece};

/// Size of a batch: 5 to 20 ms of a bus with 12 to 50 GB/s.
const BATCH: Bytes = Bytes::mib(256);
/// Most calls of the driver in a batch.
const CALLS: usize = 256;

/// Move of the managed memory of all contexts to their cards.
#[derive(Debug)]
pub(super) struct MoveIn {
    contexts: Vec<OfContext>,
    moved: Bytes,
}

/// Memory of one context that the driver was not asked for yet.
#[derive(Debug)]
struct OfContext {
    context: CUcontext,
    device: CUdevice,
    pieces: IntoIter<Piece>,
}

impl MoveIn {
    pub(super) fn new(driver: &Driver, contexts: &Contexts, memory: &Memory) -> Self {
        let mut free = BTreeMap::new();
        let live: Vec<_> = contexts.visit().iter().map(|live| (live.context(), live.device())).collect();
        let of_context = |(context, device)| {
            let free = free.entry(device).or_insert_with(|| driver.total(device).unwrap_or(Bytes::MAX));
            let pieces = pieces(memory.blocks.managed_ranges(context), free).into_iter();
            OfContext { context, device, pieces }
        };
        Self { contexts: live.into_iter().map(of_context).collect(), moved: Bytes::ZERO }
    }

    /// Asks for the next batch in each context whose last batch has arrived. Returns whether all has arrived.
    pub(super) fn advance(&mut self, driver: &Driver, contexts: &Contexts, memory: &Memory) -> bool {
        let moved = &mut self.moved;
        self.contexts.retain_mut(|of_context| {
            let mut live = contexts.visit();
            // A context that was destroyed meanwhile took its memory along.
            let live = live.find(of_context.context);
            let under_way = live.and_then(|live| {
                live.enter(driver, |live| {
                    let stream = live.stream(driver)?;
                    of_context.advance(driver, memory, stream).map(|asked| *moved += asked)
                })
            });
            under_way.flatten().is_some()
        });
        self.contexts.is_empty()
    }

    /// Returns the number of bytes that the driver was asked to move.
    pub(super) fn moved(&self) -> Bytes {
        self.moved
    }
}

impl OfContext {
    /// Returns the bytes of the next batch, zero while the last one is under way; `None` if all has arrived.
    fn advance(&mut self, driver: &Driver, memory: &Memory, stream: CUstream) -> Option<Bytes> {
        // SAFETY: the stream is gpushare's own and lives as long as its context, which the caller has locked.
        if unsafe { (driver.stream_query)(stream) } == CUDA_ERROR_NOT_READY {
            return Some(Bytes::ZERO);
        }
        let (mut tried, mut asked) = (Bytes::ZERO, Bytes::ZERO);
        for piece in self.pieces.by_ref().take(CALLS) {
            tried += piece.size;
            asked += memory.prefetch(piece, self.device, stream);
            if tried >= BATCH {
                break;
            }
        }
        (!tried.is_zero()).then_some(asked)
    }
}

/// Cuts blocks into pieces until their bytes reach `free`, which is reduced by them.
fn pieces(blocks: Vec<(CUdeviceptr, Bytes)>, free: &mut Bytes) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (block, size) in blocks {
        let end = block + size.min(*free).0;
        *free -= size;
        let starts = (block..end).step_by(BATCH.0 as usize);
        pieces.extend(starts.map(|address| Piece { block, address, size: BATCH.min(Bytes(end - address)) }));
    }
    pieces
}

#[cfg(test)]
mod tests {
    use std::ptr::without_provenance_mut;
    use std::sync::Arc;

    use super::*;
    use crate::daemon::Daemon;
    use crate::driver::contexts::Kind;
    use crate::driver::fake::{OURS, answers, driver};
    use crate::driver::types::CUDA_SUCCESS;
    use crate::memory::allocations::{Block, Origin};

    /// The drainer looks at the gate word between two calls of `advance`.
    #[test]
    fn a_move_goes_on_batch_by_batch_up_to_the_size_of_each_card() {
        let (driver, contexts) = (driver(), Contexts::default());
        let memory = Memory::new(driver, Arc::new(Daemon::default()));
        for (number, device) in [(1, 0), (2, 1)] {
            let context = without_provenance_mut(number);
            contexts.created(context, device, Kind::Created);
            let block = Block { size: Bytes::mib(700), device, context: number, origin: Origin::Rewritten };
            assert_eq!(memory.blocks.insert((number as u64) << 40, block), None);
        }
        answers(|answers| answers.memory = 600 << 20);
        let mut moving = MoveIn::new(&driver, &contexts, &memory);
        let mut advance = || moving.advance(&driver, &contexts, &memory);
        let asked = || answers(|answers| answers.prefetched.len());
        assert!(!advance());
        assert_eq!(asked(), 2, "a batch on each card");
        answers(|answers| answers.streams.insert(OURS, CUDA_ERROR_NOT_READY));
        assert!(!advance() && !advance());
        assert_eq!(asked(), 2, "both are under way");
        answers(|answers| answers.streams.insert(OURS, CUDA_SUCCESS));
        assert!(!advance() && !advance());
        assert_eq!(asked(), 6, "the rest does not fit");
        assert!(advance());
        assert_eq!(moving.moved(), Bytes::mib(1200));
    }

    #[test]
    fn blocks_are_cut_into_pieces_up_to_the_size_of_the_card() {
        let (a, b, c) = (0x1000, 1 << 40, 1 << 41);
        let mut free = Bytes::mib(600);
        let cut = pieces(vec![(a, Bytes::mib(1)), (b, Bytes::mib(500))], &mut free);
        assert_eq!(
            cut,
            [
                Piece { block: a, address: a, size: Bytes::mib(1) },
                Piece { block: b, address: b, size: BATCH },
                Piece { block: b, address: b + BATCH.0, size: Bytes::mib(244) },
            ]
        );
        let cut = pieces(vec![(a, Bytes::mib(200)), (c, Bytes::mib(1))], &mut free);
        assert_eq!(cut, [Piece { block: a, address: a, size: Bytes::mib(99) }]);
    }
}

//! Moves of the process's managed memory: to its cards before the gate opens, and to the host while another process
//! comes in.
//!
//! ```text
//!   each context   blocks, up to a limit of its card ──▶ a batch at a time in gpushare's own stream
//!                                                         the next batch follows when the stream is idle
//! ```
//!
//! The drainer reads the gate word between two looks at the stream, and leaves a move that nobody wants any
//! more: at most one batch is then under way. The list of contexts is locked only while a batch is asked for.
//!
//! | way | limit on a card |
//! |---|---|
//! | in | the capacity of the card, as the daemon wrote it when it gave the lock; at most its size |
//! | out | all, less what may stay there |
//!
//! More than that would only push out what has just arrived, so page faults bring the rest. Blocks leave in the order
//! in which they come in. The driver evicts in the same order, since what came in first is the oldest. So the two
//! seldom take different memory. No byte is asked to move twice in one move.

use std::collections::{BTreeMap, VecDeque};

use gpushare_proto::Bytes;

use crate::driver::types::{CUDA_ERROR_NOT_READY, CUcontext, CUdevice, CUstream, DEVICE_CPU};
use crate::driver::{Driver, contexts::Contexts};
use crate::memory::{Memory, Piece};

/// Size of a batch on the way in: 5 to 20 ms of a bus with 12 to 50 GB/s.
const BATCH_IN: Bytes = Bytes::mib(256);
/// Size of a batch on the way out, behind which a way in may have to wait: 5 ms at 13 GB/s.
const BATCH_OUT: Bytes = Bytes::mib(64);
/// Most calls of the driver in a batch.
const CALLS: usize = 256;
/// Size of the pages in which the driver moves managed memory.
const PAGE: Bytes = Bytes::mib(2);

/// Direction of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    In,
    Out,
}

/// Move of the managed memory of all contexts in one direction.
#[derive(Debug)]
pub(super) struct Moves {
    way: Way,
    cards: BTreeMap<CUdevice, OfCard>,
    contexts: Vec<OfContext>,
    moved: Bytes,
}

/// Bytes on one card.
#[derive(Clone, Copy, Debug)]
struct OfCard {
    size: Bytes,
    /// Managed memory of the process.
    whole: Bytes,
    /// Part of it that the driver was asked to move.
    tried: Bytes,
}

/// Memory of one context that the driver was not asked for yet.
#[derive(Debug)]
struct OfContext {
    context: CUcontext,
    device: CUdevice,
    pieces: VecDeque<Piece>,
}

// SAFETY: the driver is thread-safe, and the handle is only passed back to it.
unsafe impl Send for OfContext {}

impl Moves {
    pub(super) fn new(way: Way, driver: &Driver, contexts: &Contexts, memory: &Memory) -> Self {
        let live: Vec<_> = contexts.visit().iter().map(|live| (live.context(), live.device())).collect();
        let mut cards = BTreeMap::new();
        let of_context = |(context, device)| {
            let piece = |(block, size)| Piece { block, address: block, size };
            let pieces: VecDeque<Piece> =
                memory.blocks.managed_ranges(context).into_iter().map(piece).collect();
            let size = || driver.total(device).unwrap_or(Bytes::MAX);
            let new = || OfCard { size: size(), whole: Bytes::ZERO, tried: Bytes::ZERO };
            cards.entry(device).or_insert_with(new).whole +=
                pieces.iter().map(|piece| piece.size).sum::<Bytes>();
            OfContext { context, device, pieces }
        };
        let contexts = live.into_iter().map(of_context).collect();
        Self { way, cards, contexts, moved: Bytes::ZERO }
    }

    /// Asks for the next batch in each context whose last batch has arrived. `goal` is the most bytes that may be on
    /// a card: its capacity on the way in. Returns whether all has arrived that should move now.
    pub(super) fn advance(
        &mut self,
        (driver, contexts, memory): (&Driver, &Contexts, &Memory),
        goal: impl Fn(CUdevice) -> Bytes,
    ) -> bool {
        let way = self.way;
        // Before the contexts are locked.
        let limit = |(&device, card): (&CUdevice, &OfCard)| (device, card.limit(way, goal(device)));
        let limits: BTreeMap<CUdevice, Bytes> = self.cards.iter().map(limit).collect();
        let (moved, cards) = (&mut self.moved, &mut self.cards);
        let mut rests = true;
        self.contexts.retain_mut(|of_context| {
            let (Some(card), Some(&limit)) =
                (cards.get_mut(&of_context.device), limits.get(&of_context.device))
            else {
                return false;
            };
            let mut live = contexts.visit();
            // A context that was destroyed meanwhile took its memory along.
            let batch = live.find(of_context.context).and_then(|live| {
                live.enter(driver, |live| {
                    let stream = live.stream(driver)?;
                    Some(of_context.advance(way, (driver, memory, stream), card, limit))
                })
            });
            let Some(batch) = batch.flatten() else { return false };
            *moved += batch.unwrap_or_default();
            rests &= batch.is_none();
            true
        });
        rests
    }

    /// Returns the number of bytes that the driver was asked to move.
    pub(super) fn moved(&self) -> Bytes {
        self.moved
    }
}

impl OfCard {
    /// Returns how many bytes should move in all.
    fn limit(&self, way: Way, goal: Bytes) -> Bytes {
        match way {
            Way::In => self.size.min(goal),
            Way::Out => self.whole - goal,
        }
    }
}

impl OfContext {
    /// Returns the bytes of the next batch, zero while the last one is under way; `None` if there is nothing to do.
    fn advance(
        &mut self,
        way: Way,
        (driver, memory, stream): (&Driver, &Memory, CUstream),
        card: &mut OfCard,
        limit: Bytes,
    ) -> Option<Bytes> {
        // SAFETY: the stream is gpushare's own and lives as long as its context, which the caller has locked.
        if unsafe { (driver.stream_query)(stream) } == CUDA_ERROR_NOT_READY {
            return Some(Bytes::ZERO);
        }
        let (batch, to) = match way {
            Way::In => (BATCH_IN, self.device),
            Way::Out => (BATCH_OUT, DEVICE_CPU),
        };
        let (mut tried, mut asked) = (Bytes::ZERO, Bytes::ZERO);
        for _ in 0..CALLS {
            let Some(piece) = self.next((limit - card.tried).min(batch - tried)) else { break };
            tried += piece.size;
            card.tried += piece.size;
            asked += memory.prefetch(piece, to, stream);
        }
        (!tried.is_zero()).then_some(asked)
    }

    /// Takes the next piece, of at most so many bytes. A block is cut at the end of a page.
    fn next(&mut self, most: Bytes) -> Option<Piece> {
        let first = self.pieces.front_mut()?;
        if first.size <= most {
            return self.pieces.pop_front();
        }
        let end = (first.address + most.0) / PAGE.0 * PAGE.0;
        let size = Bytes(end.checked_sub(first.address).filter(|&size| size > 0)?);
        let piece = Piece { size, ..*first };
        first.address = end;
        first.size -= size;
        Some(piece)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::ptr::without_provenance_mut;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    use gpushare_proto::GpuId;
    use gpushare_proto::page::Page;

    use super::*;
    use crate::daemon::Daemon;
    use crate::driver::contexts::Kind;
    use crate::driver::fake::{OURS, answers, driver};
    use crate::driver::types::{CUDA_SUCCESS, CUdeviceptr};
    use crate::memory::allocations::{Block, Origin};

    pub(in super::super) const MIB: u64 = 1 << 20;

    /// A driver, contexts and memory of a process with 700 MiB on each of two cards.
    pub(in super::super) fn process() -> (Driver, Contexts, Memory) {
        let (driver, contexts) = (driver(), Contexts::default());
        let memory = Memory::new(driver, Arc::new(Daemon::default()));
        for (number, device) in [(1, 0), (2, 1)] {
            let context = without_provenance_mut(number);
            contexts.created(context, device, Kind::Created);
            let block = Block { size: Bytes::mib(700), device, context: number, origin: Origin::Rewritten };
            assert_eq!(memory.blocks.insert((number as u64) << 40, block), None);
        }
        answers(|answers| answers.memory = 600 << 20);
        (driver, contexts, memory)
    }

    /// Whether the batches of all contexts are under way.
    pub(in super::super) fn are_under_way(under_way: bool) {
        let state = if under_way { CUDA_ERROR_NOT_READY } else { CUDA_SUCCESS };
        answers(|answers| answers.streams.insert(OURS, state));
    }

    /// Bytes that the driver was asked to move to a device, in MiB.
    pub(in super::super) fn asked(to: CUdevice) -> u64 {
        answers(|answers| {
            let moves = answers.prefetched.iter().filter(|&&(.., device)| device == to);
            moves.map(|&(_, bytes, _)| bytes as u64 / MIB).sum()
        })
    }

    /// The drainer looks at the gate word between two calls of `advance`.
    #[test]
    fn a_move_goes_on_batch_by_batch_up_to_the_size_of_each_card() {
        let (driver, contexts, memory) = process();
        let mut moving = Moves::new(Way::In, &driver, &contexts, &memory);
        let mut advance = || moving.advance((&driver, &contexts, &memory), |_| Bytes::MAX);
        let calls = || answers(|answers| answers.prefetched.len());
        assert!(!advance());
        assert_eq!(calls(), 2, "a batch on each card");
        are_under_way(true);
        assert!(!advance() && !advance());
        assert_eq!(calls(), 2, "both are under way");
        are_under_way(false);
        assert!(!advance() && !advance());
        assert_eq!(calls(), 6, "the rest does not fit");
        assert!(advance());
        assert_eq!(moving.moved(), Bytes::mib(1200));
    }

    #[test]
    fn no_more_comes_in_than_the_capacity_that_the_daemon_wrote() {
        let (driver, contexts, memory) = process();
        let page: &Page = Box::leak(Box::default());
        memory.lease.use_page(page);
        memory.lease.attach(0, GpuId(3));
        memory.lease.attach(1, GpuId(4));
        page.capacities[3].store(400 * MIB, Ordering::Relaxed);
        let mut moving = Moves::new(Way::In, &driver, &contexts, &memory);
        let limit = |device| memory.capacity(page, device);
        while !moving.advance((&driver, &contexts, &memory), limit) {}
        assert_eq!([0, 1].map(asked), [400, 600], "an older daemon writes none for the other card");
    }

    #[test]
    fn what_may_not_stay_leaves_once_and_in_small_batches() {
        let (driver, contexts, memory) = process();
        let mut moving = Moves::new(Way::Out, &driver, &contexts, &memory);
        let mut advance = |goal: u64| {
            moving.advance((&driver, &contexts, &memory), |device| match device {
                0 => Bytes::mib(goal),
                _ => Bytes::MAX,
            })
        };
        assert!(!advance(600));
        assert_eq!(asked(DEVICE_CPU), 64);
        are_under_way(true);
        assert!(!advance(600));
        are_under_way(false);
        assert!(!advance(600) && advance(600));
        assert_eq!(asked(DEVICE_CPU), 100);
        // Called off, and asked for more later.
        assert!(advance(700));
        assert!(!advance(590) && advance(590));
        assert_eq!(asked(DEVICE_CPU), 110);
        let all: Vec<(CUdeviceptr, usize)> = answers(|answers| {
            answers.prefetched.iter().map(|&(address, bytes, _)| (address, bytes)).collect()
        });
        assert!(all.iter().zip(&all[1..]).all(|(one, next)| one.0 + one.1 as u64 == next.0), "{all:x?}");
    }

    #[test]
    fn blocks_are_cut_at_the_ends_of_pages() {
        let (a, b) = (0x1000, 1 << 40);
        let piece = |block, address, mib| Piece { block, address, size: Bytes::mib(mib) };
        let pieces = VecDeque::from([piece(a, a, 1), piece(b, b, 500)]);
        let mut context = OfContext { context: without_provenance_mut(1), device: 0, pieces };
        assert_eq!(context.next(Bytes::mib(256)), Some(piece(a, a, 1)));
        assert_eq!(context.next(Bytes::mib(255)), Some(piece(b, b, 254)));
        assert_eq!(context.next(Bytes::mib(1)), None, "a part of a page");
        assert_eq!(context.next(Bytes::mib(256)), Some(piece(b, b + 254 * MIB, 246)));
        assert_eq!(context.next(Bytes::mib(256)), None);
    }
}

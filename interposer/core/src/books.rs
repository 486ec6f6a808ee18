//! What the process has allocated: address → block. Frees, identity queries and the movers look here.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

use gpushare_proto::Bytes;

use crate::driver::types::{CUcontext, CUdevice, CUdeviceptr};
use crate::leases::Kind;
use crate::lock;

/// One allocation, as the application asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// What was asked for, and charged.
    pub size: Bytes,
    /// The card it is charged to.
    pub device: CUdevice,
    /// The context that it dies with.
    pub context: usize,
    /// What it is, and was asked for as.
    pub origin: Origin,
}

/// What a block is, and what the application asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Asked for as device memory, and made managed: we answer for its identity.
    Rewritten,
    /// The application's own managed memory.
    Managed,
    /// Device memory of the driver's: it never moves.
    Native,
}

impl Origin {
    /// How its bytes are counted.
    #[must_use]
    pub const fn kind(self) -> Kind {
        match self {
            Self::Rewritten | Self::Managed => Kind::Movable,
            Self::Native => Kind::Fixed,
        }
    }
}

/// All blocks of the process.
#[derive(Debug, Default)]
pub struct Books {
    inner: Mutex<Inner>,
    /// Told when a block has been moved.
    moved: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    blocks: BTreeMap<CUdeviceptr, Block>,
    /// The block that the mover asks the driver to move just now: whoever strikes it waits, since the driver must not
    /// be asked for memory that is gone.
    moving: Option<CUdeviceptr>,
}

impl Books {
    /// Enters a block. What was there is dead, and nobody has struck it yet: it died with a context whose end another
    /// thread has not seen to the end, while the driver gave its address out again.
    #[must_use]
    pub fn enter(&self, address: CUdeviceptr, block: Block) -> Option<Block> {
        lock(&self.inner).blocks.insert(address, block)
    }

    /// Strikes the block that begins at `address`; `None` if it is not ours. What the driver was asked to move is
    /// asked by then, so that a free waits for it.
    #[must_use]
    pub fn strike(&self, address: CUdeviceptr) -> Option<Block> {
        let mut inner = lock(&self.inner);
        while inner.moving == Some(address) {
            inner = self.moved.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.blocks.remove(&address)
    }

    /// Runs `ask` while the block that begins at `address` cannot be struck; `None` if it was already. Only the mover
    /// does so, and nobody else can wait for it with a lock that `ask` needs: a free is not yet in the driver.
    pub fn while_it_stays<R>(&self, address: CUdeviceptr, ask: impl FnOnce() -> R) -> Option<R> {
        {
            let mut inner = lock(&self.inner);
            inner.blocks.contains_key(&address).then_some(())?;
            inner.moving = Some(address);
        }
        let answer = ask();
        lock(&self.inner).moving = None;
        self.moved.notify_all();
        Some(answer)
    }

    /// The block that holds `address`, and where it begins.
    #[must_use]
    pub fn holding(&self, address: CUdeviceptr) -> Option<(CUdeviceptr, Block)> {
        let inner = lock(&self.inner);
        let (&start, &block) = inner.blocks.range(..=address).next_back()?;
        (address - start < block.size.0).then_some((start, block))
    }

    /// Strikes everything that dies with a context.
    #[must_use]
    pub fn strike_context(&self, context: CUcontext) -> Vec<Block> {
        let mut inner = lock(&self.inner);
        let (dead, kept) = std::mem::take(&mut inner.blocks)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, block)| block.context == context.addr());
        inner.blocks = kept;
        dead.into_values().collect()
    }

    /// From now on the blocks of one context belong to another.
    pub fn hand_over(&self, from: CUcontext, to: CUcontext) {
        for block in lock(&self.inner)
            .blocks
            .values_mut()
            .filter(|block| block.context == from.addr())
        {
            block.context = to.addr();
        }
    }

    /// The managed ranges of a context, in address order.
    #[must_use]
    pub fn ranges_of(&self, context: CUcontext) -> Vec<(CUdeviceptr, Bytes)> {
        let inner = lock(&self.inner);
        let movable = |block: &Block| block.origin.kind() == Kind::Movable;
        let here = inner
            .blocks
            .iter()
            .filter(|(_, block)| block.context == context.addr() && movable(block));
        here.map(|(&address, block)| (address, block.size)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size: u64, context: usize) -> Block {
        Block { size: Bytes(size), device: 0, context, origin: Origin::Rewritten }
    }

    #[test]
    fn an_address_inside_a_block_finds_it_and_one_past_it_does_not() {
        let books = Books::default();
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        assert_eq!(books.holding(0x1000), Some((0x1000, block(0x100, 1))));
        assert_eq!(books.holding(0x10ff), Some((0x1000, block(0x100, 1))));
        assert_eq!(books.holding(0x1100), None);
        assert_eq!(books.holding(0xfff), None);
    }

    #[test]
    fn a_block_that_is_being_moved_is_struck_only_afterwards() {
        use std::sync::atomic::{AtomicBool, Ordering};
        use std::thread;
        use std::time::Duration;

        let books = Books::default();
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        assert_eq!(books.enter(0x2000, block(0x100, 1)), None);
        let asked = AtomicBool::new(false);
        thread::scope(|scope| {
            let moved = books.while_it_stays(0x1000, || {
                let free = scope.spawn(|| (books.strike(0x1000), asked.load(Ordering::SeqCst)));
                assert_eq!(books.strike(0x2000), Some(block(0x100, 1)), "another is not held up");
                thread::sleep(Duration::from_millis(20));
                assert!(!free.is_finished());
                asked.store(true, Ordering::SeqCst);
                free
            });
            let free = moved.expect("the block was there").join().expect("no panic");
            assert_eq!(free, (Some(block(0x100, 1)), true));
        });
        assert_eq!(books.while_it_stays(0x1000, || ()), None);
    }

    #[test]
    fn only_the_beginning_of_a_block_is_freed_and_only_once() {
        let books = Books::default();
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        assert_eq!(books.strike(0x1001), None);
        assert_eq!(books.strike(0x1000), Some(block(0x100, 1)));
        assert_eq!(books.strike(0x1000), None);
    }

    #[test]
    fn an_address_that_is_given_out_again_takes_the_place_of_a_dead_block() {
        let books = Books::default();
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        assert_eq!(books.enter(0x1000, block(0x200, 2)), Some(block(0x100, 1)));
        assert_eq!(books.strike_context(std::ptr::without_provenance_mut(1)), []);
        assert_eq!(books.strike(0x1000), Some(block(0x200, 2)));
    }

    #[test]
    fn blocks_that_were_handed_over_die_with_their_new_context() {
        let books = Books::default();
        let context = std::ptr::without_provenance_mut;
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        books.hand_over(context(1), context(2));
        assert_eq!(books.strike_context(context(1)), []);
        assert_eq!(books.strike_context(context(2)), [block(0x100, 2)]);
    }

    #[test]
    fn a_contexts_blocks_die_with_it() {
        let books = Books::default();
        assert_eq!(books.enter(0x1000, block(0x100, 1)), None);
        assert_eq!(books.enter(0x2000, block(0x200, 2)), None);
        assert_eq!(books.strike_context(std::ptr::without_provenance_mut(1)), [block(0x100, 1)]);
        assert_eq!(books.ranges_of(std::ptr::without_provenance_mut(2)), [(0x2000, Bytes(0x200))]);
    }
}

//! Cost that the library adds to an allocation: it takes the bytes from the lease and enters the block beside a
//! hundred others. The driver's part is left out.

use gpushare_client::memory::allocations::{Allocations, Block, Origin};
use gpushare_client::memory::lease::{Lease, MemoryKind};
use gpushare_proto::page::Page;
use gpushare_proto::{Bytes, GateState, GpuId};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

/// Blocks that are held all the time, and those that come and go.
const BLOCKS: u64 = 100;
/// Bytes of a block.
const BLOCK: Bytes = Bytes(4096);
/// A hundred blocks each; the median counts.
const TURNS: usize = 20_000;

pub(crate) fn measure() -> anyhow::Result<Value> {
    let page: &'static Page = Box::leak(Box::new(Page::new(GateState::Open)));
    gpushare_sys::lease::put(&page.gpus[0], Bytes::mib(64));
    let (lease, blocks) = (Lease::default(), Allocations::default());
    lease.use_page(page);
    lease.attach(0, GpuId(0));
    let reserve = |address| {
        assert!(lease.take(0, BLOCK, MemoryKind::Movable), "the lease is short");
        let block = Block { size: BLOCK, device: 0, context: 1, origin: Origin::Rewritten };
        let _ = blocks.insert(address, block);
    };
    let give_back = |address| {
        let block = blocks.remove(address).expect("it was entered");
        lease.give_back(block.device, block.size, block.origin.kind(), |_| false);
    };
    // Addresses come in the order in which a driver gives them, and never again.
    let mut next = (1 << 40..).step_by(4096);
    next.by_ref().take(BLOCKS as usize).for_each(reserve);
    let (mut reserving, mut giving_back) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let blocks: Vec<u64> = next.by_ref().take(BLOCKS as usize).collect();
        let begun = cpu_time();
        blocks.iter().copied().for_each(reserve);
        let reserved = cpu_time();
        blocks.iter().copied().for_each(give_back);
        let ended = cpu_time();
        reserving.push(reserved - begun);
        giving_back.push(ended - reserved);
    }
    Ok(json!({ "reserve_ns": median(reserving), "give_back_ns": median(giving_back) }))
}

/// Of one block, in tenths.
fn median(mut nanos: Vec<u64>) -> f64 {
    nanos.sort_unstable();
    let tenths = nanos[nanos.len() / 2] * 10 / BLOCKS;
    tenths as f64 / 10.0
}

fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

//! Memory pools: which each device uses, and where their blocks get addresses.
//!
//! A stream that frees a block and asks for one of the same size gets the same address at once, as with the
//! real driver; other streams get it when the stream was waited for.

use std::collections::HashMap;

use simgpu_card::ids::{PoolId, StreamId};
use simgpu_card::wire::{Kind, Op, Request, Work};

use crate::capture::Status;
use crate::codes::{Answer, Code};
use crate::driver::driver;
use crate::handles::{Handle, Tag};
use crate::location::Location;
use crate::mapping::Reservation;
use crate::state::{Allocation, Source, State};
use crate::work;

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Properties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) security: usize,
    pub(crate) limit: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: i32,
    /// The program made it, so the program may destroy it.
    pub(crate) own: bool,
    /// The program has destroyed it: its blocks live on, and their addresses stay taken.
    destroyed: bool,
    /// Values of `CUmemPool_attribute` 1 to 3: kept, without effect.
    pub(crate) reuse: [u32; 3],
    pub(crate) threshold: u64,
    /// `CUmemAccess_flags` by device.
    pub(crate) access: HashMap<i32, u32>,
    free: Vec<Free>,
}

/// Addresses of a freed block.
#[derive(Debug)]
struct Free {
    /// The only stream that may have them yet.
    stream: Option<StreamId>,
    len: u64,
    addresses: Reservation,
}

/// The pools of a device: made by the driver when first asked for.
#[derive(Debug, Default)]
pub(crate) struct DevicePools {
    normal: Option<u32>,
    /// Pool that the program has chosen instead.
    pub(crate) chosen: Option<u32>,
    /// For the memory nodes of graphs.
    graphs: Option<u32>,
}

/// Makes a pool on a device.
pub(crate) fn create(device: i32, limit: u64, own: bool) -> Answer<u32> {
    let driver = driver()?;
    let gpu = driver.gpu(device)?.index;
    let id = driver.state().fresh();
    let pool = PoolId(id);
    driver.call(Request::CreatePool { pool, gpu, limit })?;
    let made = Pool {
        device,
        own,
        destroyed: false,
        reuse: [1; 3],
        threshold: 0,
        access: HashMap::new(),
        free: Vec::new(),
    };
    driver.state().pools.insert(id, made);
    Ok(id)
}

/// The pool that a device has from the start.
pub(crate) fn normal(device: i32) -> Answer<u32> {
    of_device(device, |pools| &mut pools.normal)
}

/// The pool that a device uses now.
pub(crate) fn current(device: i32) -> Answer<u32> {
    let chosen = driver()?.state().device_pools.get(&device).and_then(|pools| pools.chosen);
    chosen.map_or_else(|| normal(device), Ok)
}

/// The pool that graphs use.
pub(crate) fn of_graphs(device: i32) -> Answer<u32> {
    of_device(device, |pools| &mut pools.graphs)
}

fn of_device(device: i32, which: fn(&mut DevicePools) -> &mut Option<u32>) -> Answer<u32> {
    driver()?.gpu(device)?;
    if let Some(pool) = *which(driver()?.state().device_pools.entry(device).or_default()) {
        return Ok(pool);
    }
    let made = create(device, 0, false)?;
    let mut state = driver()?.state();
    Ok(*which(state.device_pools.entry(device).or_default()).get_or_insert(made))
}

/// Allocates in the order of a stream, or, in a capture, by a node of its graph.
pub(crate) fn allocate(bytes: usize, pool: Option<u32>, stream: StreamId) -> Answer<u64> {
    let driver = driver()?;
    driver.healthy()?;
    if bytes == 0 {
        return Err(Code::INVALID_VALUE);
    }
    let (device, context, status) = {
        let mut state = driver.state();
        let context = state.stream(stream)?.context;
        let device = state.contexts.get(&context).ok_or(Code::INVALID_CONTEXT)?.device;
        (device, context, state.capture_status(stream))
    };
    let capturing = status != Status::None;
    if !capturing {
        driver.state().unsafe_call()?;
    }
    let pool = match pool {
        _ if capturing => of_graphs(device)?,
        Some(pool) => pool,
        None => current(device)?,
    };
    let len = bytes as u64;
    let again = if capturing { None } else { driver.state().reuse(pool, stream, len) };
    let addresses = again.map_or_else(|| Reservation::new(bytes), Ok)?;
    let address = addresses.address;
    let op = Op::Allocate { address, len, pool: PoolId(pool) };
    let asked = work::submit_and_hear(stream, op);
    let mut state = driver.state();
    if let Err(code) = asked {
        state.keep(pool, None, len, addresses);
        return Err(code);
    }
    let device = state.pools.get(&pool).map_or(device, |pool| pool.device);
    let source = if capturing { Source::Graph(addresses) } else { Source::Pool(pool, addresses) };
    let allocation = Allocation { len, kind: Kind::Device, context, flags: 0, device, source };
    state.allocations.insert(address, allocation);
    Ok(address)
}

/// Frees in the order of a stream, or by a node of its graph.
pub(crate) fn free(address: u64, stream: StreamId) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let capturing = {
        let state = driver.state();
        let found = state.allocations.get(&address).ok_or(Code::INVALID_VALUE)?;
        match (&found.source, found.kind) {
            (Source::Pool(..) | Source::Graph(_), _) => {}
            (_, Kind::Managed) => return Err(Code::NOT_SUPPORTED),
            _ => return Err(Code::INVALID_VALUE),
        }
        state.capture_status(stream) != Status::None
    };
    work::submit(stream, Op::Release(address))?;
    let mut state = driver.state();
    let of_pool = |found: &Allocation| matches!(found.source, Source::Pool(..));
    if !capturing
        && state.allocations.get(&address).is_some_and(of_pool)
        && let Some(Allocation { len, source: Source::Pool(pool, addresses), .. }) =
            state.allocations.remove(&address)
    {
        state.keep(pool, Some(stream), len, addresses);
    }
    Ok(())
}

/// Ends a pool of the program's own. Its blocks live on until they are freed.
pub(crate) fn destroy(pool: Handle) -> Answer {
    let driver = driver()?;
    let mut state = driver.state();
    let (id, found) = state.pool(pool)?;
    if !found.own {
        return Err(Code::INVALID_VALUE);
    }
    driver.call(Request::DestroyPool(PoolId(id)))?;
    state.pool(pool)?.1.destroyed = true;
    for pools in state.device_pools.values_mut() {
        pools.chosen.take_if(|chosen| *chosen == id);
    }
    Ok(())
}

impl State {
    pub(crate) fn pool(&mut self, handle: Handle) -> Answer<(u32, &mut Pool)> {
        let id = Tag::Pool.id(handle).ok_or(Code::INVALID_VALUE)?;
        let pool = self.pools.get_mut(&id).filter(|pool| !pool.destroyed);
        Ok((id, pool.ok_or(Code::INVALID_VALUE)?))
    }

    /// Work has been waited for: what its streams freed is everybody's.
    pub(crate) fn reached(&mut self, work: Work) {
        let streams = &self.streams;
        let reached = |stream: StreamId| match work {
            Work::Stream(waited) => waited == stream,
            Work::Context(context) => streams.get(&stream).is_none_or(|found| found.context == context),
            Work::Position(..) | Work::Event(_) => false,
        };
        for free in self.pools.values_mut().flat_map(|pool| &mut pool.free) {
            free.stream.take_if(|stream| reached(*stream));
        }
    }

    fn reuse(&mut self, pool: u32, stream: StreamId, len: u64) -> Option<Reservation> {
        let free = &mut self.pools.get_mut(&pool)?.free;
        let fits = |free: &Free| free.len == len && free.stream.is_none_or(|only| only == stream);
        let index = free.iter().position(fits)?;
        Some(free.swap_remove(index).addresses)
    }

    fn keep(&mut self, pool: u32, stream: Option<StreamId>, len: u64, addresses: Reservation) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.free.push(Free { stream, len, addresses });
        }
    }
}

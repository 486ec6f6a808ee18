//! Memory in the order of streams, and the pools it comes from.

use simgpu_card::ids::PoolId;
use simgpu_card::wire::{Answer as CardAnswer, PoolUse, Request};

use crate::api::prelude::*;
use crate::location::{AccessDescription, Location, NO_ACCESS, READ_WRITE};
use crate::pools::{self, Properties};

/// `CUmemPool_attribute`.
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

api! {
    fn cuMemAllocAsync("cuMemAllocAsync", 11020; "_ptsz", 11020)[default](
        address: Out<u64>, bytes: usize, stream: Handle,
    ) {
        allocate(address, bytes, None, current::stream(stream, default)?)
    }

    fn cuMemAllocFromPoolAsync("cuMemAllocFromPoolAsync", 11020; "_ptsz", 11020)[default](
        address: Out<u64>, bytes: usize, pool: Handle, stream: Handle,
    ) {
        let pool = driver()?.state().pool(pool)?.0;
        allocate(address, bytes, Some(pool), current::stream(stream, default)?)
    }

    fn cuMemFreeAsync("cuMemFreeAsync", 11020; "_ptsz", 11020)[default](address: u64, stream: Handle) {
        let stream = current::stream(stream, default)?;
        if address == 0 {
            return Ok(());
        }
        pools::free(address, stream)
    }

    fn cuMemPoolCreate("cuMemPoolCreate", 11020)(pool: Out<Handle>, properties: In<Properties>) {
        const PINNED: u32 = 1;
        let properties = properties.get()?;
        if pool.is_null() || properties.kind != PINNED || properties.handle_types != 0 {
            return Err(Code::INVALID_VALUE);
        }
        if properties.location.kind != Location::DEVICE {
            return Err(Code::NOT_SUPPORTED);
        }
        let id = pools::create(properties.location.id, properties.limit as u64, true)?;
        pool.set(Tag::Pool.handle(id))
    }

    fn cuMemPoolDestroy("cuMemPoolDestroy", 11020)(pool: Handle) {
        pools::destroy(pool)
    }

    fn cuMemPoolTrimTo("cuMemPoolTrimTo", 11020)(pool: Handle, keep: usize) {
        let id = {
            let mut state = driver()?.state();
            state.unsafe_call()?;
            state.pool(pool)?.0
        };
        driver()?.call(Request::TrimPool(PoolId(id), keep as u64)).map(|_| ())
    }

    fn cuMemPoolSetAttribute("cuMemPoolSetAttribute", 11020)(pool: Handle, attribute: u32, value: In<u64>) {
        let driver = driver()?;
        let mut state = driver.state();
        let (id, found) = state.pool(pool)?;
        match attribute {
            1..=3 => {
                found.reuse[attribute as usize - 1] = value.cast::<u32>().get()?;
                Ok(())
            }
            THRESHOLD => {
                found.threshold = value.get()?;
                driver.tell(Request::SetPoolThreshold(PoolId(id), found.threshold))
            }
            RESERVED_HIGH | USED_HIGH if value.get()? == 0 => driver.tell(Request::ResetPool(PoolId(id))),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemPoolGetAttribute("cuMemPoolGetAttribute", 11020)(pool: Handle, attribute: u32, value: Out<u64>) {
        let driver = driver()?;
        let (id, reuse, threshold) = {
            let mut state = driver.state();
            state.unsafe_call()?;
            let (id, found) = state.pool(pool)?;
            (id, found.reuse, found.threshold)
        };
        match attribute {
            1..=3 => value.cast::<u32>().set(reuse[attribute as usize - 1]),
            THRESHOLD => value.set(threshold),
            _ => value.set(reading(usage(id)?, attribute)?),
        }
    }

    fn cuMemPoolSetAccess("cuMemPoolSetAccess", 11020)(
        pool: Handle, descriptions: In<AccessDescription>, count: usize,
    ) {
        let driver = driver()?;
        let mut state = driver.state();
        let (id, found) = state.pool(pool)?;
        for index in 0..count {
            let who = descriptions.at(index)?;
            let (allowed, device) = (who.allows()?, who.location.device()?);
            let gpu = driver.gpu(device)?.index;
            if device == found.device && !allowed {
                return Err(Code::INVALID_DEVICE);
            }
            found.access.insert(device, who.flags);
            driver.tell(Request::SetPoolAccess { pool: PoolId(id), gpu, allowed })?;
        }
        Ok(())
    }

    fn cuMemPoolGetAccess("cuMemPoolGetAccess", 11020)(flags: Out<u32>, pool: Handle, location: In<Location>) {
        let device = location.get()?.device()?;
        driver()?.gpu(device)?;
        let mut state = driver()?.state();
        let (_, found) = state.pool(pool)?;
        let own = if device == found.device { READ_WRITE } else { NO_ACCESS };
        flags.set(found.access.get(&device).copied().unwrap_or(own))
    }

    fn cuDeviceGetDefaultMemPool("cuDeviceGetDefaultMemPool", 11020)(pool: Out<Handle>, device: i32) {
        pool.set(Tag::Pool.handle(pools::normal(device)?))
    }

    fn cuDeviceGetMemPool("cuDeviceGetMemPool", 11020)(pool: Out<Handle>, device: i32) {
        pool.set(Tag::Pool.handle(pools::current(device)?))
    }

    fn cuDeviceSetMemPool("cuDeviceSetMemPool", 11020)(device: i32, pool: Handle) {
        driver()?.gpu(device)?;
        let mut state = driver()?.state();
        let (id, found) = state.pool(pool)?;
        if found.device != device {
            return Err(Code::INVALID_VALUE);
        }
        state.device_pools.entry(device).or_default().chosen = Some(id);
        Ok(())
    }

    /// `CUgraphMem_attribute` counts as the pools do: used, its highest, reserved, its highest.
    fn cuDeviceGetGraphMemAttribute("cuDeviceGetGraphMemAttribute", 11040)(
        device: i32, attribute: u32, value: Out<u64>,
    ) {
        let order = [USED, USED_HIGH, RESERVED, RESERVED_HIGH];
        let wanted = order.get(attribute as usize).ok_or(Code::INVALID_VALUE)?;
        value.set(reading(usage(pools::of_graphs(device)?)?, *wanted)?)
    }

    fn cuDeviceGraphMemTrim("cuDeviceGraphMemTrim", 11040)(device: i32) {
        let pool = PoolId(pools::of_graphs(device)?);
        driver()?.call(Request::TrimPool(pool, 0)).map(|_| ())
    }
}

fn allocate(
    address: Out<u64>,
    bytes: usize,
    pool: Option<u32>,
    stream: simgpu_card::ids::StreamId,
) -> Answer {
    if address.is_null() {
        return Err(Code::INVALID_VALUE);
    }
    address.set(pools::allocate(bytes, pool, stream)?)
}

fn usage(pool: u32) -> Answer<PoolUse> {
    match driver()?.call(Request::PoolInfo(PoolId(pool)))?.answer {
        CardAnswer::Pool(usage) => Ok(usage),
        _ => Err(Code::UNKNOWN),
    }
}

fn reading(usage: PoolUse, attribute: u32) -> Answer<u64> {
    Ok(match attribute {
        RESERVED => usage.reserved,
        RESERVED_HIGH => usage.reserved_high,
        USED => usage.used,
        USED_HIGH => usage.used_high,
        _ => return Err(Code::INVALID_VALUE),
    })
}

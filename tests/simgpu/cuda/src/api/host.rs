//! Host memory: pinned by the driver, or the caller's own and registered.
//!
//! Both are the card's memfd at the caller's address: the card reads and writes it in place
//! (`registered.rs` says what memory of the caller's that is possible for).

use simgpu_card::wire::{Kind, Request};

use crate::api::memory;
use crate::api::prelude::*;
use crate::registered::{self, Pages, Range};
use crate::state::{Allocation, Source};

api! {
    fn cuMemAllocHost_v2("cuMemAllocHost", 3020)(pointer: Out<u64>, bytes: usize) {
        pinned(pointer, bytes, 0)
    }

    fn cuMemHostAlloc("cuMemHostAlloc", 2020)(pointer: Out<u64>, bytes: usize, flags: u32) {
        pinned(pointer, bytes, flags)
    }

    fn cuMemFreeHost("cuMemFreeHost", 2000)(pointer: u64) {
        if pointer == 0 {
            return Ok(());
        }
        memory::free(pointer, &[Kind::Pinned])
    }

    fn cuMemHostGetDevicePointer_v2("cuMemHostGetDevicePointer", 3020)(address: Out<u64>, pointer: u64, flags: u32) {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        let state = driver()?.state();
        match state.kind_at(pointer) {
            Some(Kind::Pinned | Kind::Managed) => address.set(pointer),
            _ if state.staged_at(pointer).is_some() => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemHostGetFlags("cuMemHostGetFlags", 2030)(flags: Out<u32>, pointer: u64) {
        let state = driver()?.state();
        let allocated = state.allocation_at(pointer).filter(|(_, found)| found.kind == Kind::Pinned);
        let staged = state.staged_at(pointer).map(|(_, _, flags)| flags);
        flags.set(allocated.map(|(_, found)| found.flags).or(staged).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMemHostRegister("cuMemHostRegister", 4000)
        = cuMemHostRegister_v2("cuMemHostRegister", 6050)(pointer: u64, bytes: usize, flags: u32) {
        register(Range::new(pointer, bytes)?, flags)
    }

    fn cuMemHostUnregister("cuMemHostUnregister", 4000)(pointer: u64) {
        unregister(pointer)
    }
}

fn pinned(pointer: Out<u64>, bytes: usize, flags: u32) -> Answer {
    const KNOWN_FLAGS: u32 = 7;
    if pointer.is_null() || flags > KNOWN_FLAGS {
        return Err(Code::INVALID_VALUE);
    }
    pointer.set(memory::allocate(bytes, Kind::Pinned, flags)?)
}

fn register(range: Range, flags: u32) -> Answer {
    const KNOWN_FLAGS: u32 = 15;
    let reads_only = flags & registered::READ_ONLY != 0;
    let Range { address, len } = range;
    let context = current::context()?;
    let driver = driver()?;
    driver.healthy()?;
    if flags > KNOWN_FLAGS {
        return Err(Code::INVALID_VALUE);
    }
    let device = current::device()?;
    if reads_only && !driver.gpu(device)?.description.read_only_registration {
        return Err(Code::NOT_SUPPORTED);
    }
    {
        let state = driver.state();
        if state.is_taken(address, len) {
            return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
        }
        if state.is_hole(address) {
            return Err(Code::INVALID_VALUE);
        }
    }
    let untouched = range.untouched();
    match range.pages() {
        Pages::Missing => return Err(Code::INVALID_VALUE),
        Pages::ReadOnly if !reads_only => return Err(Code::INVALID_VALUE),
        Pages::Private if !reads_only => {}
        Pages::Private | Pages::ReadOnly | Pages::Other => {
            driver.call(Request::PriceRegistration { len, untouched })?;
            driver.state().staged.insert(address, (len, flags));
            return Ok(());
        }
    }
    let reply = driver.call(Request::Register { address, len, untouched, context })?;
    let memory = reply.fd.ok_or(Code::UNKNOWN)?;
    let shared = registered::inode(&memory).and_then(|inode| range.share(&memory).map(|()| inode));
    let inode = match shared {
        Ok(inode) => inode,
        Err(error) => {
            driver.call(Request::Unregister(address))?;
            return Err(error);
        }
    };
    let source = Source::Registered { inode };
    let allocation = Allocation { len, kind: Kind::Pinned, context, flags, device, source };
    driver.state().allocations.insert(address, allocation);
    Ok(())
}

/// Ends a registration. It does not wait: a copy on its way to or from the memory fails. What a real driver
/// does then was not measured, and nobody should count on it.
fn unregister(address: u64) -> Answer {
    let driver = driver()?;
    driver.healthy()?;
    let mut state = driver.state();
    if let Some((len, _)) = state.staged.remove(&address) {
        drop(state);
        driver.call(Request::PriceUnregistration(len))?;
        return Ok(());
    }
    let Some(Allocation { len, source: Source::Registered { inode }, .. }) = state.allocations.get(&address)
    else {
        return Err(Code::HOST_MEMORY_NOT_REGISTERED);
    };
    let (range, inode) = (Range { address, len: *len }, *inode);
    state.allocations.remove(&address);
    drop(state);
    driver.call(Request::Unregister(address))?;
    range.unshare(inode)
}

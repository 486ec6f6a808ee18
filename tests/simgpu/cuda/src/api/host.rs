//! Host memory: pinned by the driver, or the caller's own and registered.
//!
//! Pinned memory is the card's memfd at the caller's address: the card reads and writes it in place.
//! Registered memory cannot be: copies of it go along in messages, as those of pageable memory, and kernels
//! do not reach it.

use simgpu_card::wire::Kind;

use crate::api::memory;
use crate::api::prelude::*;

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
        match driver()?.state().kind_at(pointer) {
            Some(Kind::Pinned | Kind::Managed) => address.set(pointer),
            _ if driver()?.state().registered_at(pointer).is_some() => Err(Code::NOT_SUPPORTED),
            _ => Err(Code::INVALID_VALUE),
        }
    }

    fn cuMemHostGetFlags("cuMemHostGetFlags", 2030)(flags: Out<u32>, pointer: u64) {
        let state = driver()?.state();
        let allocated = state.allocation_at(pointer).filter(|(_, found)| found.kind == Kind::Pinned);
        let registered = state.registered_at(pointer).map(|(_, _, flags)| flags);
        flags.set(allocated.map(|(_, found)| found.flags).or(registered).ok_or(Code::INVALID_VALUE)?)
    }

    fn cuMemHostRegister("cuMemHostRegister", 4000)
        = cuMemHostRegister_v2("cuMemHostRegister", 6050)(pointer: u64, bytes: usize, flags: u32) {
        register(pointer, bytes, flags)
    }

    fn cuMemHostUnregister("cuMemHostUnregister", 4000)(pointer: u64) {
        let found = driver()?.state().registered.remove(&pointer);
        found.map(|_| ()).ok_or(Code::HOST_MEMORY_NOT_REGISTERED)
    }
}

fn pinned(pointer: Out<u64>, bytes: usize, flags: u32) -> Answer {
    const KNOWN_FLAGS: u32 = 7;
    if pointer.is_null() || flags > KNOWN_FLAGS {
        return Err(Code::INVALID_VALUE);
    }
    pointer.set(memory::allocate(bytes, Kind::Pinned, flags)?)
}

fn register(pointer: u64, bytes: usize, flags: u32) -> Answer {
    current::context()?;
    let end = pointer
        .checked_add(bytes as u64)
        .filter(|_| pointer != 0 && bytes > 0)
        .ok_or(Code::INVALID_VALUE)?;
    let mut state = driver()?.state();
    if state.kind_at(pointer).is_some() || state.registered_at(pointer).is_some() {
        return Err(Code::HOST_MEMORY_ALREADY_REGISTERED);
    }
    state.registered.insert(pointer, (end - pointer, flags));
    Ok(())
}

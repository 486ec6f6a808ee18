//! Hooks of peer access, by which kernels of one device use the memory of another. A process that has got such access
//! is not frozen.

use std::ffi::c_int;

use super::location::Location;
use crate::driver::answer;
use crate::driver::contexts::Live;
use crate::driver::types::{ACCESS_NONE, Access, CUDA_SUCCESS, CUcontext, CUdevice, CUmemoryPool, CUresult};
use crate::freeze::facts::{NOTED, Noted};
use crate::memory::handles::Handles;
use crate::remap::vmm::Span;
use crate::state::State;

/// `cuCtxEnablePeerAccess`: maps managed memory in place of device memory for the current context's device.
pub fn enable(peer: CUcontext, real: impl FnOnce() -> CUresult) -> CUresult {
    let result = noted(real);
    if let (CUDA_SUCCESS, Some(state)) = (result, State::existing()) {
        let owner = state
            .contexts
            .visit()
            .iter()
            .find(|live| live.context() == peer)
            .map(Live::device);
        if let Some((owner, current)) = owner.zip(state.driver.current_device()) {
            state.memory.add_peer(owner, current);
        }
    }
    result
}

/// `cuMulticastCreate`: makes an object by which kernels reach the memory of several devices at once.
pub fn create_multicast(real: impl FnOnce() -> CUresult) -> CUresult {
    noted(real)
}

/// Makes a call, and notes that the process has peers if it succeeds.
fn noted(real: impl FnOnce() -> CUresult) -> CUresult {
    NOTED.note_if_done(Noted::Peers, real)
}

/// `cuMemPoolSetAccess`: notes that a device reaches the memory of another one, if a device gets access to the pool
/// that had none. The device of a pool always has access to it.
pub unsafe fn set_pool_access(
    pool: CUmemoryPool,
    access: *const Access,
    count: usize,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let ask = State::get().and_then(|state| state.driver.mem_pool_get_access);
    let had_access = |mut place: [c_int; 2]| {
        // SAFETY: reads a location and writes one integer; the pool is the application's.
        let flags =
            ask.and_then(|ask| answer(ACCESS_NONE, |flags| unsafe { ask(flags, pool, &raw mut place) }));
        flags.is_some_and(|flags| flags != ACCESS_NONE)
    };
    // SAFETY: readable, as the driver's function demands.
    let given = unsafe { given(access, count) };
    if given
        .iter()
        .any(|access| device(access).is_some() && !had_access(access.location))
    {
        noted(real)
    } else {
        real()
    }
}

/// Notes that a device reaches the memory of another one, if memory that is mapped in a range lives elsewhere than a
/// device that was given access to it.
pub(super) fn note_access(handles: &Handles, range: Span, given: &[Access]) {
    if reaches_peer(handles, range, given) {
        NOTED.note(Noted::Peers);
    }
}

fn reaches_peer(handles: &Handles, range: Span, given: &[Access]) -> bool {
    given
        .iter()
        .filter_map(device)
        .any(|device| handles.has_memory_elsewhere(range, device))
}

/// Returns the device that gets access; `None` for another place, and if access is taken away.
fn device(access: &Access) -> Option<CUdevice> {
    let [kind, id] = access.location;
    Location { kind, id }.device().filter(|_| access.flags != ACCESS_NONE)
}

/// Returns the accesses of a call.
///
/// # Safety
/// `access` is null or has `count` readable elements, which live for the lifetime.
pub(super) unsafe fn given<'a>(access: *const Access, count: usize) -> &'a [Access] {
    if access.is_null() {
        return &[];
    }
    // SAFETY: readable, as the caller promises.
    unsafe { std::slice::from_raw_parts(access, count) }
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Bytes;

    use super::*;
    use crate::driver::types::{ACCESS_READ_WRITE, LOCATION_DEVICE};
    use crate::memory::handles::Charge;

    const HERE: Span = Span { address: 0x10000, size: Bytes(0x2000) };

    fn access(device: c_int, flags: c_int) -> Access {
        Access { location: [LOCATION_DEVICE, device], flags }
    }

    /// Memory of device 0, and of device 1 behind it.
    fn mapped() -> Handles {
        let mut handles = Handles::default();
        for (device, handle, address) in [(0, 7, 0x10000), (1, 8, 0x11000)] {
            handles.create(handle, Charge::fixed(device, Bytes(0x1000)));
            handles.map(address, Bytes(0x1000), handle);
        }
        handles
    }

    #[test]
    fn only_access_to_memory_of_another_device_is_that_of_a_peer() {
        let handles = mapped();
        let first = Span { size: Bytes(0x1000), ..HERE };
        let own = access(0, ACCESS_READ_WRITE);
        assert!(!reaches_peer(&handles, first, &[own]), "as a program on one card does");
        assert!(reaches_peer(&handles, first, &[own, access(1, ACCESS_READ_WRITE)]));
        assert!(!reaches_peer(&handles, first, &[access(1, ACCESS_NONE)]), "it is taken away");
        assert!(reaches_peer(&handles, HERE, &[own]), "a part of the range is device 1's");
    }

    #[test]
    fn access_of_a_host_node_is_no_peers() {
        let host = Access { location: [3, 1], flags: ACCESS_READ_WRITE };
        assert!(!reaches_peer(&mapped(), HERE, &[host]));
    }
}

//! Hooks of virtual memory management, in which the application creates memory by handle and maps it. The
//! session is charged from the creation until the last use of a handle or mapping (`memory/handles.rs`).
//!
//! Under the backend `remap`, plain memory that is mapped once is *adopted* by the engine, which moves it
//! like memory of `cuMemAlloc`. The application has a name for it in place of the driver's handle
//! (`memory/handles/own.rs`).

use gpushare_proto::Bytes;
use gpushare_sys::unwind::uncancelled;

use super::allocation::await_room;
use super::handles::{after, at_driver, known, with_names};
use super::location::Location;
use super::{peers, work};
use crate::driver::contexts::Visit;
use crate::driver::types::{
    ACCESS_READ_WRITE, Access, AllocationProperties, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUdevice,
    CUdeviceptr, CUmemHandle, CUresult, LOCATION_DEVICE,
};
use crate::freeze::facts::{NOTED, Noted};
use crate::gate::Pass;
use crate::memory::handles::{Charge, Handles, is_holder, is_name};
use crate::process::is_exiting;
use crate::remap::vmm::Span;
use crate::state::State;

/// Range of all addresses.
const EVERYWHERE: Span = Span { address: 0, size: Bytes::MAX };

const fn range(address: CUdeviceptr, size: usize) -> Span {
    Span { address, size: Bytes(size as u64) }
}

/// `cuMemCreate`: charges the session on the device in the memory's properties. Memory that gpushare can move
/// gets a name in place of the driver's handle.
pub unsafe fn create(
    handle: *mut CUmemHandle,
    size: usize,
    properties: *const AllocationProperties,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    if handle.is_null() || properties.is_null() {
        return real();
    }
    // SAFETY: readable, as the driver's function demands.
    let properties = unsafe { properties.read() };
    let [kind, id] = properties.location();
    let device = Location { kind, id }.device();
    if device.is_none() {
        NOTED.note(Noted::HostHandles);
    }
    let state = State::get().filter(|_| !is_holder());
    let (Some(state), Some(device)) = (state, device) else {
        return real();
    };
    // The call may come before any context.
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    if state.memory.lease.gpu(device).is_none() {
        return real();
    }
    let mut create = || match real() {
        // SAFETY: written by the driver.
        CUDA_SUCCESS => Ok(unsafe { handle.read() }),
        error => Err(error),
    };
    let bytes = Bytes(size as u64);
    if state.memory.can_move(device, bytes, &properties) {
        let charge = Charge::movable(device, bytes);
        let named = || {
            let parts = (&state.driver, &state.contexts);
            let made = await_room(state, device, |want| {
                state.memory.create_own(parts, charge, properties, want, &mut create)
            });
            match made {
                Ok(name) => {
                    // SAFETY: writable, as the driver's function demands.
                    unsafe { handle.write(name) };
                    CUDA_SUCCESS
                }
                Err(error) => error,
            }
        };
        return state.memory.reserve_and_call(device, bytes, charge.kind, named);
    }
    let charge = Charge::fixed(device, bytes);
    let call = || {
        // The lock is not held while the daemon is asked, which may not answer.
        let mut handles = state.memory.handles();
        match create() {
            Ok(made) => {
                handles.create(made, charge);
                CUDA_SUCCESS
            }
            Err(error) => error,
        }
    };
    state.memory.reserve_and_call(device, bytes, charge.kind, call)
}

/// `cuMemRelease`: removes a handle. Mapped memory lives on and stays charged.
pub fn release(handle: CUmemHandle, real: impl FnOnce() -> CUresult) -> CUresult {
    if !is_name(handle) {
        return after(real, |handles| handles.release(handle));
    }
    let Some(state) = known() else { return CUDA_ERROR_INVALID_VALUE };
    let mut handles = state.memory.handles();
    if handles.properties(handle).is_none() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let ended = handles.release(handle);
    drop(handles);
    state.memory.end_pieces(ended);
    CUDA_SUCCESS
}

/// `cuMemMap`: records one more use of the memory.
pub fn map(
    address: CUdeviceptr,
    size: usize,
    handle: CUmemHandle,
    real: impl FnOnce(CUmemHandle) -> CUresult,
) -> CUresult {
    let Some(state) = with_names() else {
        return after(
            || real(handle),
            |handles| {
                handles.map(address, Bytes(size as u64), handle);
                None
            },
        );
    };
    let mut there = match at_driver(state, |handles| handles.adopted_of(handle)) {
        Ok(there) => there,
        Err(error) => return error,
    };
    let held = there.handles.with_driver(handle);
    // Where memory is away the driver sees none, and would map the other there.
    let is_taken = !there.handles.adopted_in(range(address, size)).is_empty();
    let result = there.run(|| held.filter(|_| !is_taken).map_or(CUDA_ERROR_INVALID_VALUE, real));
    if result == CUDA_SUCCESS {
        there.handles.map(address, Bytes(size as u64), handle);
    }
    result
}

/// `cuMemUnmap`: gives quota back for memory without further use. Memory that ends with this mapping is not
/// brought back before. At the exit nothing is: the gate may be closed for good.
pub fn unmap(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    // As the driver answers for memory of `cuMemAlloc`.
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let range = range(address, size);
    let Some(state) = with_names() else {
        return after(real, |handles| handles.unmap(address, range.size));
    };
    let handles = state.memory.handles();
    if let Some(ending) = handles.ends_with(range, is_exiting()) {
        let unmapped = uncancelled(|| state.memory.unmap_adopted(handles, &ending));
        return unmapped.err().unwrap_or(CUDA_SUCCESS);
    }
    drop(handles);
    let mut there = match at_driver(state, |handles| handles.adopted_in(range)) {
        Ok(there) => there,
        Err(error) => return error,
    };
    let result = there.run(real);
    if result == CUDA_SUCCESS {
        let ended = state.memory.note_unmapped(&mut there.handles, range);
        drop(there);
        state.memory.end_pieces(ended);
    }
    result
}

/// `cuMemSetAccess`: refuses memory of `cuMemAlloc`, as the driver does. Memory that the application has
/// mapped for the kernels of its own device alone moves from then on. A process whose devices reach the memory of
/// each other is not frozen.
pub unsafe fn set_access(
    address: CUdeviceptr,
    size: usize,
    access: *const Access,
    count: usize,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let range = range(address, size);
    // SAFETY: readable, as the driver's function demands.
    let given = unsafe { peers::given(access, count) };
    let Some(state) = with_names() else {
        return after(real, |handles| {
            peers::note_access(handles, range, given);
            None
        });
    };
    call_on(state, range, real, |handles| {
        peers::note_access(handles, range, given);
        let device = match given {
            [Access { location: [LOCATION_DEVICE, device], flags: ACCESS_READ_WRITE }] => Some(*device),
            _ => None,
        };
        // The device is a peer to memory of other devices in the range. A peer's access would be lost when
        // that memory moved.
        handles.keep_but(range, device);
        if let Some(device) = device {
            uncancelled(|| state.memory.adopt(handles, range, device));
        }
    })
}

/// `cuMemAddressFree`: refuses addresses at which memory is mapped, as the driver does where it sees the
/// memory.
pub fn free_addresses(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(state) = with_names() else { return real() };
    let handles = state.memory.handles();
    if handles.adopted_in(range(address, size)).is_empty() {
        real()
    } else {
        CUDA_ERROR_INVALID_VALUE
    }
}

/// `cuMulticastBindAddr`: refuses memory of `cuMemAlloc`, as the driver does. Memory that the application has
/// mapped itself stays from now on.
pub fn bind(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    stay(address, size, real)
}

/// Runs a call by which something remembers the physical memory of a range. Memory there that the application
/// has mapped itself stays from now on.
pub(super) fn stay(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = with_names() else { return real() };
    let range = range(address, size);
    call_on(state, range, real, |handles| handles.keep_in(range))
}

/// Calls the driver on a range, while memory there that the application has mapped itself is the driver's.
/// After a success runs `note`, with the table of handles still locked.
fn call_on(
    state: &'static State,
    range: Span,
    real: impl FnOnce() -> CUresult,
    note: impl FnOnce(&mut Handles),
) -> CUresult {
    let mut there = match at_driver(state, |handles| handles.adopted_in(range)) {
        Ok(there) => there,
        Err(error) => return error,
    };
    let result = there.run(real);
    if result == CUDA_SUCCESS {
        note(&mut there.handles);
    }
    result
}

/// Runs a call that binds the memory of a handle to something, or gives it to another process. The memory
/// stays from now on.
pub fn give(handle: CUmemHandle, real: impl FnOnce(CUmemHandle) -> CUresult) -> CUresult {
    if !is_name(handle) {
        return real(handle);
    }
    let Some(state) = known() else { return CUDA_ERROR_INVALID_VALUE };
    let mut there = match at_driver(state, |handles| handles.adopted_of(handle)) {
        Ok(there) => there,
        Err(error) => return error,
    };
    let held = there.handles.with_driver(handle);
    let result = there.run(|| held.map_or(CUDA_ERROR_INVALID_VALUE, real));
    if result == CUDA_SUCCESS {
        there.handles.keep_named(handle);
    }
    result
}

/// `cuMemGetAllocationPropertiesFromHandle`: answers for a name what the application asked for.
pub unsafe fn describe(
    properties: *mut AllocationProperties,
    handle: CUmemHandle,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if !is_name(handle) {
        return real();
    }
    let made = known().and_then(|state| state.memory.handles().properties(handle));
    let Some(made) = made.filter(|_| !properties.is_null()) else {
        return CUDA_ERROR_INVALID_VALUE;
    };
    // SAFETY: writable, as the driver's function demands.
    unsafe { properties.write(made) };
    CUDA_SUCCESS
}

/// `cuMemRetainAllocationHandle`: adds a use of mapped memory. Managed memory in place of device memory has
/// no handle, since a peer that maps the handle would see other data.
pub unsafe fn retain(
    handle: *mut CUmemHandle,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    if super::identity::moves(address).is_some() {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if let Some(state) = with_names().filter(|_| !handle.is_null())
        && let Some(name) = state.memory.handles().retain_own(address)
    {
        // SAFETY: writable, as the driver's function demands.
        unsafe { handle.write(name) };
        return CUDA_SUCCESS;
    }
    after(real, |handles| {
        if !handle.is_null() {
            // SAFETY: the driver just wrote it.
            handles.retain(unsafe { handle.read() }, address);
        }
        None
    })
}

/// Visits the contexts for a call that may end one, of the device that `device` returns. If it is the
/// device's last one, and memory there that the application has mapped itself may move, the thread passes the
/// gate before. While the pass lives, the memory is on its card.
pub(super) fn visit_to_end(
    state: &'static State,
    device: impl Fn(&Visit<'static>) -> Option<CUdevice>,
) -> (Option<Pass<'static>>, Visit<'static>) {
    let is_last = |live: &Visit<'static>| device(live).filter(|&device| live.count(device) == 1);
    let needs_pass = |live: &Visit<'static>| {
        // At the exit nobody needs the memory any more.
        is_last(live).is_some_and(|device| state.memory.remap.has_adopted(device)) && !is_exiting()
    };
    let live = state.contexts.visit_to_destroy();
    if !needs_pass(&live) {
        return (None, live);
    }
    drop(live);
    // A program whose wait is interrupted ends.
    (work::pass().ok(), state.contexts.visit_to_destroy())
}

/// Leaves memory that the application has mapped itself to the driver, since the last context of the device
/// has ended. Without one, no memory can be copied.
pub(super) fn end_last_context(state: &State, device: CUdevice) {
    if with_names().is_some() && !is_exiting() {
        let mut handles = state.memory.handles();
        let mut adopted = handles.adopted_in(EVERYWHERE);
        adopted.retain(|adopted| adopted.device == device);
        // After a failure the rest is away or lost, too. What is away comes back with the next context.
        let mut give = |memory| uncancelled(|| state.memory.give_to_driver(&mut handles, &[memory]));
        let _ = adopted.into_iter().try_for_each(&mut give);
    }
}

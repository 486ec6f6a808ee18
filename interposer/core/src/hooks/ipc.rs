//! Hooks of memory that is shared with other processes. Remapped memory is given to them by handles of
//! gpushare's own, which no driver sees. The driver cannot share managed memory, so a program with `--backend
//! managed` cannot share its memory. Shared memory is charged to the process that created it.

use std::sync::atomic::AtomicBool;

use gpushare_sys::unwind::uncancelled;

use super::addresses::look;
use super::identity::moves;
use super::mapping;
use crate::driver::types::{
    CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED, CUDA_SUCCESS,
    CUdeviceptr, CUmemHandle, CUresult, IPC_LAZY_PEER_ACCESS,
};
use crate::freeze::facts::{NOTED, Noted};
use crate::memory::allocations::{Block, Origin};
use crate::process::stderr;
use crate::remap::pins::Reason;
use crate::sharing::handle::{Handle, RawHandle};
use crate::state::State;

/// `cuMemExportToShareableHandle`: gives out memory of a handle, which stays where it is from then on.
pub fn export_handle(handle: CUmemHandle, real: impl FnOnce(CUmemHandle) -> CUresult) -> CUresult {
    mapping::give(handle, |handle| share(|| real(handle)))
}

/// `cuIpcGetMemHandle`: gives out remapped memory, which stays where it is from then on. Refuses managed
/// memory in place of device memory, and prints the reason.
pub unsafe fn give_out(
    handle: *mut RawHandle,
    address: CUdeviceptr,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    match moves(address) {
        None => share(real),
        Some((start, block)) if block.origin == Origin::Remapped => {
            if handle.is_null() {
                return CUDA_ERROR_INVALID_VALUE;
            }
            // Inside the gate, so that the memory is not away when it becomes immovable.
            look(|| match export(start, &block) {
                Ok(made) => {
                    // SAFETY: writable, as the driver's function demands.
                    unsafe { handle.write_unaligned(made.to_raw()) };
                    CUDA_SUCCESS
                }
                Err(error) => error,
            })
        }
        // Memory of another process is not given on, as with the driver.
        Some((_, block)) if block.origin == Origin::Imported => CUDA_ERROR_INVALID_VALUE,
        Some(_) => refuse(),
    }
}

/// Calls of the driver by which memory or events go from one process to another: a process that has made one
/// is not frozen.
pub fn share(real: impl FnOnce() -> CUresult) -> CUresult {
    // Before the call, so that the process does not park in between.
    NOTED.note(Noted::Shared);
    real()
}

fn export(start: CUdeviceptr, block: &Block) -> Result<Handle, CUresult> {
    let state = State::existing().ok_or(CUDA_ERROR_NOT_SUPPORTED)?;
    let exporter = state.daemon.link().ok_or(CUDA_ERROR_NOT_SUPPORTED)?.identity().client;
    let exported = uncancelled(|| state.memory.remap.export(block.device, start, exporter));
    let (export, offset) = exported.inspect_err(|&error| {
        if error == CUDA_ERROR_NOT_SUPPORTED {
            refuse();
        }
    })?;
    Ok(Handle { export, offset, size: block.size })
}

/// `cuIpcOpenMemHandle`: opens remapped memory of another process.
pub unsafe fn open(
    address: *mut CUdeviceptr,
    handle: &RawHandle,
    flags: u32,
    real: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(handle) = Handle::from_raw(handle) else { return share(real) };
    if address.is_null() || flags != IPC_LAZY_PEER_ACCESS {
        return CUDA_ERROR_INVALID_VALUE;
    }
    let Some(state) = State::get() else { return real() };
    let Some(device) = state.driver.current_device() else {
        return CUDA_ERROR_INVALID_CONTEXT;
    };
    if let Err(refused) = state.admit(device) {
        return refused;
    }
    let Some(link) = state.daemon.link() else {
        static PRINTED: AtomicBool = AtomicBool::new(false);
        stderr::print_once(
            &PRINTED,
            format_args!(
                "memory of a program that gpushare runs cannot be opened without it; start this program with \
                 `gpushare-ctl run`, too"
            ),
        );
        return CUDA_ERROR_INVALID_VALUE;
    };
    let device_of = |uuid| state.device_of(uuid);
    match uncancelled(|| state.memory.open_import(link, &handle, device, device_of)) {
        Ok(opened) => {
            // SAFETY: writable, as the driver's function demands.
            unsafe { address.write(opened) };
            CUDA_SUCCESS
        }
        Err(error) => error,
    }
}

/// `cuIpcCloseMemHandle`: closes remapped memory of another process.
pub fn close(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    let close = |state: &State| uncancelled(|| state.memory.close_import(address));
    State::existing().and_then(close).unwrap_or_else(real)
}

/// `cuMemGetHandleForAddressRange`: refuses memory that gpushare can move, and prints the reason.
pub fn hand_out(address: CUdeviceptr, size: usize, real: impl FnOnce() -> CUresult) -> CUresult {
    if moves(address).is_none() {
        return mapping::stay(address, size, || share(real));
    }
    refuse()
}

/// `cuPointerSetAttribute`: prints a reason if the call fails for memory that gpushare can move. Remapped
/// memory with an attribute of its pages stays on the card from then on.
pub fn prepare(address: CUdeviceptr, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some((start, block)) = moves(address) else { return mapping::stay(address, 1, real) };
    look(|| {
        let result = real();
        match State::existing() {
            Some(state) if result == CUDA_SUCCESS && block.origin == Origin::Remapped => {
                // Before this thread leaves the gate, so that the memory stays.
                state.memory.remap.pin(block.device, start, Reason::SyncMemops);
            }
            _ if result != CUDA_SUCCESS => {
                refuse();
            }
            _ => {}
        }
        result
    })
}

/// Prints why memory is not shared, and returns the result for the application.
fn refuse() -> CUresult {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    stderr::print_once(
        &PRINTED,
        format_args!(
            "this program shares device memory with another process or device, but memory that gpushare can move \
             cannot be shared; start it with `gpushare-ctl run --backend native` (or GPUSHARE_BACKEND=native), \
             then its memory stays on the card; for CUDA IPC, `--backend remap` does too"
        ),
    );
    CUDA_ERROR_NOT_SUPPORTED
}

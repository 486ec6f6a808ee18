//! A libcuda that does nothing, so that what stands before the driver is all that is measured: one card,
//! one context, and memory that is only numbers. It has every function of a driver, those that the library
//! calls written out here and the others made by `build.rs`, and every call succeeds.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where the one context seems to be, and every other handle.
const HANDLE: *mut c_void = std::ptr::without_provenance_mut(0x1000);
/// Memory that the card reports.
const MEMORY: usize = 16 << 30;
/// Alignment of addresses.
const ALIGNMENT: u64 = 512;

/// The next address: never one twice, so that nothing depends on what was freed.
static NEXT: AtomicU64 = AtomicU64::new(1 << 40);

/// Functions of the driver that write one value through their first pointer, or none, and answer success.
macro_rules! driver {
    ($($name:ident($($argument:ident: $type:ty),*) $(writes $target:ident = $value:expr)?;)*) => { $(
        /// Answers success.
        ///
        /// # Safety
        /// The caller keeps the rules of the CUDA driver API. Pointers that are not written to are not read either.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "the driver's own signature")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            $(let _ = $argument;)*
            // SAFETY: the caller's pointer is writable.
            $(unsafe { $target.write($value) };)?
            0
        }
    )* };
}

driver! {
    cuLaunchKernel(
        function: *mut c_void, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint,
        block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint,
        stream: *mut c_void, parameters: *mut *mut c_void, extra: *mut *mut c_void
    );

    cuDriverGetVersion(version: *mut c_int) writes version = 13_000;
    cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) writes uuid = *b"no-op libcuda 01";
    cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) writes uuid = *b"no-op libcuda 01";
    cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) writes name = 0;
    cuDeviceTotalMem_v2(total: *mut usize, device: c_int) writes total = MEMORY;

    cuDevicePrimaryCtxRetain(context: *mut *mut c_void, device: c_int) writes context = HANDLE;
    cuDevicePrimaryCtxGetState(device: c_int, flags: *mut c_uint, active: *mut c_int) writes active = 1;
    cuCtxGetDevice(device: *mut c_int) writes device = 0;
    cuCtxGetCurrent(context: *mut *mut c_void) writes context = HANDLE;
    cuCtxPushCurrent_v2(context: *mut c_void);
    cuCtxPopCurrent_v2(context: *mut *mut c_void) writes context = HANDLE;
    cuCtxSynchronize();

    cuMemAlloc_v2(address: *mut u64, size: usize) writes address = fresh(size);
    cuMemAllocManaged(address: *mut u64, size: usize, flags: c_uint) writes address = fresh(size);
    cuMemFree_v2(address: u64);
    cuMemPrefetchAsync(address: u64, size: usize, device: c_int, stream: *mut c_void);

    cuStreamCreate(stream: *mut *mut c_void, flags: c_uint) writes stream = HANDLE;
    cuStreamSynchronize(stream: *mut c_void);
    cuStreamSynchronize_ptsz(stream: *mut c_void);
    cuEventCreate(event: *mut *mut c_void, flags: c_uint) writes event = HANDLE;
    cuEventQuery(event: *mut c_void);
    cuThreadExchangeStreamCaptureMode(mode: *mut c_int) writes mode = 0;
}

fn fresh(size: usize) -> u64 {
    let size = (size as u64).next_multiple_of(ALIGNMENT);
    NEXT.fetch_add(size, Ordering::Relaxed)
}

/// Entry of the lookup table: one export.
struct Known {
    base: &'static [u8],
    version: c_int,
    per_thread: bool,
    function: *const c_void,
}

// SAFETY: the addresses of functions, which never change.
unsafe impl Sync for Known {}

include!(concat!(env!("OUT_DIR"), "/exports.rs"));

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD_STREAM: u64 = 2;

/// The newest variant that is not newer than `version`: the one thing that this driver really does.
///
/// # Safety
/// The caller keeps the rules of the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    answer: *mut *const c_void,
    version: c_int,
    flags: u64,
) -> c_int {
    // SAFETY: the caller's name ends with a NUL.
    let base = unsafe { CStr::from_ptr(symbol) }.to_bytes();
    let from = KNOWN.partition_point(|known| known.base < base);
    let mut found = std::ptr::null();
    for known in KNOWN[from..].iter().take_while(|known| known.base == base) {
        // Twins come last, and are for who asks for them.
        if known.version <= version && (!known.per_thread || flags & PER_THREAD_STREAM != 0) {
            found = known.function;
        }
    }
    // SAFETY: the caller's pointer is writable.
    unsafe { answer.write(found) };
    if found.is_null() { NOT_FOUND } else { 0 }
}

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: c_int = 500;

/// Looks a function up like `cuGetProcAddress`, and reports a status.
///
/// # Safety
/// The caller keeps the rules of the CUDA driver API.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    answer: *mut *const c_void,
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        status.write(0);
        cuGetProcAddress(symbol, answer, version, flags)
    }
}

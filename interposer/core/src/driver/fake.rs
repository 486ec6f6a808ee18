//! Driver for tests: its answers are those that the calling thread has set.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::without_provenance_mut;

use super::Driver;
use super::types::{
    CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUresult,
    CUstream,
};

/// Stream that the driver makes for gpushare.
pub(crate) const OURS: usize = 0x9000;
const EVENT: usize = 0x8000;

/// Answers of the driver, all of which are successes at first.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Answer of `cuCtxPushCurrent`.
    pub(crate) push: CUresult,
    /// Answer of `cuCtxRecordEvent`.
    pub(crate) record: CUresult,
    /// Answer of `cuCtxSynchronize`.
    pub(crate) synchronize: CUresult,
    /// Answer of `cuEventQuery`.
    pub(crate) event: CUresult,
    /// Answers of `cuStreamQuery` by stream.
    pub(crate) streams: BTreeMap<usize, CUresult>,
    /// Capture status by stream, or the error of the question.
    pub(crate) captures: BTreeMap<usize, Result<c_int, CUresult>>,
    /// Size of the card.
    pub(crate) memory: usize,
    /// Version of CUDA that the driver has.
    pub(crate) version: c_int,
    /// Sizes of the parameters of each kernel of a library.
    pub(crate) parameters: BTreeMap<usize, Vec<usize>>,
    /// Prefetches so far: address, bytes and device.
    pub(crate) prefetched: Vec<(CUdeviceptr, usize, CUdevice)>,
}

thread_local! {
    static ANSWERS: RefCell<Answers> = RefCell::default();
}

/// Changes the answers that the calling thread gets, or reads them.
pub(crate) fn answers<T>(change: impl FnOnce(&mut Answers) -> T) -> T {
    ANSWERS.with_borrow_mut(change)
}

/// Returns the driver, with its first answers.
pub(crate) fn driver() -> Driver {
    answers(|answers| *answers = Answers::default());
    Driver::load(function).unwrap()
}

fn function(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"cuCtxPushCurrent_v2" => push as *mut c_void,
        b"cuCtxPopCurrent_v2" => pop as *mut c_void,
        b"cuCtxRecordEvent" => record as *mut c_void,
        b"cuCtxSynchronize" => synchronize as *mut c_void,
        b"cuEventCreate" => create_event as *mut c_void,
        b"cuEventQuery" => query_event as *mut c_void,
        b"cuStreamCreate" => create_stream as *mut c_void,
        b"cuStreamQuery" => query_stream as *mut c_void,
        b"cuStreamIsCapturing" => is_capturing as *mut c_void,
        b"cuDeviceTotalMem_v2" => total as *mut c_void,
        b"cuDriverGetVersion" => version as *mut c_void,
        b"cuMemPrefetchAsync" => prefetch as *mut c_void,
        b"cuFuncGetParamInfo" => no_function as *mut c_void,
        b"cuKernelGetParamInfo" => parameter as *mut c_void,
        _ => unexpected as *mut c_void,
    }
}

extern "C-unwind" fn unexpected() -> CUresult {
    panic!("the test does not expect this call")
}

extern "C-unwind" fn push(_: CUcontext) -> CUresult {
    answers(|answers| answers.push)
}

extern "C-unwind" fn pop(_: *mut CUcontext) -> CUresult {
    CUDA_SUCCESS
}

extern "C-unwind" fn record(_: CUcontext, _: CUevent) -> CUresult {
    answers(|answers| answers.record)
}

extern "C-unwind" fn synchronize() -> CUresult {
    answers(|answers| answers.synchronize)
}

unsafe extern "C-unwind" fn create_event(event: *mut CUevent, _: c_uint) -> CUresult {
    // SAFETY: writable, as for the driver.
    unsafe { event.write(without_provenance_mut(EVENT)) };
    CUDA_SUCCESS
}

extern "C-unwind" fn query_event(_: CUevent) -> CUresult {
    answers(|answers| answers.event)
}

unsafe extern "C-unwind" fn create_stream(stream: *mut CUstream, _: c_uint) -> CUresult {
    // SAFETY: writable, as for the driver.
    unsafe { stream.write(without_provenance_mut(OURS)) };
    CUDA_SUCCESS
}

extern "C-unwind" fn query_stream(stream: CUstream) -> CUresult {
    answers(|answers| answers.streams.get(&stream.addr()).copied().unwrap_or_default())
}

unsafe extern "C-unwind" fn is_capturing(stream: CUstream, status: *mut c_int) -> CUresult {
    let known = answers(|answers| answers.captures.get(&stream.addr()).copied());
    match known.unwrap_or(Ok(0)) {
        Ok(known) => {
            // SAFETY: writable, as for the driver.
            unsafe { status.write(known) };
            CUDA_SUCCESS
        }
        Err(error) => error,
    }
}

unsafe extern "C-unwind" fn total(bytes: *mut usize, _: CUdevice) -> CUresult {
    // SAFETY: writable, as for the driver.
    unsafe { bytes.write(answers(|answers| answers.memory)) };
    CUDA_SUCCESS
}

unsafe extern "C-unwind" fn version(version: *mut c_int) -> CUresult {
    // SAFETY: writable, as for the driver.
    unsafe { version.write(answers(|answers| answers.version)) };
    CUDA_SUCCESS
}

extern "C-unwind" fn no_function(_: CUfunction, _: usize, _: *mut usize, _: *mut usize) -> CUresult {
    CUDA_ERROR_INVALID_VALUE
}

unsafe extern "C-unwind" fn parameter(
    kernel: CUfunction,
    index: usize,
    _: *mut usize,
    size: *mut usize,
) -> CUresult {
    let sizes = |answers: &mut Answers| answers.parameters.get(&kernel.addr())?.get(index).copied();
    let Some(found) = answers(sizes) else { return CUDA_ERROR_INVALID_VALUE };
    // SAFETY: writable, as for the driver.
    unsafe { size.write(found) };
    CUDA_SUCCESS
}

extern "C-unwind" fn prefetch(address: CUdeviceptr, bytes: usize, device: CUdevice, _: CUstream) -> CUresult {
    answers(|answers| answers.prefetched.push((address, bytes, device)));
    CUDA_SUCCESS
}

//! The two ways in which a program that does not link libcuda finds its functions.

use std::error::Error;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use clap::ValueEnum;
use libloading::Library;

use crate::error::CudaError;

/// How functions are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Resolve {
    /// `dlsym` of the exported name, as Triton, NCCL, numba and ctypes do.
    #[default]
    Dlsym,
    /// `cuGetProcAddress` with base name and version, as libcudart does.
    ProcAddress,
    /// `cuGetProcAddress` with the per-thread default stream's variants (`_ptsz`).
    ProcAddressPerThread,
}

type GetProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;
/// The CUDA version that brought the per-thread default stream: asked for less, a driver has no such variant.
const PER_THREAD_SINCE: c_int = 7000;

/// An opened libcuda.
pub(crate) struct Symbols {
    library: &'static Library,
    proc_address: Option<(GetProcAddress, u64)>,
}

impl Symbols {
    /// Opens the library and never closes it: the driver does not survive being unloaded.
    pub(crate) fn open(resolve: Resolve) -> Result<Self, CudaError> {
        // SAFETY: libcuda's initialisers are the driver's own and have no preconditions.
        let library =
            unsafe { Library::new("libcuda.so.1") }.map_err(|error| CudaError::NoDriver(reason(&error)))?;
        let library: &'static Library = Box::leak(Box::new(library));
        let flags = match resolve {
            Resolve::Dlsym => None,
            Resolve::ProcAddress => Some(LEGACY_STREAM),
            Resolve::ProcAddressPerThread => Some(PER_THREAD_STREAM),
        };
        let proc_address = match flags {
            None => None,
            Some(flags) => {
                // SAFETY: the driver's headers give this export this signature.
                let function = unsafe { library.get::<GetProcAddress>("cuGetProcAddress_v2") }
                    .map_err(|_| CudaError::Missing("cuGetProcAddress_v2"))?;
                Some((*function, flags))
            }
        };
        Ok(Self { library, proc_address })
    }

    /// The address of one function, if the driver has it.
    pub(crate) fn find(&self, base: &str, export: &str, version: c_int) -> Option<*mut c_void> {
        match self.proc_address {
            Some((get, flags)) => {
                let version =
                    if flags == PER_THREAD_STREAM { version.max(PER_THREAD_SINCE) } else { version };
                let name = CString::new(base).ok()?;
                let mut address = ptr::null_mut();
                let mut status = 0;
                // SAFETY: the name is NUL-terminated and both results are writable.
                let code = unsafe { get(name.as_ptr(), &raw mut address, version, flags, &raw mut status) };
                (code == 0 && !address.is_null()).then_some(address)
            }
            None => {
                // SAFETY: only the address is taken here; the table gives it its signature.
                let symbol = unsafe { self.library.get::<*mut c_void>(export) }.ok()?;
                Some(*symbol)
            }
        }
    }
}

/// The loader's own words, which it keeps one level down.
fn reason(error: &libloading::Error) -> String {
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

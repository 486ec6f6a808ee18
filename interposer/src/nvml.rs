//! NVML: the functions that report memory, processes and utilization. A macro makes an export and its row
//! from each line:
//!
//! ```text
//!   [hook] name(arguments);      calls hook(the library's function, arguments)
//! ```

use std::ffi::c_uint;

use gpushare_client::nvml::memory::{info, info_v2};
use gpushare_client::nvml::processes::{accounting, details, own, running};
use gpushare_client::nvml::rows::Table;
use gpushare_client::nvml::samples::{infos, samples};
use gpushare_client::nvml::types::{
    Device, Memory, MemoryV2, Process1, Process2, ProcessDetailList, Sample, SampleInfos, Utilization,
};
use gpushare_client::nvml::utilization::rates;

use crate::hook::Pointer;

macro_rules! functions {
    ($([$hook:path] $name:ident($($arg:ident: $type:ty),*);)*) => {
        $(
            mod $name {
                pub(super) static ROW: gpushare_client::nvml::rows::Row = gpushare_client::nvml::rows::Row::new(
                    concat!(stringify!($name), "\0"),
                    super::$name as *const std::ffi::c_void,
                );
            }

            /// Calls NVML's function of this name through gpushare's hook.
            #[unsafe(no_mangle)]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> gpushare_client::nvml::types::NvmlReturn {
                // 999 is the unknown error of NVML and of CUDA, so the guard of CUDA hooks serves here too.
                gpushare_client::process::panics::guest(|| {
                    let real = $name::ROW.real();
                    if real.is_null() {
                        return gpushare_client::nvml::types::NVML_ERROR_FUNCTION_NOT_FOUND;
                    }
                    // SAFETY: the library's export of this name has this type (NVML API); the arguments are
                    // the application's own.
                    unsafe {
                        let real = std::mem::transmute::<
                            *mut std::ffi::c_void,
                            unsafe extern "C-unwind" fn($($type),*) -> gpushare_client::nvml::types::NvmlReturn,
                        >(real);
                        $hook(real, $($arg),*)
                    }
                })
            }
        )*

        pub(crate) static NVML: Table = Table(&[$(&$name::ROW),*]);
    };
}

functions! {
    [info] nvmlDeviceGetMemoryInfo(device: Device, memory: *mut Memory);
    [info_v2] nvmlDeviceGetMemoryInfo_v2(device: Device, memory: *mut MemoryV2);

    [running] nvmlDeviceGetComputeRunningProcesses(device: Device, count: *mut c_uint, infos: *mut Process1);
    [running] nvmlDeviceGetComputeRunningProcesses_v2(device: Device, count: *mut c_uint, infos: *mut Process2);
    [running] nvmlDeviceGetComputeRunningProcesses_v3(device: Device, count: *mut c_uint, infos: *mut Process2);
    [own] nvmlDeviceGetGraphicsRunningProcesses(device: Device, count: *mut c_uint, infos: *mut Process1);
    [own] nvmlDeviceGetGraphicsRunningProcesses_v2(device: Device, count: *mut c_uint, infos: *mut Process2);
    [own] nvmlDeviceGetGraphicsRunningProcesses_v3(device: Device, count: *mut c_uint, infos: *mut Process2);
    [own] nvmlDeviceGetMPSComputeRunningProcesses(device: Device, count: *mut c_uint, infos: *mut Process1);
    [own] nvmlDeviceGetMPSComputeRunningProcesses_v2(device: Device, count: *mut c_uint, infos: *mut Process2);
    [own] nvmlDeviceGetMPSComputeRunningProcesses_v3(device: Device, count: *mut c_uint, infos: *mut Process2);
    [details] nvmlDeviceGetRunningProcessDetailList(device: Device, list: *mut ProcessDetailList);

    [rates] nvmlDeviceGetUtilizationRates(device: Device, utilization: *mut Utilization);
    [samples] nvmlDeviceGetProcessUtilization(
        device: Device, utilization: *mut Sample, count: *mut c_uint, last_seen: u64
    );
    [infos] nvmlDeviceGetProcessesUtilizationInfo(device: Device, utilization: *mut SampleInfos);
    [own] nvmlDeviceGetAccountingPids(device: Device, count: *mut c_uint, pids: *mut c_uint);
    [accounting] nvmlDeviceGetAccountingStats(device: Device, pid: c_uint, stats: Pointer);
}

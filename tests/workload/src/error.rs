//! What can go wrong between the workload and the driver.

use std::ffi::c_int;

use serde_json::{Value, json};

/// A failed call of the driver, or a driver that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver answered with an error.
    #[error("{call} answered {name} ({code})")]
    Driver {
        /// The exported function.
        call: &'static str,
        /// The `CUresult`.
        code: c_int,
        /// Its name.
        name: String,
    },
    /// The driver has no such function.
    #[error("the driver has no {0}; it is older than this program")]
    Missing(&'static str),
    /// There is no driver.
    #[error("cannot open libcuda.so.1 ({0}); is an NVIDIA driver installed?")]
    NoDriver(String),
}

impl CudaError {
    /// The error's name alone: `CUDA_ERROR_…`, else a word for what is missing.
    pub fn name(&self) -> &str {
        match self {
            Self::Driver { name, .. } => name,
            Self::Missing(_) => "missing function",
            Self::NoDriver(_) => "no driver",
        }
    }

    /// The error as the fields of a report line.
    pub fn report(&self) -> Value {
        let call = match self {
            Self::Driver { call, .. } | Self::Missing(call) => Some(*call),
            Self::NoDriver(_) => None,
        };
        json!({ "ok": false, "error": self.name(), "call": call, "message": self.to_string() })
    }
}

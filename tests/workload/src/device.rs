//! A device before any context: what it is, without taking anything of it.

use std::ffi::{CStr, c_char, c_int};

use gpushare_proto::{Bytes, GpuUuid};
use serde::Serialize;

use crate::driver::{DeviceOrdinal, Driver};
use crate::error::CudaError;
use crate::resolve::Resolve;

/// An initialised driver and one of its devices.
#[derive(Debug)]
pub struct Device {
    /// The driver.
    pub driver: Driver,
    /// The device.
    pub ordinal: DeviceOrdinal,
}

/// Facts about a device, which `probe` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// Its identity, `GPU-…`.
    pub uuid: GpuUuid,
    /// Its memory, as the driver tells this process.
    pub total_bytes: Bytes,
    /// The driver's CUDA version, such as `13000`.
    pub driver_version: i32,
}

/// Every method fails with what the driver answered.
impl Device {
    /// Initialises the driver and picks device `ordinal`.
    pub fn open(resolve: Resolve, ordinal: i32) -> Result<Self, CudaError> {
        let driver = Driver::open(resolve)?;
        let mut device = 0;
        // SAFETY: flags must be zero, and `device` is writable.
        unsafe {
            driver.init(0)?;
            driver.device_get(&raw mut device, ordinal)?;
        }
        Ok(Self { driver, ordinal: device })
    }

    /// Returns the facts about the device.
    pub fn facts(&self) -> Result<Facts, CudaError> {
        let mut name: [c_char; 128] = [0; 128];
        let mut uuid = [0; 16];
        let mut driver_version = 0;
        // SAFETY: every result is writable; the name's length leaves room for its NUL.
        unsafe {
            self.driver.device_name(name.as_mut_ptr(), 127, self.ordinal)?;
            self.driver.device_uuid(&raw mut uuid, self.ordinal)?;
            self.driver.driver_version(&raw mut driver_version)?;
        }
        // SAFETY: the array was zeroed and its last byte was out of the driver's reach.
        let name = unsafe { CStr::from_ptr(name.as_ptr()) };
        Ok(Facts {
            name: name.to_string_lossy().into_owned(),
            uuid: GpuUuid::gpu(uuid),
            total_bytes: self.total_memory()?,
            driver_version,
        })
    }

    /// An attribute of the device, by its number in the driver's headers.
    pub fn attribute(&self, number: c_int) -> Result<c_int, CudaError> {
        let mut value = 0;
        // SAFETY: `value` is writable.
        unsafe { self.driver.device_attribute(&raw mut value, number, self.ordinal)? };
        Ok(value)
    }

    /// The memory that the device says it has.
    pub fn total_memory(&self) -> Result<Bytes, CudaError> {
        let mut total = 0;
        // SAFETY: `total` is writable.
        unsafe { self.driver.device_total_mem(&raw mut total, self.ordinal)? };
        Ok(Bytes(total as u64))
    }
}

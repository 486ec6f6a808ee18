//! A device with a context and the kernels in it: what a program works with.

use crate::device::Device;
use crate::driver::Handle;
use crate::error::CudaError;
use crate::kernels::{Kernel, Kernels, LaunchDoor};

/// The legacy default stream.
pub const DEFAULT_STREAM: Handle = 0;

/// A device whose primary context is retained (as libcudart does it) for the life of the process.
#[derive(Debug)]
pub struct Gpu {
    /// The device.
    pub device: Device,
    pub(crate) context: Handle,
    kernels: Kernels,
}

/// Every method fails with what the driver answered.
impl Gpu {
    /// Retains the primary context, makes it current on this thread and loads the kernels.
    pub fn start(device: Device) -> Result<Self, CudaError> {
        let mut context = 0;
        // SAFETY: `context` is writable and `ordinal` is the driver's own.
        unsafe { device.driver.primary_retain(&raw mut context, device.ordinal)? };
        // SAFETY: the context was just retained.
        unsafe { device.driver.ctx_set_current(context)? };
        let kernels = Kernels::load(&device.driver)?;
        Ok(Self { device, context, kernels })
    }

    /// Makes the context current on the calling thread.
    pub fn enter(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained until the process ends.
        unsafe { self.device.driver.ctx_set_current(self.context) }
    }

    /// Whether the context is current on the calling thread.
    pub fn is_current(&self) -> Result<bool, CudaError> {
        let mut current = 0;
        // SAFETY: the result is writable.
        unsafe { self.device.driver.ctx_get_current(&raw mut current)? };
        Ok(current == self.context)
    }

    /// Loads the kernels once more, and launches one of the new ones.
    pub fn launch_anew(&self, kernel: Kernel) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        Kernels::load(driver)?.launch(driver, kernel, LaunchDoor::Plain, DEFAULT_STREAM)
    }

    /// Launches a kernel through the plain door.
    pub fn launch(&self, kernel: Kernel, stream: Handle) -> Result<(), CudaError> {
        self.launch_through(LaunchDoor::Plain, kernel, stream)
    }

    /// Launches a kernel through any door.
    pub fn launch_through(&self, door: LaunchDoor, kernel: Kernel, stream: Handle) -> Result<(), CudaError> {
        self.kernels.launch(&self.device.driver, kernel, door, stream)
    }

    /// Waits for everything in the context.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: takes nothing but the current context.
        unsafe { self.device.driver.ctx_synchronize() }
    }

    /// Is no user of the primary context any more. Others may keep it alive.
    pub fn release(&self) -> Result<(), CudaError> {
        // SAFETY: as for a reset.
        unsafe { self.device.driver.primary_release(self.device.ordinal) }
    }

    /// Destroys everything in the primary context. The context is unusable until the next process starts.
    pub fn reset(&self) -> Result<(), CudaError> {
        // SAFETY: nothing of the context is used afterwards but calls that fail.
        unsafe { self.device.driver.primary_reset(self.device.ordinal) }
    }
}

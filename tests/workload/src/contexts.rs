//! Contexts besides the primary one.

use crate::driver::Handle;
use crate::error::CudaError;
use crate::gpu::Gpu;

/// A context, and the part of the card that it is of, if it is one.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    context: Handle,
    part: Option<Handle>,
}

const GREEN_DEFAULT_STREAM: u32 = 1;

/// Every method fails with what the driver answered, and leaves the primary context current.
impl Gpu {
    /// The primary context.
    pub fn primary(&self) -> Held {
        Held { context: self.context, part: None }
    }

    /// Makes a context.
    pub fn make_context(&self) -> Result<Held, CudaError> {
        let mut context = 0;
        // SAFETY: the result is writable.
        unsafe {
            self.device.driver.ctx_create(&raw mut context, 0, self.device.ordinal)?;
        };
        self.enter()?;
        Ok(Held { context, part: None })
    }

    /// Makes a part of the card (of all its multiprocessors), and its context.
    pub fn make_part(&self) -> Result<Held, CudaError> {
        let (mut context, mut part) = (0, 0);
        let driver = &self.device.driver;
        // SAFETY: the results are writable.
        unsafe {
            driver.green_ctx_create(&raw mut part, 0, self.device.ordinal, GREEN_DEFAULT_STREAM)?;
            driver.ctx_from_green(&raw mut context, part)?;
        }
        let part = Some(part);
        Ok(Held { context, part })
    }

    /// Becomes one more user of a context.
    pub fn attach(&self, held: Held) -> Result<(), CudaError> {
        let mut context = 0;
        // SAFETY: the result is writable.
        self.inside(held, || unsafe { self.device.driver.ctx_attach(&raw mut context, 0) })
    }

    /// Is one user less.
    pub fn detach(&self, held: Held) -> Result<(), CudaError> {
        // SAFETY: the driver refuses what is no context.
        unsafe { self.device.driver.ctx_detach(held.context) }
    }

    /// Destroys a context or a part.
    pub fn end(&self, held: Held) -> Result<(), CudaError> {
        let driver = &self.device.driver;
        // SAFETY: the driver refuses what is none.
        unsafe {
            match held.part {
                Some(part) => driver.green_ctx_destroy(part),
                None => driver.ctx_destroy(held.context),
            }
        }
    }

    /// Does something with a context current.
    pub fn inside<T>(&self, held: Held, work: impl FnOnce() -> Result<T, CudaError>) -> Result<T, CudaError> {
        // SAFETY: the driver refuses what is no context.
        unsafe { self.device.driver.ctx_set_current(held.context)? };
        let result = work();
        self.enter()?;
        result
    }
}

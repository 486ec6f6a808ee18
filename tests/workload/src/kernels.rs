//! The kernels of `kernels.ptx` and how they are launched.

use std::ffi::{CStr, c_uint, c_void};
use std::ptr;

use clap::ValueEnum;

use crate::driver::{DevicePtr, Driver, Handle, LaunchConfig};
use crate::error::CudaError;

/// The text that the driver compiles. A NUL ends it, as `cuModuleLoadData` wants it.
pub const PTX: &CStr = {
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.ptx"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => panic!("kernels.ptx holds a NUL"),
    }
};

/// One launch: a kernel and its arguments. Lengths are in 32-bit words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "p and n are the address and the number of 32-bit words")]
pub enum Kernel {
    /// Does nothing.
    Empty,
    /// `p[i] = value`.
    Fill { p: DevicePtr, n: u64, value: u32 },
    /// `p[i] += value`, wrapping.
    Add { p: DevicePtr, n: u64, value: u32 },
    /// `*out += Σ p[i]·(2i + 1)`, modulo 2^64.
    Checksum { p: DevicePtr, n: u64, out: DevicePtr },
    /// Reads and writes back every `stride`-th word.
    Touch { p: DevicePtr, n: u64, stride: u64 },
    /// Runs until the word at `flag` (none if zero) is set, at most for `nanoseconds`.
    Spin { flag: DevicePtr, nanoseconds: u64 },
}

/// The driver's three doors for a launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LaunchDoor {
    /// `cuLaunchKernel`.
    #[default]
    Plain,
    /// `cuLaunchKernelEx`.
    Ex,
    /// `cuLaunchCooperativeKernel`.
    Cooperative,
}

const THREADS: c_uint = 256;
/// Enough blocks to fill any card; every kernel loops over the rest.
const MOST_BLOCKS: u64 = 1024;
/// A cooperative launch must fit the card as a whole.
const MOST_COOPERATIVE_BLOCKS: u64 = 32;

impl Kernel {
    const COUNT: usize = 6;

    fn index(self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Fill { .. } => 1,
            Self::Add { .. } => 2,
            Self::Checksum { .. } => 3,
            Self::Touch { .. } => 4,
            Self::Spin { .. } => 5,
        }
    }

    /// Each argument in a slot of its own; the driver reads as many low bytes as the kernel declares,
    /// which on the little-endian machines that have CUDA are the first.
    fn arguments(self) -> [u64; 3] {
        match self {
            Self::Empty => [0; 3],
            Self::Fill { p, n, value } | Self::Add { p, n, value } => [p, n, u64::from(value)],
            Self::Checksum { p, n, out } => [p, n, out],
            Self::Touch { p, n, stride } => [p, n, stride],
            Self::Spin { flag, nanoseconds } => [flag, nanoseconds, 0],
        }
    }

    fn blocks(self, door: LaunchDoor) -> c_uint {
        let words = match self {
            Self::Empty | Self::Spin { .. } => 1,
            Self::Fill { n, .. } | Self::Add { n, .. } | Self::Checksum { n, .. } => n,
            Self::Touch { n, stride, .. } => n / stride.max(1),
        };
        let most = match door {
            LaunchDoor::Cooperative => MOST_COOPERATIVE_BLOCKS,
            LaunchDoor::Plain | LaunchDoor::Ex => MOST_BLOCKS,
        };
        c_uint::try_from(words.div_ceil(u64::from(THREADS)).clamp(1, most)).unwrap_or(1)
    }

    fn threads(self) -> c_uint {
        match self {
            Self::Empty | Self::Spin { .. } => 1,
            _ => THREADS,
        }
    }
}

/// The loaded kernels of one context.
#[derive(Clone, Copy, Debug)]
pub struct Kernels([Handle; Kernel::COUNT]);

impl Kernels {
    /// Loads them into the current context.
    pub fn load(driver: &Driver) -> Result<Self, CudaError> {
        const NAMES: [&CStr; Kernel::COUNT] = [c"empty", c"fill", c"add", c"checksum", c"touch", c"spin"];
        let mut module = 0;
        // SAFETY: the image is NUL-terminated text, and `module` is writable.
        unsafe { driver.module_load_data(&raw mut module, PTX.as_ptr().cast())? };
        let mut functions = [0; Kernel::COUNT];
        for (function, name) in functions.iter_mut().zip(NAMES) {
            // SAFETY: the module was just loaded, the name is NUL-terminated, and the result is writable.
            unsafe { driver.module_get_function(&raw mut *function, module, name.as_ptr())? };
        }
        Ok(Self(functions))
    }

    /// Launches `kernel` on `stream`.
    pub fn launch(
        &self,
        driver: &Driver,
        kernel: Kernel,
        door: LaunchDoor,
        stream: Handle,
    ) -> Result<(), CudaError> {
        let mut arguments = kernel.arguments();
        let [a, b, c] = &mut arguments;
        let mut params: [*mut c_void; 3] = [(&raw mut *a).cast(), (&raw mut *b).cast(), (&raw mut *c).cast()];
        let params = params.as_mut_ptr();
        let function = self.0[kernel.index()];
        let (blocks, threads) = (kernel.blocks(door), kernel.threads());
        // SAFETY: the function is of a module that is never unloaded, and `params` holds at least as many
        // arguments as it has, each at least as wide, alive until the driver has copied them on return.
        unsafe {
            match door {
                LaunchDoor::Plain => driver.launch_kernel(
                    function,
                    blocks,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream,
                    params,
                    ptr::null_mut(),
                ),
                LaunchDoor::Cooperative => {
                    driver.launch_cooperative(function, blocks, 1, 1, threads, 1, 1, 0, stream, params)
                }
                LaunchDoor::Ex => {
                    let config = LaunchConfig {
                        grid: [blocks, 1, 1],
                        block: [threads, 1, 1],
                        shared_bytes: 0,
                        stream,
                        attributes: ptr::null(),
                        attribute_count: 0,
                    };
                    driver.launch_kernel_ex(&raw const config, function, params, ptr::null_mut())
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_is_an_entry_of_the_text() {
        let text = PTX.to_str().unwrap();
        for name in ["empty", "fill", "add", "checksum", "touch", "spin"] {
            assert!(text.contains(&format!(".visible .entry {name}(")), "{name}");
        }
    }

    #[test]
    fn a_cooperative_grid_stays_small_enough_for_any_card() {
        let all = Kernel::Fill { p: 0, n: 1 << 30, value: 0 };
        assert_eq!(all.blocks(LaunchDoor::Plain), 1024);
        assert_eq!(all.blocks(LaunchDoor::Cooperative), 32);
        assert_eq!(Kernel::Empty.blocks(LaunchDoor::Ex), 1);
    }
}

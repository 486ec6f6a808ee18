//! Kernels.

use simgpu_card::kernel::Kernel;
use simgpu_card::wire::Op;

use crate::api::module;
use crate::api::prelude::*;
use crate::current::Default;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    _shared_bytes: u32,
    stream: Handle,
    _attributes: usize,
    _attribute_count: u32,
}

/// Of grid and block.
type Dimensions = ([u32; 3], [u32; 3]);

api! {
    fn cuLaunchKernel("cuLaunchKernel", 4000; "_ptsz", 7000)[default](
        function: Handle,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        _shared_bytes: u32, stream: Handle, parameters: KernelParams, extra: Extra,
    ) {
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, shape, stream, default, parameters, Some(extra))
    }

    fn cuLaunchKernelEx("cuLaunchKernelEx", 11060; "_ptsz", 11060)[default](
        config: In<LaunchConfig>, function: Handle, parameters: KernelParams, extra: Extra,
    ) {
        let config = config.get()?;
        launch(function, (config.grid, config.block), config.stream, default, parameters, Some(extra))
    }

    fn cuLaunchCooperativeKernel("cuLaunchCooperativeKernel", 9000; "_ptsz", 9000)[default](
        function: Handle,
        grid_x: u32, grid_y: u32, grid_z: u32,
        block_x: u32, block_y: u32, block_z: u32,
        _shared_bytes: u32, stream: Handle, parameters: KernelParams,
    ) {
        let shape = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        launch(function, shape, stream, default, parameters, None)
    }
}

pub(crate) fn launch(
    function: Handle,
    shape: Dimensions,
    stream: Handle,
    default: Default,
    parameters: KernelParams,
    extra: Option<Extra>,
) -> Answer {
    let stream = current::stream(stream, default)?;
    work::submit(stream, Op::Kernel(kernel(function, shape, parameters, extra)?))
}

/// The launch that arguments mean.
pub(crate) fn kernel(
    function: Handle,
    (grid, block): Dimensions,
    parameters: KernelParams,
    extra: Option<Extra>,
) -> Answer<Kernel> {
    let function = module::function_of(function)?;
    let threads = block.iter().try_fold(1u32, |threads, size| threads.checked_mul(*size));
    if grid.contains(&0) || threads.is_none_or(|threads| threads == 0 || threads > 1024) {
        return Err(Code::INVALID_VALUE);
    }
    let declared = &function.entry.parameters;
    let values: Vec<u64> = if parameters.is_null() && !declared.is_empty() {
        let buffer = extra.ok_or(Code::INVALID_VALUE)?.buffer()?;
        declared
            .iter()
            .map(|parameter| buffer.number(parameter.offset, parameter.size))
            .collect()
    } else {
        let read = declared
            .iter()
            .enumerate()
            .map(|(index, found)| parameters.read(index, found.size));
        read.collect::<Answer<_>>()?
    };
    Kernel::decode(&function.entry.name, &values).ok_or(Code::INVALID_VALUE)
}

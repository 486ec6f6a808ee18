//! Copies, in one, two and three dimensions, of memory and of arrays.

use simgpu_card::wire::{Plane, Shape};

use crate::api::prelude::*;
use crate::copies::{Wait, copy};
use crate::current::Default;
use crate::state::State;

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy2d {
    from: Side2d,
    to: Side2d,
    width: usize,
    height: usize,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Side2d {
    x: usize,
    y: usize,
    memory: Memory,
    pitch: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy3d {
    from: Side3d,
    to: Side3d,
    width: usize,
    height: usize,
    depth: usize,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Side3d {
    x: usize,
    y: usize,
    z: usize,
    _level: usize,
    memory: Memory,
    _reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D_PEER`: a context stands where the other structure has a reserved word.
type Copy3dPeer = Copy3d;

/// The memory type, and one address for each type.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Memory {
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
}

/// Rows of copies that the caller waits for and of their twins that take a stream, and then the other rows.
macro_rules! copies {
    ({$($copy:ident($copy_base:literal, $since:literal) / $twin:ident($twin_base:literal)
        ($($argument:ident: $type:ty),*) |$stream:ident, $default:ident, $wait:ident| $body:block)*} $($single:tt)*) => {
        api! {
            $(
                fn $copy($copy_base, $since; "_ptds", 7000)[$default]($($argument: $type),*) {
                    let ($stream, $wait) = (0, Wait::AsTheDriverDoes);
                    $body
                }

                fn $twin($twin_base, $since; "_ptsz", 7000)[$default]($($argument: $type,)* $stream: Handle) {
                    let $wait = Wait::Never;
                    $body
                }
            )*
            $($single)*
        }
    };
}

copies! {
    {
        cuMemcpy("cuMemcpy", 4000) / cuMemcpyAsync("cuMemcpyAsync")
            (to: u64, from: u64, bytes: usize) |stream, default, wait| {
                row(stream, default, to, from, bytes, wait)
            }
        cuMemcpyHtoD_v2("cuMemcpyHtoD", 3020) / cuMemcpyHtoDAsync_v2("cuMemcpyHtoDAsync")
            (to: u64, from: u64, bytes: usize) |stream, default, wait| {
                device(to)?;
                row(stream, default, to, from, bytes, wait)
            }
        cuMemcpyDtoH_v2("cuMemcpyDtoH", 3020) / cuMemcpyDtoHAsync_v2("cuMemcpyDtoHAsync")
            (to: u64, from: u64, bytes: usize) |stream, default, wait| {
                device(from)?;
                row(stream, default, to, from, bytes, wait)
            }
        cuMemcpyDtoD_v2("cuMemcpyDtoD", 3020) / cuMemcpyDtoDAsync_v2("cuMemcpyDtoDAsync")
            (to: u64, from: u64, bytes: usize) |stream, default, wait| {
                device(to)?;
                device(from)?;
                row(stream, default, to, from, bytes, wait)
            }
        cuMemcpyHtoA_v2("cuMemcpyHtoA", 3020) / cuMemcpyHtoAAsync_v2("cuMemcpyHtoAAsync")
            (to: Handle, offset: usize, from: u64, bytes: usize) |stream, default, wait| {
                row(stream, default, in_array(to, offset, bytes)?, from, bytes, wait)
            }
        cuMemcpyAtoH_v2("cuMemcpyAtoH", 3020) / cuMemcpyAtoHAsync_v2("cuMemcpyAtoHAsync")
            (to: u64, from: Handle, offset: usize, bytes: usize) |stream, default, wait| {
                row(stream, default, to, in_array(from, offset, bytes)?, bytes, wait)
            }
        cuMemcpyPeer("cuMemcpyPeer", 4000) / cuMemcpyPeerAsync("cuMemcpyPeerAsync")
            (to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize) |stream, default, wait| {
                row(stream, default, to, from, bytes, wait)
            }
        cuMemcpy2D_v2("cuMemcpy2D", 3020) / cuMemcpy2DAsync_v2("cuMemcpy2DAsync")
            (what: In<Copy2d>) |stream, default, wait| { rows(stream, default, &what.get()?, wait) }
        cuMemcpy3D_v2("cuMemcpy3D", 3020) / cuMemcpy3DAsync_v2("cuMemcpy3DAsync")
            (what: In<Copy3d>) |stream, default, wait| { slices(stream, default, &what.get()?, wait) }
        cuMemcpy3DPeer("cuMemcpy3DPeer", 4000) / cuMemcpy3DPeerAsync("cuMemcpy3DPeerAsync")
            (what: In<Copy3dPeer>) |stream, default, wait| { slices(stream, default, &what.get()?, wait) }
    }

    fn cuMemcpy2DUnaligned_v2("cuMemcpy2DUnaligned", 3020; "_ptds", 7000)[default](what: In<Copy2d>) {
        rows(0, default, &what.get()?, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyDtoA_v2("cuMemcpyDtoA", 3020; "_ptds", 7000)[default](
        to: Handle, offset: usize, from: u64, bytes: usize,
    ) {
        device(from)?;
        row(0, default, in_array(to, offset, bytes)?, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyAtoD_v2("cuMemcpyAtoD", 3020; "_ptds", 7000)[default](
        to: u64, from: Handle, offset: usize, bytes: usize,
    ) {
        device(to)?;
        row(0, default, to, in_array(from, offset, bytes)?, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyAtoA_v2("cuMemcpyAtoA", 3020; "_ptds", 7000)[default](
        to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize,
    ) {
        let (to, from) = (in_array(to, to_offset, bytes)?, in_array(from, from_offset, bytes)?);
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }
}

/// Where the rows of one side of a copy are.
#[derive(Debug, Clone, Copy)]
struct Layout {
    address: u64,
    pitch: usize,
    /// Rows of a slice.
    rows: usize,
}

impl Memory {
    /// Memory is laid out as the caller says, an array as it is.
    fn layout(self, state: &State, pitch: usize, rows: usize) -> Answer<Layout> {
        const HOST: u32 = 1;
        const DEVICE_OR_UNIFIED: [u32; 2] = [2, 4];
        const ARRAY: u32 = 3;
        let address = match self.kind {
            HOST => self.host,
            kind if DEVICE_OR_UNIFIED.contains(&kind) => self.device,
            ARRAY => {
                let (_, array) = state.array(self.array)?;
                return Ok(Layout {
                    address: array.address,
                    pitch: array.descriptor.pitch()?,
                    rows: array.descriptor.rows(),
                });
            }
            _ => return Err(Code::INVALID_VALUE),
        };
        Ok(Layout { address, pitch, rows })
    }
}

/// The address of so many bytes in an array.
fn in_array(array: Handle, offset: usize, bytes: usize) -> Answer<u64> {
    let (_, array) = driver()?.state().array(array)?;
    let end = offset.checked_add(bytes).ok_or(Code::INVALID_VALUE)?;
    if end > array.descriptor.bytes()? {
        return Err(Code::INVALID_VALUE);
    }
    Ok(array.address + offset as u64)
}

/// Fails unless the card knows the address.
fn device(address: u64) -> Answer {
    driver()?.state().kind_at(address).map(|_| ()).ok_or(Code::INVALID_VALUE)
}

pub(crate) fn row(stream: Handle, default: Default, to: u64, from: u64, bytes: usize, wait: Wait) -> Answer {
    let plane = |address| Plane { address, pitch: 0 };
    let stream = current::stream(stream, default)?;
    copy(stream, plane(to), plane(from), Shape { width: bytes as u64, rows: 1 }, wait)
}

fn rows(stream: Handle, default: Default, what: &Copy2d, wait: Wait) -> Answer {
    let stream = current::stream(stream, default)?;
    let state = driver()?.state();
    let plane = |side: &Side2d| -> Answer<Plane> {
        let pitch = if side.pitch == 0 { what.width } else { side.pitch };
        let Layout { address, pitch, .. } = side.memory.layout(&state, pitch, what.height)?;
        if pitch < what.width + side.x {
            return Err(Code::INVALID_VALUE);
        }
        Ok(Plane { address: address + (side.y * pitch + side.x) as u64, pitch: pitch as u64 })
    };
    let (to, from) = (plane(&what.to)?, plane(&what.from)?);
    drop(state);
    let shape = Shape { width: what.width as u64, rows: what.height as u64 };
    copy(stream, to, from, shape, wait)
}

fn slices(stream: Handle, default: Default, what: &Copy3d, wait: Wait) -> Answer {
    let stream = current::stream(stream, default)?;
    let planes = planes(what, &driver()?.state())?;
    planes
        .into_iter()
        .try_for_each(|(to, from, shape)| copy(stream, to, from, shape, wait))
}

/// The slices of a copy: to, from, shape.
pub(crate) fn planes(what: &Copy3d, state: &State) -> Answer<Vec<(Plane, Plane, Shape)>> {
    let plane = |side: &Side3d, slice: usize| -> Answer<Plane> {
        let pitch = if side.pitch == 0 { what.width } else { side.pitch };
        let height = if side.height == 0 { what.height } else { side.height };
        let Layout { address, pitch, rows } = side.memory.layout(state, pitch, height)?;
        if pitch < what.width + side.x {
            return Err(Code::INVALID_VALUE);
        }
        let row = (side.z + slice) * rows + side.y;
        Ok(Plane { address: address + (row * pitch + side.x) as u64, pitch: pitch as u64 })
    };
    let shape = Shape { width: what.width as u64, rows: what.height as u64 };
    (0..what.depth)
        .map(|slice| Ok((plane(&what.to, slice)?, plane(&what.from, slice)?, shape)))
        .collect()
}

//! Copies, in one, two and three dimensions, of memory and of arrays.

use simgpu_card::wire::{Plane, Shape};

use crate::api::api;
use crate::codes::{Answer, Code};
use crate::copies::{Wait, copy};
use crate::current::{self, Default};
use crate::driver::driver;
use crate::ffi::In;
use crate::handles::Handle;
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

api! {
    fn cuMemcpy("cuMemcpy", 4000; "_ptds", 7000)[default](to: u64, from: u64, bytes: usize) {
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyAsync("cuMemcpyAsync", 4000; "_ptsz", 7000)[default](
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        row(stream, default, to, from, bytes, Wait::Never)
    }

    fn cuMemcpyHtoD_v2("cuMemcpyHtoD", 3020; "_ptds", 7000)[default](to: u64, from: u64, bytes: usize) {
        device(to)?;
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyHtoDAsync_v2("cuMemcpyHtoDAsync", 3020; "_ptsz", 7000)[default](
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        device(to)?;
        row(stream, default, to, from, bytes, Wait::Never)
    }

    fn cuMemcpyDtoH_v2("cuMemcpyDtoH", 3020; "_ptds", 7000)[default](to: u64, from: u64, bytes: usize) {
        device(from)?;
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyDtoHAsync_v2("cuMemcpyDtoHAsync", 3020; "_ptsz", 7000)[default](
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        device(from)?;
        row(stream, default, to, from, bytes, Wait::Never)
    }

    fn cuMemcpyDtoD_v2("cuMemcpyDtoD", 3020; "_ptds", 7000)[default](to: u64, from: u64, bytes: usize) {
        device(to)?;
        device(from)?;
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyDtoDAsync_v2("cuMemcpyDtoDAsync", 3020; "_ptsz", 7000)[default](
        to: u64, from: u64, bytes: usize, stream: Handle,
    ) {
        device(to)?;
        device(from)?;
        row(stream, default, to, from, bytes, Wait::Never)
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

    fn cuMemcpyHtoA_v2("cuMemcpyHtoA", 3020; "_ptds", 7000)[default](
        to: Handle, offset: usize, from: u64, bytes: usize,
    ) {
        row(0, default, in_array(to, offset, bytes)?, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyAtoH_v2("cuMemcpyAtoH", 3020; "_ptds", 7000)[default](
        to: u64, from: Handle, offset: usize, bytes: usize,
    ) {
        row(0, default, to, in_array(from, offset, bytes)?, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyAtoA_v2("cuMemcpyAtoA", 3020; "_ptds", 7000)[default](
        to: Handle, to_offset: usize, from: Handle, from_offset: usize, bytes: usize,
    ) {
        let (to, from) = (in_array(to, to_offset, bytes)?, in_array(from, from_offset, bytes)?);
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyHtoAAsync_v2("cuMemcpyHtoAAsync", 3020; "_ptsz", 7000)[default](
        to: Handle, offset: usize, from: u64, bytes: usize, stream: Handle,
    ) {
        row(stream, default, in_array(to, offset, bytes)?, from, bytes, Wait::Never)
    }

    fn cuMemcpyAtoHAsync_v2("cuMemcpyAtoHAsync", 3020; "_ptsz", 7000)[default](
        to: u64, from: Handle, offset: usize, bytes: usize, stream: Handle,
    ) {
        row(stream, default, to, in_array(from, offset, bytes)?, bytes, Wait::Never)
    }

    fn cuMemcpyPeer("cuMemcpyPeer", 4000; "_ptds", 7000)[default](
        to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize,
    ) {
        row(0, default, to, from, bytes, Wait::AsTheDriverDoes)
    }

    fn cuMemcpyPeerAsync("cuMemcpyPeerAsync", 4000; "_ptsz", 7000)[default](
        to: u64, _to_context: Handle, from: u64, _from_context: Handle, bytes: usize, stream: Handle,
    ) {
        row(stream, default, to, from, bytes, Wait::Never)
    }

    fn cuMemcpy2D_v2("cuMemcpy2D", 3020; "_ptds", 7000)
        = cuMemcpy2DUnaligned_v2("cuMemcpy2DUnaligned", 3020; "_ptds", 7000)[default](what: In<Copy2d>) {
        rows(0, default, &what.get()?, Wait::AsTheDriverDoes)
    }

    fn cuMemcpy2DAsync_v2("cuMemcpy2DAsync", 3020; "_ptsz", 7000)[default](what: In<Copy2d>, stream: Handle) {
        rows(stream, default, &what.get()?, Wait::Never)
    }

    fn cuMemcpy3D_v2("cuMemcpy3D", 3020; "_ptds", 7000)[default](what: In<Copy3d>) {
        slices(0, default, &what.get()?, Wait::AsTheDriverDoes)
    }

    fn cuMemcpy3DAsync_v2("cuMemcpy3DAsync", 3020; "_ptsz", 7000)[default](what: In<Copy3d>, stream: Handle) {
        slices(stream, default, &what.get()?, Wait::Never)
    }

    fn cuMemcpy3DPeer("cuMemcpy3DPeer", 4000; "_ptds", 7000)[default](what: In<Copy3dPeer>) {
        slices(0, default, &what.get()?, Wait::AsTheDriverDoes)
    }

    fn cuMemcpy3DPeerAsync("cuMemcpy3DPeerAsync", 4000; "_ptsz", 7000)[default](
        what: In<Copy3dPeer>, stream: Handle,
    ) {
        slices(stream, default, &what.get()?, Wait::Never)
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

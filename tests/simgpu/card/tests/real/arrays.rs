//! Arrays and mipmaps.

use crate::program::{Handle, Program};

const INVALID_VALUE: u32 = 1;
const INVALID_HANDLE: u32 = 400;
const HOST: u32 = 1;
const ARRAY: u32 = 3;
const UNSIGNED_BYTES: u32 = 1;

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) size: [usize; 3],
    pub(crate) format: u32,
    pub(crate) channels: u32,
    pub(crate) flags: u32,
}

/// One side of `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Side {
    at: [usize; 3],
    level: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: Handle,
    reserved: usize,
    pitch: usize,
    height: usize,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copy3d {
    from: Side,
    to: Side,
    size: [usize; 3],
}

const NOWHERE: Side = Side {
    at: [0; 3],
    level: 0,
    kind: 0,
    host: 0,
    device: 0,
    array: 0,
    reserved: 0,
    pitch: 0,
    height: 0,
};

fn in_array(array: Handle, at: [usize; 3]) -> Side {
    Side { kind: ARRAY, array, at, ..NOWHERE }
}

fn in_host(host: u64, pitch: usize, height: usize) -> Side {
    Side { kind: HOST, host, pitch, height, ..NOWHERE }
}

pub(crate) fn fills_arrays() {
    let program = Program::start();
    let (mut free_before, mut total, mut free) = (0, 0, 0);
    assert_eq!(program.cuMemGetInfo_v2(&mut free_before, &mut total), 0);
    let descriptor = Descriptor { size: [4, 3, 2], format: UNSIGNED_BYTES, channels: 2, flags: 0 };
    let (mut array, mut found) = (0, Descriptor { channels: 0, ..descriptor });
    assert_eq!(program.cuArray3DCreate_v2(&mut array, &descriptor), 0);
    assert_eq!(program.cuArray3DGetDescriptor_v2(&mut found, array), 0);
    assert_eq!(found, descriptor);
    assert_eq!(program.cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!(free_before - free, 4 * 3 * 2 * 2);

    // A box of 4 bytes, 2 rows and 2 slices to a place inside, and back with a wider pitch.
    let bytes: Vec<u8> = (1..=16).collect();
    let inside = [2, 1, 0];
    let write = Copy3d {
        from: in_host(bytes.as_ptr() as u64, 4, 2),
        to: in_array(array, inside),
        size: [4, 2, 2],
    };
    assert_eq!(program.cuMemcpy3D_v2(&write), 0);
    let mut back = [0u8; 24];
    let read = Copy3d {
        from: in_array(array, inside),
        to: in_host(back.as_mut_ptr() as u64, 6, 2),
        size: [4, 2, 2],
    };
    assert_eq!(program.cuMemcpy3D_v2(&read), 0);
    assert_eq!(back[..10], [1, 2, 3, 4, 0, 0, 5, 6, 7, 8]);
    assert_eq!(back[12..22], [9, 10, 11, 12, 0, 0, 13, 14, 15, 16]);
    let beyond = Copy3d { size: [8, 2, 2], ..write };
    assert_eq!(program.cuMemcpy3D_v2(&beyond), INVALID_VALUE);

    // As one row of bytes: row 1 of slice 0 starts after the 8 bytes of row 0.
    let mut row = [0u8; 8];
    assert_eq!(program.cuMemcpyAtoH_v2(row.as_mut_ptr(), array, 8, 8), 0);
    assert_eq!(row, [0, 0, 1, 2, 3, 4, 0, 0]);
    assert_eq!(program.cuMemcpyHtoA_v2(array, 41, row.as_ptr(), 8), INVALID_VALUE);
    assert_eq!(program.cuArrayDestroy(array), 0);
    assert_eq!(program.cuArrayDestroy(array), INVALID_HANDLE);

    let (mut mipmap, mut level) = (0, 0);
    let picture = Descriptor { size: [16, 8, 0], format: UNSIGNED_BYTES, channels: 1, flags: 0 };
    assert_eq!(program.cuMipmappedArrayCreate(&mut mipmap, &picture, 99), 0);
    assert_eq!(program.cuMipmappedArrayGetLevel(&mut level, mipmap, 2), 0);
    assert_eq!(program.cuArray3DGetDescriptor_v2(&mut found, level), 0);
    assert_eq!(found.size, [4, 2, 0]);
    assert_eq!(program.cuMipmappedArrayGetLevel(&mut level, mipmap, 5), INVALID_VALUE);
    assert_eq!(program.cuArrayDestroy(level), INVALID_HANDLE, "it belongs to the mipmap");
    assert_eq!(program.cuMipmappedArrayDestroy(mipmap), 0);
    assert_eq!(program.cuMemGetInfo_v2(&mut free, &mut total), 0);
    assert_eq!(free, free_before);
}

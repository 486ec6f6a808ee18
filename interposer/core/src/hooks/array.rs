//! Hooks of arrays and mipmaps, which are memory for textures with a handle and no address. Their memory
//! never leaves the card.
//!
//! The driver lays arrays out in blocks of 64 bytes by 8 rows, so a narrow array takes many times the bytes
//! of its elements. The session is charged for that layout (measurements: docs/results/compatibility.md). A
//! row has a multiple of 64 bytes. The number of rows is rounded up to a power of two, and above 128 to a
//! multiple of 128. A volume has a multiple of 8 rows, and slices in a power of two or a multiple of 8. The
//! smallest charge is 4 KiB. The driver's further rounding (2 MiB for large arrays) is not charged.

use std::ffi::{c_int, c_uint};

use gpushare_proto::Bytes;

use super::allocation::shared;
use super::sparse;
use crate::driver::types::{ARRAY_CUBEMAP, ARRAY_LAYERED, ARRAY_WITHOUT_MEMORY, CUarray, CUresult};
use crate::memory::Table;
use crate::memory::allocations::Origin;
use crate::state::State;

/// Description of an array (`CUDA_ARRAY_DESCRIPTOR`). `Size` has 32 bits in its first version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Flat<Size> {
    width: Size,
    height: Size,
    format: c_int,
    channels: c_uint,
}

/// Description of an array in three dimensions (`CUDA_ARRAY3D_DESCRIPTOR`). `Size` has 32 bits in its first
/// version.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Solid<Size> {
    width: Size,
    height: Size,
    depth: Size,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

/// Extent and format of an array, which determine its size.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    width: u64,
    height: u64,
    depth: u64,
    format: c_int,
    channels: c_uint,
    flags: c_uint,
}

fn wide<Size: TryInto<u64>>(size: Size) -> u64 {
    size.try_into().unwrap_or(u64::MAX)
}

impl<Size: TryInto<u64>> From<Flat<Size>> for Shape {
    fn from(Flat { width, height, format, channels }: Flat<Size>) -> Self {
        Self { width: wide(width), height: wide(height), depth: 0, format, channels, flags: 0 }
    }
}

impl<Size: TryInto<u64>> From<Solid<Size>> for Shape {
    fn from(Solid { width, height, depth, format, channels, flags }: Solid<Size>) -> Self {
        let [width, height, depth] = [width, height, depth].map(wide);
        Self { width, height, depth, format, channels, flags }
    }
}

/// Smallest number of bytes that an array takes: one page of 4 KiB.
const PAGE: u64 = 4096;
/// Size of a layout block: bytes of a row, and number of rows.
const BLOCK: [u64; 2] = [64, 8];
/// Number of rows (or slices) above which their number is rounded up to a multiple instead of a power of two.
const TALLEST: u64 = 128;
const DEEPEST: u64 = 8;

impl Shape {
    /// Returns bytes of a row and number of rows; `width` and `height` count elements. Compressed formats
    /// have blocks of 4 × 4 elements.
    fn rows(self) -> [u64; 2] {
        let channels = u64::from(self.channels);
        let per_element = match self.format {
            // 8 bits per channel. Video formats with smaller parts are charged for whole ones.
            0x01 | 0x08 | 0xa2 | 0xa5 | 0xa8 | 0xb0 | 0xb2 | 0xb4 | 0x51 | 0x52 | 0x53 | 0x55 | 0x57
            | 0x59 | 0x5b | 0x5d => channels,
            // 16 bits per channel.
            0x02 | 0x09 | 0x10 | 0x9f | 0xa1 | 0xa3 | 0xa4 | 0xa6 | 0xa7 | 0xb1 | 0xb3 | 0xb5 | 0x54
            | 0x56 | 0x58 | 0x5a | 0x5c | 0x5e => 2 * channels,
            // Formats with a fixed number of channels.
            0xc0 | 0xc6 => 1,
            0xc1 | 0xc3 | 0xc7 | 0xc9 => 2,
            0x50 | 0xa9 | 0xc2 | 0xc4 | 0xc8 | 0xca => 4,
            0xc5 | 0xcb => 8,
            // BC1 and BC4 have blocks of 8 bytes, the others blocks of 16.
            0x91 | 0x92 | 0x97 | 0x98 => return self.compressed(8),
            0x93..=0x96 | 0x99..=0x9e => return self.compressed(16),
            // 32 bits per channel, and formats of later drivers.
            _ => 4 * channels,
        };
        [self.width.saturating_mul(per_element), self.height]
    }

    fn compressed(self, block: u64) -> [u64; 2] {
        [self.width.div_ceil(4).saturating_mul(block), self.height.div_ceil(4)]
    }

    fn has_layers(self) -> bool {
        self.flags & (ARRAY_LAYERED | ARRAY_CUBEMAP) != 0
    }

    /// Returns the number of bytes that the array takes on the card.
    fn bytes(self) -> Bytes {
        let [row, rows] = self.rows();
        let (rows, depth) = (rows.max(1), self.depth.max(1));
        let together =
            |size: u64, most: u64| size.checked_next_power_of_two().map_or(most, |next| next.min(most));
        let volume = self.depth > 1 && !self.has_layers();
        let (tall, deep) = if volume {
            (BLOCK[1], together(depth, DEEPEST))
        } else {
            (together(rows, TALLEST).max(BLOCK[1]), 1)
        };
        let up = |size: u64, to: u64| size.checked_next_multiple_of(to).unwrap_or(u64::MAX);
        let bytes = up(row, BLOCK[0]).saturating_mul(up(rows, tall)).saturating_mul(up(depth, deep));
        Bytes(bytes.max(PAGE))
    }

    fn half(self) -> Self {
        let half = |size: u64| if size > 1 { size / 2 } else { size };
        let depth = if self.has_layers() { self.depth } else { half(self.depth) };
        Self { width: half(self.width), height: half(self.height), depth, ..self }
    }

    /// Returns the bytes of a mipmap with this many levels. The driver makes at least one level, and none
    /// below a single element.
    fn levels(self, levels: c_uint) -> Bytes {
        let largest = self.width.max(self.height).max(self.depth).max(1);
        let made = levels.clamp(1, 1 + largest.ilog2());
        std::iter::successors(Some(self), |level| Some(level.half()))
            .take(made as usize)
            .map(Self::bytes)
            .sum()
    }
}

/// `cuArrayCreate`, `cuArray3DCreate`: charges the session for the size on the card.
pub unsafe fn create<Descriptor: Copy + Into<Shape>>(
    array: *mut CUarray,
    descriptor: *const Descriptor,
    real: impl FnMut() -> CUresult,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { charged(array, descriptor, Shape::bytes, real) }
}

/// `cuMipmappedArrayCreate`: charges the session for the size on the card.
pub unsafe fn create_levels(
    mipmap: *mut CUarray,
    descriptor: *const Solid<usize>,
    levels: c_uint,
    real: impl FnMut() -> CUresult,
) -> CUresult {
    // SAFETY: the caller's promise.
    unsafe { charged(mipmap, descriptor, |shape| shape.levels(levels), real) }
}

/// # Safety
/// Both pointers are null or as the driver's function demands.
unsafe fn charged<Descriptor: Copy + Into<Shape>>(
    array: *mut CUarray,
    descriptor: *const Descriptor,
    size: impl FnOnce(Shape) -> Bytes,
    mut real: impl FnMut() -> CUresult,
) -> CUresult {
    let Some((state, device)) = shared().filter(|_| !array.is_null() && !descriptor.is_null()) else {
        return real();
    };
    // SAFETY: not null, so readable.
    let shape: Shape = unsafe { descriptor.read() }.into();
    if shape.width == 0 || shape.flags & ARRAY_WITHOUT_MEMORY != 0 {
        return real();
    }
    // SAFETY: written by the driver.
    let key = || unsafe { array.read() }.addr() as u64;
    state
        .memory
        .allocate(Table::Arrays, device, size(shape), Origin::Native, real, key)
}

/// `cuArrayDestroy`, `cuMipmappedArrayDestroy`: destroys the array and gives its quota back.
pub fn destroy(array: CUarray, real: impl FnOnce() -> CUresult) -> CUresult {
    let Some(state) = State::existing() else { return real() };
    let key = array.addr() as u64;
    state.memory.free(Table::Arrays, key, || sparse::end_array(state, key, real))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: c_int = 0x20;

    fn shape(width: u64, height: u64, depth: u64, channels: c_uint) -> Shape {
        Shape { width, height, depth, format: FLOAT, channels, flags: 0 }
    }

    /// Sizes as measured on an H200: the driver took no less, and more only up to its 2 MiB pages.
    #[test]
    fn arrays_are_charged_by_the_blocks_that_they_take() {
        assert_eq!(shape(1024, 1024, 0, 4).bytes(), Bytes::mib(16));
        assert_eq!(shape(1000, 1001, 0, 1).bytes(), Bytes(4032 * 1024));
        assert_eq!(shape(200, 200, 0, 1).bytes(), Bytes(832 * 256));
        assert_eq!(shape(65536, 0, 0, 1).bytes(), Bytes::mib(2), "one row takes eight");
        assert_eq!(shape(1, 25000, 0, 1).bytes(), Bytes(64 * 25088));
        assert_eq!(shape(1000, 1001, 5, 1).bytes(), Bytes(4032 * 1008 * 8));
        assert_eq!(shape(10, 10, 0, 1).bytes(), Bytes(4096));
    }

    #[test]
    fn layers_are_no_depth() {
        let layered = Shape { flags: ARRAY_LAYERED, ..shape(1024, 1024, 5, 1) };
        assert_eq!(layered.bytes(), Bytes::mib(20));
    }

    #[test]
    fn compressed_texels_come_by_blocks() {
        let compressed = Shape { format: 0x9d, ..shape(1024, 1024, 0, 4) };
        assert_eq!(compressed.bytes(), Bytes::mib(1));
    }

    #[test]
    fn each_level_of_a_mipmap_is_half_as_large() {
        assert_eq!(shape(1024, 1024, 0, 4).levels(1), Bytes::mib(16));
        assert_eq!(shape(1024, 1024, 0, 4).levels(2), Bytes::mib(20));
    }

    #[test]
    fn a_mipmap_has_one_level_at_least_and_none_below_a_single_element() {
        let shape = shape(1024, 1024, 0, 4);
        assert_eq!(shape.levels(0), shape.levels(1));
        assert_eq!(shape.levels(c_uint::MAX), shape.levels(11));
    }

    #[test]
    fn sizes_beyond_all_measure_stay_so() {
        assert_eq!(shape(u64::MAX, u64::MAX, u64::MAX, 4).bytes(), Bytes::MAX);
        let _ = shape(u64::MAX, u64::MAX, u64::MAX, 4).levels(c_uint::MAX);
    }
}

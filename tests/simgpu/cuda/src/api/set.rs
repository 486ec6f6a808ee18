//! Fills with a pattern of 1, 2 or 4 bytes, in one and two dimensions.

use simgpu_card::wire::{Plane, Shape};

use crate::api::prelude::*;
use crate::copies::{self, Wait};
use crate::current::Default;

macro_rules! fills {
    ($($type:ty: $row:ident $row_base:literal, $row_async:ident $row_async_base:literal,
        $rows:ident $rows_base:literal, $rows_async:ident $rows_async_base:literal;)*) => {
        api! {$(
            fn $row($row_base, 3020; "_ptds", 7000)[default](to: u64, value: $type, count: usize) {
                row(0, default, to, Pattern::from(value), count, Wait::AsTheDriverDoes)
            }

            fn $row_async($row_async_base, 3020; "_ptsz", 7000)[default](
                to: u64, value: $type, count: usize, stream: Handle,
            ) {
                row(stream, default, to, Pattern::from(value), count, Wait::Never)
            }

            fn $rows($rows_base, 3020; "_ptds", 7000)[default](
                to: u64, pitch: usize, value: $type, width: usize, height: usize,
            ) {
                rows(0, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::AsTheDriverDoes)
            }

            fn $rows_async($rows_async_base, 3020; "_ptsz", 7000)[default](
                to: u64, pitch: usize, value: $type, width: usize, height: usize, stream: Handle,
            ) {
                rows(stream, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::Never)
            }
        )*}

        $(impl From<$type> for Pattern {
            fn from(value: $type) -> Self {
                Self { value: value.into(), size: size_of::<$type>() as u8 }
            }
        })*
    };
}

fills! {
    u8: cuMemsetD8_v2 "cuMemsetD8", cuMemsetD8Async "cuMemsetD8Async",
        cuMemsetD2D8_v2 "cuMemsetD2D8", cuMemsetD2D8Async "cuMemsetD2D8Async";
    u16: cuMemsetD16_v2 "cuMemsetD16", cuMemsetD16Async "cuMemsetD16Async",
        cuMemsetD2D16_v2 "cuMemsetD2D16", cuMemsetD2D16Async "cuMemsetD2D16Async";
    u32: cuMemsetD32_v2 "cuMemsetD32", cuMemsetD32Async "cuMemsetD32Async",
        cuMemsetD2D32_v2 "cuMemsetD2D32", cuMemsetD2D32Async "cuMemsetD2D32Async";
}

/// Value that a fill repeats, and its size in bytes.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    value: u32,
    size: u8,
}

fn plane(address: u64, pitch: usize) -> Plane {
    Plane { address, pitch: pitch as u64 }
}

fn row(stream: Handle, default: Default, to: u64, pattern: Pattern, count: usize, wait: Wait) -> Answer {
    rows(stream, default, plane(to, 0), pattern, (count, 1), wait)
}

/// `size` is the number of patterns in a row and the number of rows.
fn rows(
    stream: Handle,
    default: Default,
    to: Plane,
    pattern: Pattern,
    size: (usize, usize),
    wait: Wait,
) -> Answer {
    let stream = current::stream(stream, default)?;
    let shape = Shape { width: size.0 as u64 * u64::from(pattern.size), rows: size.1 as u64 };
    copies::set(stream, to, shape, pattern.value, pattern.size, wait)
}

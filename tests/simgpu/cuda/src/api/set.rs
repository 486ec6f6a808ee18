//! Fills with a pattern of 1, 2 or 4 bytes, in one and two dimensions.

use simgpu_card::wire::{Plane, Shape};

use crate::api::api;
use crate::codes::Answer;
use crate::copies::{self, Wait};
use crate::current::{self, Default};
use crate::handles::Handle;

api! {
    fn cuMemsetD8_v2("cuMemsetD8", 3020; "_ptds", 7000)[default](to: u64, value: u8, count: usize) {
        row(0, default, to, Pattern::from(value), count, Wait::AsTheDriverDoes)
    }

    fn cuMemsetD8Async("cuMemsetD8Async", 3020; "_ptsz", 7000)[default](
        to: u64, value: u8, count: usize, stream: Handle,
    ) {
        row(stream, default, to, Pattern::from(value), count, Wait::Never)
    }

    fn cuMemsetD2D8_v2("cuMemsetD2D8", 3020; "_ptds", 7000)[default](
        to: u64, pitch: usize, value: u8, width: usize, height: usize,
    ) {
        rows(0, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::AsTheDriverDoes)
    }

    fn cuMemsetD2D8Async("cuMemsetD2D8Async", 3020; "_ptsz", 7000)[default](
        to: u64, pitch: usize, value: u8, width: usize, height: usize, stream: Handle,
    ) {
        rows(stream, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::Never)
    }

    fn cuMemsetD16_v2("cuMemsetD16", 3020; "_ptds", 7000)[default](to: u64, value: u16, count: usize) {
        row(0, default, to, Pattern::from(value), count, Wait::AsTheDriverDoes)
    }

    fn cuMemsetD16Async("cuMemsetD16Async", 3020; "_ptsz", 7000)[default](
        to: u64, value: u16, count: usize, stream: Handle,
    ) {
        row(stream, default, to, Pattern::from(value), count, Wait::Never)
    }

    fn cuMemsetD2D16_v2("cuMemsetD2D16", 3020; "_ptds", 7000)[default](
        to: u64, pitch: usize, value: u16, width: usize, height: usize,
    ) {
        rows(0, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::AsTheDriverDoes)
    }

    fn cuMemsetD2D16Async("cuMemsetD2D16Async", 3020; "_ptsz", 7000)[default](
        to: u64, pitch: usize, value: u16, width: usize, height: usize, stream: Handle,
    ) {
        rows(stream, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::Never)
    }

    fn cuMemsetD32_v2("cuMemsetD32", 3020; "_ptds", 7000)[default](to: u64, value: u32, count: usize) {
        row(0, default, to, Pattern::from(value), count, Wait::AsTheDriverDoes)
    }

    fn cuMemsetD32Async("cuMemsetD32Async", 3020; "_ptsz", 7000)[default](
        to: u64, value: u32, count: usize, stream: Handle,
    ) {
        row(stream, default, to, Pattern::from(value), count, Wait::Never)
    }

    fn cuMemsetD2D32_v2("cuMemsetD2D32", 3020; "_ptds", 7000)[default](
        to: u64, pitch: usize, value: u32, width: usize, height: usize,
    ) {
        rows(0, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::AsTheDriverDoes)
    }

    fn cuMemsetD2D32Async("cuMemsetD2D32Async", 3020; "_ptsz", 7000)[default](
        to: u64, pitch: usize, value: u32, width: usize, height: usize, stream: Handle,
    ) {
        rows(stream, default, plane(to, pitch), Pattern::from(value), (width, height), Wait::Never)
    }
}

/// What is stored, again and again.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    value: u32,
    size: u8,
}

macro_rules! patterns {
    ($($type:ty),*) => {$(
        impl From<$type> for Pattern {
            fn from(value: $type) -> Self {
                Self { value: value.into(), size: size_of::<$type>() as u8 }
            }
        }
    )*};
}
patterns!(u8, u16, u32);

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

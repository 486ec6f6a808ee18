//! Rows of the symbol table, file by file. A file is a list of groups. A group is a disposition with one line
//! per base name:
//! ```text
//! passed "describes an error" {
//!     cuGetErrorName 6000;
//! }
//! wrapped Copy {
//!     cuMemcpyHtoDAsync 3020 _v2, 7000 _v2_ptsz;
//! }   base name         version that introduced a variant, and the suffix of its export
//! ```
//!
//! A base name may stand in several groups: `cuMemcpyHtoDAsync` of CUDA 2, with addresses of 32 bits, is a
//! variant of its own.

mod work;
mod memory;
mod contexts;
mod devices;
mod modules;
mod graphs;
mod interop;
mod unlisted;

use crate::{Disposition, Variant};

pub(crate) type Group = (Disposition, &'static [Variant]);

pub(crate) const GROUPS: &[&[Group]] = &[
    work::GROUPS,
    memory::GROUPS,
    contexts::GROUPS,
    devices::GROUPS,
    modules::GROUPS,
    graphs::GROUPS,
    interop::GROUPS,
    unlisted::GROUPS,
];

macro_rules! symbols {
    (@disposition wrapped $family:ident) => { crate::Disposition::Wrapped(crate::Family::$family) };
    (@disposition answered $family:ident) => { crate::Disposition::Answered(crate::Family::$family) };
    (@disposition passed $reason:literal) => { crate::Disposition::Passed($reason) };
    (@disposition refused $reason:literal) => { crate::Disposition::Refused($reason) };
    (@disposition unsupported $reason:literal) => { crate::Disposition::Unsupported($reason) };
    (@variant $base:ident $version:literal $($suffix:ident)?) => {
        crate::Variant::new(
            stringify!($base),
            $version,
            concat!(stringify!($base), $(stringify!($suffix),)? "\0"),
        )
    };
    ($($kind:ident $why:tt { $($base:ident $($version:literal $($suffix:ident)?),+;)* })*) => {
        pub(super) const GROUPS: &[super::Group] = &[$(
            (
                super::symbols!(@disposition $kind $why),
                &[$($(super::symbols!(@variant $base $version $($suffix)?),)+)*],
            ),
        )*];
    };
}

use symbols;

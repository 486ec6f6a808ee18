//! The exported functions: one row each.
//!
//! ```text
//! fn cuMemcpyHtoDAsync_v2("cuMemcpyHtoDAsync", 3020; "_ptsz", 7000)[default](to: u64, ...) { body }
//!    export name           base name           since  twin    since  which default stream: a parameter of the body
//! ```
//!
//! A row makes the exported function, its twin for the per-thread default stream if it has one, and the
//! entry that `cuGetProcAddress` answers from. The body is safe code that answers `Result<(), Code>`;
//! `guard` turns it into a `CUresult` and lets no panic out. A thread that is cancelled while it waits for
//! the card unwinds through it. Adding a function is adding a row.

pub(crate) mod any_node;
pub(crate) mod array;
pub(crate) mod batch;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod edge;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod graphics;
pub(crate) mod host;
pub(crate) mod init;
pub(crate) mod launch;
pub(crate) mod lookup;
pub(crate) mod managed;
pub(crate) mod memory;
pub(crate) mod memory_node;
pub(crate) mod module;
pub(crate) mod node;
pub(crate) mod physical;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod set;
pub(crate) mod stream;
pub(crate) mod texture;

use std::ffi::c_void;

/// One exported function and what `cuGetProcAddress` must know of it.
#[derive(Debug)]
pub(crate) struct Row {
    /// The exported name.
    pub(crate) export: &'static str,
    /// The name one asks for: without version and stream suffixes.
    pub(crate) base: &'static str,
    /// The CUDA version that has it first.
    pub(crate) since: i32,
    pub(crate) legacy: Pointer,
    /// The twin for the per-thread default stream, and the version that has it first.
    pub(crate) twin: Option<(i32, Pointer)>,
}

/// The address of an exported function.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pointer(pub(crate) *const c_void);

// SAFETY: the address of a function; code is the same for every thread.
unsafe impl Sync for Pointer {}

/// Every row of every family.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    let families: [&'static [Row]; 27] = [
        init::ROWS,
        device::ROWS,
        context::ROWS,
        module::ROWS,
        memory::ROWS,
        managed::ROWS,
        host::ROWS,
        physical::ROWS,
        pool::ROWS,
        pointer::ROWS,
        array::ROWS,
        batch::ROWS,
        copy::ROWS,
        set::ROWS,
        stream::ROWS,
        texture::ROWS,
        graphics::ROWS,
        event::ROWS,
        launch::ROWS,
        capture::ROWS,
        graph::ROWS,
        node::ROWS,
        memory_node::ROWS,
        any_node::ROWS,
        edge::ROWS,
        lookup::ROWS,
        checkpoint::ROWS,
    ];
    families.into_iter().flatten()
}

macro_rules! api {
    // Unfolds `fn old = new(...) {}`, versions of a function with one signature, into a row each.
    (@rows [$($done:tt)*]
        $(#[doc = $doc:literal])* fn $name:ident $found:tt = $same:ident $same_found:tt $(= $more:ident $more_found:tt)*
            $([$default:ident])? ($($argument:tt)*) $body:tt $($rest:tt)*
    ) => {
        $crate::api::api! { @rows [
            $($done)* $(#[doc = $doc])* fn $name $found $([$default])? ($($argument)*) $body
        ] fn $same $same_found $(= $more $more_found)* $([$default])? ($($argument)*) $body $($rest)* }
    };
    (@rows [$($done:tt)*]
        $(#[doc = $doc:literal])* fn $name:ident $found:tt $([$default:ident])? ($($argument:tt)*) $body:tt $($rest:tt)*
    ) => {
        $crate::api::api! { @rows [
            $($done)* $(#[doc = $doc])* fn $name $found $([$default])? ($($argument)*) $body
        ] $($rest)* }
    };
    (@rows [$($done:tt)*]) => { $crate::api::api! { @made $($done)* } };
    (@made $(
        $(#[doc = $doc:literal])*
        fn $name:ident($base:literal, $since:literal $(; $suffix:literal, $twin_since:literal)?)
            $([$default:ident])? ($($argument:ident : $type:ty),* $(,)?) $body:block
    )*) => {
        $(
            #[allow(non_snake_case, reason = "the names are NVIDIA's")]
            mod $name {
                #[allow(unused_imports, reason = "the bodies of a family share their imports")]
                use super::*;

                $(#[doc = $doc])*
                #[allow(clippy::too_many_arguments, reason = "the signature is NVIDIA's")]
                fn body($($default: $crate::current::Default,)? $($argument: $type),*) -> $crate::codes::Answer {
                    $body
                }

                $crate::api::api!(@exports $name, [$($suffix)?], [$($default)?], ($($argument: $type),*));
            }
        )*

        pub(crate) const ROWS: &[$crate::api::Row] = &[$(
            $crate::api::Row {
                export: stringify!($name),
                base: $base,
                since: $since,
                legacy: $crate::api::Pointer($name::legacy as *const std::ffi::c_void),
                twin: $crate::api::api!(@twin $name, $($twin_since)?),
            },
        )*];
    };
    (@exports $name:ident, [], [], ($($argument:ident : $type:ty),*)) => {
        #[unsafe(export_name = stringify!($name))]
        #[allow(clippy::too_many_arguments, reason = "the signature is NVIDIA's")]
        pub(super) extern "C-unwind" fn legacy($($argument: $type),*) -> u32 {
            $crate::ffi::guard(stringify!($name), || body($($argument),*))
        }
    };
    (@exports $name:ident, [$suffix:literal], [$default:ident], ($($argument:ident : $type:ty),*)) => {
        #[unsafe(export_name = stringify!($name))]
        #[allow(clippy::too_many_arguments, reason = "the signature is NVIDIA's")]
        pub(super) extern "C-unwind" fn legacy($($argument: $type),*) -> u32 {
            $crate::ffi::guard(stringify!($name), || body($crate::current::Default::Legacy, $($argument),*))
        }

        #[unsafe(export_name = concat!(stringify!($name), $suffix))]
        #[allow(clippy::too_many_arguments, reason = "the signature is NVIDIA's")]
        pub(super) extern "C-unwind" fn per_thread($($argument: $type),*) -> u32 {
            $crate::ffi::guard(stringify!($name), || body($crate::current::Default::PerThread, $($argument),*))
        }
    };
    (@twin $name:ident,) => { None };
    (@twin $name:ident, $since:literal) => {
        Some(($since, $crate::api::Pointer($name::per_thread as *const std::ffi::c_void)))
    };
    ($($row:tt)*) => { $crate::api::api! { @rows [] $($row)* } };
}
pub(crate) use api;

/// Names that most families of functions need.
mod prelude {
    pub(super) use std::ffi::{c_char, c_void};

    pub(super) use super::api;
    pub(super) use crate::codes::{Answer, Code};
    pub(super) use crate::driver::driver;
    pub(super) use crate::ffi::{Extra, In, InOut, KernelParams, Out, Text};
    pub(super) use crate::handles::{Handle, Tag};
    pub(super) use crate::{current, work};
}

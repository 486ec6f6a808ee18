//! The one macro that makes a hook of a line.
//!
//! ```text
//!   gated     name(arguments) = 4000 export, 7000 ptsz export_ptsz;   passes the gate
//!   [ordered: stream]        name(arguments) = ...;                   the same in a stream, which may carry communication
//!   [one: stream]            name(arguments) = ...;                   passes the window of its stream, then the gate
//!   [kernel: f, stream]      name(arguments) = ...;                   the same for a kernel, which may talk to others
//!   [configured: f, config]  name(arguments) = ...;                   the same, with the stream in a configuration
//!   [graph: graph, stream]   name(arguments) = ...;                   the same, and may take memory for itself
//!   graph     name(arguments) = ...;                                  gated, and may take memory for itself
//!   blocking  name(arguments) = ...;                                  waits for its default stream first
//!   [hook: a, b] name(arguments) = ...;                               calls hook(a, b, || the real one)
//! ```
//!
//! `name` is what `cuGetProcAddress` takes; each variant gives the CUDA version that introduced it, `ptsz` or
//! `ptds` if it is the twin for the per-thread default stream, and the driver's export. For each variant the macro makes
//! the exported function and its row of the table.
//!
//! Hooks and the driver's functions may unwind: a thread that is cancelled inside the driver, or an exception that a
//! callback throws, passes and gives back what its hook holds. Panics of ours stop here ([`guest`]). The
//! gate's own hooks cannot panic while it is open, and what they do while it is closed stops its panics itself.
//!
//! [`guest`]: gpushare_client::guest::guest

use std::ffi::c_void;

/// A pointer that is only passed on.
pub(crate) type Pointer = *mut c_void;

macro_rules! hooks {
    (@enter gated $row:ident $real:expr) => {{
        let _pass = gpushare_client::hooks::work::pass();
        $real
    }};
    (@enter [ordered: $stream:expr] $row:ident $real:expr) => {{
        let page = gpushare_client::process::page();
        let _pass = gpushare_client::hooks::work::pass_with(page, || gpushare_client::hooks::work::Work::One($stream));
        $real
    }};
    (@enter [one: $stream:expr] $row:ident $real:expr) => {
        hooks!(@window One($stream), $row $real)
    };
    (@enter [kernel: $function:expr, $stream:expr] $row:ident $real:expr) => {
        hooks!(@window Kernel($function, $stream), $row $real)
    };
    (@enter [configured: $function:expr, $config:expr] $row:ident $real:expr) => {
        hooks!(@window Configured($function, $config), $row $real)
    };
    (@enter [graph: $graph:expr, $stream:expr] $row:ident $real:expr) => {{
        let result = hooks!(@window Graph($graph, $stream), $row $real);
        gpushare_client::hooks::graph_memory::after_launch();
        result
    }};
    // One call of the driver for both ways: with two, each launch would keep its arguments for the other.
    (@window $work:ident($($given:expr),*), $row:ident $real:expr) => {{
        let page = gpushare_client::process::page();
        let work = || gpushare_client::hooks::work::Work::$work($($given),*);
        if gpushare_client::hooks::work::is_windowed(page) {
            gpushare_client::hooks::work::pass_window(work(), $row.default_stream());
        }
        let _pass = gpushare_client::hooks::work::pass_with(page, work);
        $real
    }};
    (@enter graph $row:ident $real:expr) => {{
        let result = {
            let _pass = gpushare_client::hooks::work::pass();
            $real
        };
        gpushare_client::hooks::graph_memory::after_launch();
        result
    }};
    (@enter blocking $row:ident $real:expr) => {{
        let _pass = gpushare_client::hooks::work::pass_blocking($row.default_stream());
        $real
    }};
    (@enter [$hook:path : $($given:expr),*] $row:ident $real:expr) => {
        gpushare_client::guest::guest(move || $hook($($given,)* move || $real))
    };
    (@twin) => { false };
    (@twin $mark:ident) => { true };
    (@name $name:ident) => {
        // SAFETY: an identifier has no NUL, and one is appended.
        unsafe { std::ffi::CStr::from_bytes_with_nul_unchecked(concat!(stringify!($name), "\0").as_bytes()) }
    };

    // One exported function and its row.
    (@variant $via:tt $base:ident $arguments:tt $version:literal [$($twin:ident)?] $export:ident) => {
        mod $export {
            pub(super) static ROW: gpushare_client::rows::Row = gpushare_client::rows::Row::new(
                crate::hook::hooks!(@name $base),
                $version,
                crate::hook::hooks!(@twin $($twin)?),
                crate::hook::hooks!(@name $export),
                super::$export as *const std::ffi::c_void,
            );
        }
        hooks!(@function $via $arguments $export);
    };
    (@function $via:tt ($($arg:ident: $type:ty),*) $export:ident) => {
        /// The driver's function of this name, through its hook.
        ///
        /// # Safety
        /// As the CUDA driver API demands of its caller.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $export($($arg: $type),*) -> gpushare_client::cuda::CUresult {
            use $export::ROW as row;
            let real = row.real();
            if real.is_null() {
                return gpushare_client::cuda::CUDA_ERROR_NOT_FOUND;
            }
            // SAFETY: the driver's export of this name has this type (CUDA driver API).
            let real = unsafe {
                std::mem::transmute::<
                    *mut std::ffi::c_void,
                    unsafe extern "C-unwind" fn($($type),*) -> gpushare_client::cuda::CUresult,
                >(real)
            };
            // SAFETY: the arguments are the application's own, and the hook is told what they are.
            #[allow(unused_unsafe)]
            unsafe { hooks!(@enter $via row real($($arg),*)) }
        }
    };

    // All lines of a file.
    ($($via:tt $base:ident $arguments:tt = $($version:literal $($export:ident)+),+;)*) => {
        $($( hooks!(@split $via $base $arguments $version $($export)+); )+)*
        /// The rows of this file.
        pub(crate) static ROWS: &[&gpushare_client::rows::Row] = &[$($( hooks!(@row $($export)+) ),+),*];
    };
    (@split $via:tt $base:ident $arguments:tt $version:literal $export:ident) => {
        hooks!(@variant $via $base $arguments $version [] $export);
    };
    (@split $via:tt $base:ident $arguments:tt $version:literal $twin:ident $export:ident) => {
        hooks!(@variant $via $base $arguments $version [$twin] $export);
    };
    (@row $export:ident) => { &$export::ROW };
    (@row $twin:ident $export:ident) => { &$export::ROW };
}

pub(crate) use hooks;

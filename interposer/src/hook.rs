//! Macro that makes the exported functions of the driver, and their rows of the hook table, from lines like
//! these:
//!
//! ```text
//!   gated export twin(arguments);            passes the gate
//!   [ordered: stream] ...                    passes the gate; the stream may communicate with other cards
//!   [one: stream] ...                        passes the launch window of its stream, then the gate
//!   [kernel: function, parameters, x, y, z, stream] ...
//!                                            as `one`; the kernel may communicate with other cards
//!   [configured: function, parameters, config] ...
//!                                            as `kernel`, with the stream in a launch configuration
//!   [graph: graph, stream] ...               as `one`; a graph may take memory when it is launched
//!   blocking ...                             waits for its default stream, then passes the gate
//!   [at_once: twin(a, b), addresses] ...     passes like `one` for device memory, else like `blocking`; for
//!                                            rewritten memory calls the asynchronous export `twin` instead
//!   [staged: twin(a, b), address, source, bytes] ...
//!                                            as `blocking`, but a few bytes of rewritten memory are copied by the
//!                                            asynchronous export `twin`; `source` is the host memory that it reads
//!   [hook: a, b] ...                         calls hook(a, b, || the driver's function)
//!   [x => hook: a, b] ...                    calls hook(a, b, x, |x| the driver's function), which may change x
//! ```
//!
//! A line names every export with these arguments and this behaviour. `gpushare-symbols` knows the base name
//! and the CUDA version of each export.
//!
//! Hooks and driver functions may unwind: a cancelled thread, or an exception of a callback, passes through a
//! hook, which releases its locks. Panics of gpushare stop in [`guest`]. Hooks that only pass the gate need
//! no [`guest`], because the gate catches its own panics.
//!
//! [`guest`]: gpushare_client::process::panics::guest

use std::ffi::c_void;

/// Pointer argument that the hook passes to the driver unchanged.
pub(crate) type Pointer = *mut c_void;

macro_rules! hooks {
    (@enter gated $row:ident $real:expr) => {
        hooks!(@behind gpushare_client::hooks::work::pass(), $real)
    };
    (@enter [ordered: $stream:expr] $row:ident $real:expr) => {{
        let page = gpushare_client::gate::page();
        gpushare_client::hooks::work::note_stream(page, $stream, $row.default_stream());
        let work = || gpushare_client::hooks::work::Work::Ordered($stream);
        hooks!(@behind gpushare_client::hooks::work::pass_with(page, work), $real)
    }};
    (@enter [one: $stream:expr] $row:ident $real:expr) => {
        hooks!(@window One($stream), $row $real)
    };
    (@enter [kernel: $function:expr, $parameters:expr, $gx:expr, $gy:expr, $gz:expr, $stream:expr] $row:ident $real:expr) => {
        hooks!(@window Kernel($function, $parameters, [$gx, $gy, $gz], $stream), $row $real)
    };
    (@enter [configured: $function:expr, $parameters:expr, $config:expr] $row:ident $real:expr) => {
        hooks!(@window Configured($function, $parameters, $config), $row $real)
    };
    (@enter [graph: $graph:expr, $stream:expr] $row:ident $real:expr) => {{
        let result = hooks!(@window Graph($graph, $stream), $row $real);
        gpushare_client::hooks::graph_memory::after_launch();
        result
    }};
    // One call of the driver for both ways: with two, each launch would keep its arguments for the other.
    (@window $work:ident($($given:expr),*), $row:ident $real:expr) => {{
        let page = gpushare_client::gate::page();
        let work = || gpushare_client::hooks::work::Work::$work($($given),*);
        if gpushare_client::hooks::work::is_watched(page) {
            gpushare_client::hooks::work::pass_window(work(), $row.default_stream());
        }
        hooks!(@behind gpushare_client::hooks::work::pass_with(page, work), $real)
    }};
    (@enter blocking $row:ident $real:expr) => {
        hooks!(@behind gpushare_client::hooks::work::pass_blocking($row.default_stream()), $real)
    };
    // The driver does not see a call whose wait at the gate was interrupted.
    (@behind $passed:expr, $real:expr) => {
        match $passed {
            Ok(_pass) => $real,
            Err(interrupted) => interrupted,
        }
    };
    (@enter [at_once: $twin:ident($($given:expr),*), $($address:expr),+] $row:ident $real:expr) => {
        match gpushare_client::hooks::work::way(&[$($address),+]) {
            gpushare_client::hooks::work::Way::Asynchronous => $twin($($given,)* std::ptr::null_mut()),
            gpushare_client::hooks::work::Way::AtOnce => {
                hooks!(@window One(std::ptr::null_mut()), $row $real)
            }
            gpushare_client::hooks::work::Way::Blocking => hooks!(@enter blocking $row $real),
        }
    };
    (@enter [staged: $twin:ident($($given:expr),*), $address:expr, $source:expr, $bytes:expr] $row:ident $real:expr) => {{
        let copy = || $twin($($given,)* std::ptr::null_mut());
        let staged = || gpushare_client::hooks::work::stage($address, $source, $bytes, $row.default_stream(), copy);
        match gpushare_client::process::panics::guest_or(staged, || None) {
            Some(result) => result,
            None => hooks!(@enter blocking $row $real),
        }
    }};
    (@enter [$changed:ident => $hook:path : $($given:expr),*] $row:ident $real:expr) => {
        gpushare_client::process::panics::guest(move || $hook($($given,)* $changed, move |$changed| {
            gpushare_client::freeze::hold::pause();
            $real
        }))
    };
    (@enter [$hook:path : $($given:expr),*] $row:ident $real:expr) => {
        gpushare_client::process::panics::guest(move || $hook($($given,)* move || {
            gpushare_client::freeze::hold::pause();
            $real
        }))
    };

    // One exported function and its row.
    (@export $via:tt ($($arg:ident: $type:ty),*) $export:ident) => {
        mod $export {
            pub(super) static ROW: gpushare_client::driver::hook_table::Row = gpushare_client::driver::hook_table::Row::new(
                concat!(stringify!($export), "\0"),
                super::$export as *const std::ffi::c_void,
            );
        }

        /// Calls the driver's function of this name through gpushare's hook.
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C-unwind" fn $export($($arg: $type),*) -> gpushare_client::driver::types::CUresult {
            use $export::ROW as row;
            let real = row.real();
            if real.is_null() {
                return gpushare_client::driver::types::CUDA_ERROR_NOT_FOUND;
            }
            // SAFETY: the driver's export of this name has this type (CUDA driver API).
            let real = unsafe {
                std::mem::transmute::<
                    *mut std::ffi::c_void,
                    unsafe extern "C-unwind" fn($($type),*) -> gpushare_client::driver::types::CUresult,
                >(real)
            };
            // SAFETY: the arguments are the application's own, and the hook is told what they are.
            #[allow(unused_unsafe)]
            unsafe { hooks!(@enter $via row real($($arg),*)) }
        }
    };
    (@line $via:tt $arguments:tt $($export:ident)+) => {
        $( hooks!(@export $via $arguments $export); )+
    };

    // All lines of a file.
    ($($via:tt $($export:ident)+ ($($arguments:tt)*);)*) => {
        $( hooks!(@line $via ($($arguments)*) $($export)+); )*
        pub(crate) static ROWS: &[&gpushare_client::driver::hook_table::Row] = &[$($(&$export::ROW),+),*];
    };
}

pub(crate) use hooks;

//! libgpushare.so: the exported CUDA entry points, one line each. What they do is in `gpushare-client`.
//!
//! This crate is a cdylib without tests, so that its `dlsym` never enters a test binary.
#![allow(non_snake_case)]

mod hook;

mod launch;

mod copy;

mod set;

mod place;

mod order;

mod memory;

mod pool;

mod context;

mod nvml;

mod control;

mod marks;

mod lookup;

use gpushare_client::rows::Table;

/// What the file says of itself. `gpushare-ctl doctor` reads it there, since it must not load a broken library to ask.
#[unsafe(export_name = "gpushare_version")]
#[used]
static VERSION: [u8; TEXT.len()] = *TEXT.as_bytes().first_chunk().unwrap();
const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Every hooked symbol.
static TABLE: Table = Table::new(&[
    launch::ROWS,
    copy::ROWS,
    set::ROWS,
    place::ROWS,
    order::ROWS,
    memory::ROWS,
    pool::ROWS,
    context::ROWS,
    lookup::ROWS,
]);

//! `libgpushare.so`: the exported CUDA and NVML functions, one line for each signature. Their behaviour is in
//! `gpushare-client`.
//!
//! This crate is a cdylib without tests, so that its `dlsym` never becomes part of a test binary.
#![allow(non_snake_case)]

mod hook;
mod launch;
mod copy;
mod set;
mod place;
mod order;
mod addresses;
mod memory;
mod pool;
mod graphics;
mod context;
mod nvml;
mod control;
mod marks;
mod lookup;

use gpushare_client::driver::hook_table::Table;

/// Version of this library. `gpushare-ctl doctor` reads it from the file, because loading a broken library is
/// unsafe.
#[unsafe(export_name = "gpushare_version")]
#[used]
static VERSION: [u8; TEXT.len()] = *TEXT.as_bytes().first_chunk().unwrap();
const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

static TABLE: Table = Table::new(&[
    launch::ROWS,
    copy::ROWS,
    set::ROWS,
    place::ROWS,
    order::ROWS,
    addresses::ROWS,
    memory::ROWS,
    pool::ROWS,
    graphics::ROWS,
    context::ROWS,
    lookup::ROWS,
]);

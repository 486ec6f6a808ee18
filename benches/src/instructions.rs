//! Launches, allocates and frees in turn, each in a function of its own that callgrind is told to count in.
//!
//! ```text
//!   callgrind --toggle-collect=counted_launch   instructions --calls N
//!     retain the context        not counted
//!     hold some blocks          not counted
//!     a first turn              not counted: it waits for the gate and looks functions up
//!     N × { counted_launch      counted, down to the driver
//!           counted_allocate    not counted
//!           counted_free }      not counted
//! ```

mod launch;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use anyhow::{Context, ensure};
use clap::Parser;
use launch::Launch;
use libloading::Library;

/// `cuMemAlloc`.
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
/// `cuMemFree`.
type Free = unsafe extern "C" fn(u64) -> c_int;
/// `cuDevicePrimaryCtxRetain`.
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;

/// Blocks that are held all the time, as a program holds its weights.
const HELD: usize = 100;
/// Bytes of a block.
const BLOCK: usize = 4096;

/// Launch, allocate and free for callgrind to count
#[derive(Parser)]
struct Arguments {
    /// Turns that are counted
    #[arg(long)]
    calls: u32,
}

fn main() -> anyhow::Result<()> {
    let Arguments { calls } = Arguments::parse();
    // SAFETY: the driver under test has no initialisers.
    let driver = unsafe { Library::new("libcuda.so.1") }.context("cannot open libcuda.so.1")?;
    // SAFETY: the driver's headers give these exports these signatures.
    let (launch, allocate, free, retain) = unsafe {
        (
            driver.get::<Launch>("cuLaunchKernel")?,
            driver.get::<Allocate>("cuMemAlloc_v2")?,
            driver.get::<Free>("cuMemFree_v2")?,
            driver.get::<Retain>("cuDevicePrimaryCtxRetain")?,
        )
    };
    let mut context = null_mut();
    // SAFETY: writes one handle.
    let retained = unsafe { retain(&raw mut context, 0) };
    ensure!(retained == 0, "the context was refused with error {retained}");
    for _ in 0..HELD {
        let error = call_allocate(*allocate, &mut 0);
        ensure!(error == 0, "an allocation failed with error {error}");
    }
    let mut address = 0;
    succeeded([call_launch(*launch), call_allocate(*allocate, &mut address), call_free(*free, address)])?;
    for _ in 0..calls {
        succeeded([
            counted_launch(*launch),
            counted_allocate(*allocate, &mut address),
            counted_free(*free, address),
        ])?;
    }
    Ok(())
}

fn succeeded(errors: [c_int; 3]) -> anyhow::Result<()> {
    ensure!(errors == [0; 3], "launch, allocate and free answered {errors:?}");
    Ok(())
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted_launch(launch: Launch) -> c_int {
    call_launch(launch)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted_allocate(allocate: Allocate, address: &mut u64) -> c_int {
    call_allocate(allocate, address)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted_free(free: Free, address: u64) -> c_int {
    call_free(free, address)
}

#[inline(always)]
fn call_launch(launch: Launch) -> c_int {
    returned(launch::call(launch))
}

#[inline(always)]
fn call_allocate(allocate: Allocate, address: &mut u64) -> c_int {
    // SAFETY: writes one address.
    returned(unsafe { allocate(address, BLOCK) })
}

#[inline(always)]
fn call_free(free: Free, address: u64) -> c_int {
    // SAFETY: the address came from the driver and is not used again.
    returned(unsafe { free(address) })
}

/// Keeps the call before it from being the last thing its function does: callgrind must see it return there.
fn returned(error: c_int) -> c_int {
    std::hint::black_box(error)
}

//! Makes calls of a driver that does nothing, many times, and prints what one costs as one line of JSON.
//!
//! ```text
//!   launch    launches, by one thread or several at once
//!   memory    allocations and frees, a hundred of each in turn, while a hundred blocks are held
//!   map       lookups in a hash map behind a mutex: no call of the driver, but what the others are compared with
//!   refuse    allocations that are larger than any quota; by the clock, because the daemon is told meanwhile
//!   hold      none: has a context until its stdin ends, so that others are not alone
//!   resolve   lookups of 481 functions, as many as libcudart makes when it starts; once, in a new process
//! ```
//!
//! Run with and without the preload; the difference is what we add. The time is the thread's own CPU time,
//! so that other threads on the same core do not count.

mod launch;

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::hint::black_box;
use std::ptr::null_mut;
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, ensure};
use clap::{Parser, ValueEnum};
use gpushare_symbols::{Variant, variants};
use launch::Launch;
use libloading::Library;
use rustix::time::{ClockId, clock_gettime};

/// `cuMemAlloc`.
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
/// `cuMemFree`.
type Free = unsafe extern "C" fn(u64) -> c_int;
/// `cuDevicePrimaryCtxRetain`.
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
/// `cuGetProcAddress`.
type Lookup = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_int) -> c_int;

/// Blocks that are held all the time, and those that come and go.
const BLOCKS: usize = 100;
/// Bytes of a block.
const BLOCK: usize = 4096;
/// More than any quota of the bench.
const TOO_LARGE: usize = 1 << 40;
/// Entries of the hash map that calls are compared with.
const ENTRIES: u64 = 1000;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: c_int = 2;
/// Functions that libcudart looks up when it starts.
const LOOKUPS: usize = 481;

/// Measure calls that do nothing
#[derive(Parser)]
struct Arguments {
    /// Function that is called
    #[arg(long, value_enum, default_value_t)]
    call: Call,
    /// Threads that launch at once
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Batches of each thread; the median batch counts
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// Have a context before the first launch, as a program that shares has
    #[arg(long)]
    context: bool,
    /// Launches of one batch
    #[arg(long, default_value_t = 20_000)]
    calls: u32,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Call {
    #[default]
    Launch,
    Memory,
    Map,
    Refuse,
    Hold,
    Resolve,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    // SAFETY: the driver under test has no initialisers.
    let driver = unsafe { Library::new("libcuda.so.1") }.context("cannot open libcuda.so.1")?;
    let line = match arguments.call {
        Call::Launch => launches(&driver, &arguments)?,
        Call::Memory => memory(&driver, arguments.batches)?,
        Call::Map => map(&arguments)?,
        Call::Refuse => refuse(&driver, arguments.batches)?,
        Call::Hold => hold(&driver)?,
        Call::Resolve => resolve(&driver)?,
    };
    println!("{line}");
    Ok(())
}

fn launches(driver: &Library, arguments: &Arguments) -> anyhow::Result<serde_json::Value> {
    let &Arguments { threads, batches, calls, context, .. } = arguments;
    if context {
        retain(driver)?;
    }
    // SAFETY: the driver's headers give this export this signature.
    let launch = unsafe { driver.get::<Launch>("cuLaunchKernel") }?;

    let together = Barrier::new(threads);
    let work = || {
        together.wait();
        (0..batches).map(|_| batch(*launch, calls)).collect::<Vec<u64>>()
    };
    let nanos = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect::<Vec<_>>()
    })
    .concat();
    Ok(serde_json::json!({
        "call_ns": median(nanos)? / f64::from(calls),
        "library": library_of(*launch as usize)?,
    }))
}

fn map(arguments: &Arguments) -> anyhow::Result<serde_json::Value> {
    let map: Mutex<HashMap<u64, u64>> = Mutex::new((0..ENTRIES).map(|key| (key, key)).collect());
    let batch = |_| {
        let start = cpu_time();
        for call in 0..arguments.calls {
            let key = u64::from(call) * 7 % ENTRIES;
            black_box(black_box(&map).lock().unwrap_or_else(PoisonError::into_inner).get(&key));
        }
        cpu_time() - start
    };
    let nanos = (0..arguments.batches).map(batch).collect();
    Ok(serde_json::json!({ "call_ns": median(nanos)? / f64::from(arguments.calls), "library": "" }))
}

fn memory(driver: &Library, batches: usize) -> anyhow::Result<serde_json::Value> {
    // SAFETY: the driver's headers give these exports these signatures.
    let (allocate, free) =
        unsafe { (driver.get::<Allocate>("cuMemAlloc_v2")?, driver.get::<Free>("cuMemFree_v2")?) };
    retain(driver)?;

    let (mut held, mut blocks) = ([0; BLOCKS], [0; BLOCKS]);
    let fill = |blocks: &mut [u64]| {
        // SAFETY: writes one address.
        let allocate = |block: &mut u64| unsafe { allocate(block, BLOCK) };
        blocks.iter_mut().map(allocate).sum::<c_int>()
    };
    let empty = |blocks: &[u64]| {
        // SAFETY: the address came from the driver and is not used again.
        let free = |&block: &u64| unsafe { free(block) };
        blocks.iter().map(free).sum::<c_int>()
    };
    let (mut allocating, mut freeing) = (Vec::new(), Vec::new());
    let mut errors = fill(&mut held);
    // The first turns ask for a lease and look functions up.
    for turn in 0..batches * 11 / 10 {
        let begun = cpu_time();
        errors += fill(&mut blocks);
        let filled = cpu_time();
        errors += empty(&blocks);
        let emptied = cpu_time();
        if turn >= batches / 10 {
            allocating.push(filled - begun);
            freeing.push(emptied - filled);
        }
    }
    ensure!(errors == 0, "an allocation or a free failed");
    Ok(serde_json::json!({
        "call_ns": median(allocating)? / BLOCKS as f64,
        "free_ns": median(freeing)? / BLOCKS as f64,
        "library": library_of(*allocate as usize)?,
    }))
}

/// Batches of a hundred, with a pause after each: a process that is refused does something else before it
/// tries again, and who is told has time to listen.
fn refuse(driver: &Library, batches: usize) -> anyhow::Result<serde_json::Value> {
    // SAFETY: the driver's headers give this export this signature.
    let allocate = unsafe { driver.get::<Allocate>("cuMemAlloc_v2") }?;
    let mut address = 0;
    retain(driver)?;
    let mut took = Vec::new();
    for _ in 0..batches {
        for _ in 0..BLOCKS {
            let begun = Instant::now();
            // SAFETY: writes one address, if it succeeds.
            let error = unsafe { allocate(&raw mut address, TOO_LARGE) };
            took.push(u64::try_from(begun.elapsed().as_nanos())?);
            ensure!(error == OUT_OF_MEMORY, "the answer was {error} and not out of memory");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(serde_json::json!({ "call_ns": median(took)?, "library": library_of(*allocate as usize)? }))
}

/// Has a context, and says so, until its stdin ends.
fn hold(driver: &Library) -> anyhow::Result<serde_json::Value> {
    retain(driver)?;
    println!("{{}}");
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(serde_json::json!({}))
}

fn retain(driver: &Library) -> anyhow::Result<()> {
    // SAFETY: the driver's headers give this export this signature.
    let retain = unsafe { driver.get::<Retain>("cuDevicePrimaryCtxRetain") }?;
    let mut context = null_mut();
    // SAFETY: writes one handle.
    let retained = unsafe { retain(&raw mut context, 0) };
    ensure!(retained == 0, "the context was refused with error {retained}");
    Ok(())
}

fn resolve(driver: &Library) -> anyhow::Result<serde_json::Value> {
    // SAFETY: the driver's headers give this export this signature.
    let lookup = unsafe { driver.get::<Lookup>("cuGetProcAddress_v2") }?;
    let listed: Vec<&Variant> = variants().iter().filter(|variant| variant.is_listed()).collect();
    let asked = (0..LOOKUPS)
        .map(|number| listed[number * listed.len() / LOOKUPS])
        .map(|variant| {
            let version = c_int::try_from(variant.version.0)?;
            Ok((CString::new(variant.base)?, version, 1 + u64::from(variant.per_thread())))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (mut found, mut status) = (null_mut(), 0);
    let begun = cpu_time();
    let mut errors = 0;
    for (base, version, flags) in &asked {
        // SAFETY: the name ends with a NUL, and both results are writable.
        errors += unsafe { lookup(base.as_ptr(), &raw mut found, *version, *flags, &raw mut status) };
    }
    let took = cpu_time() - begun;
    ensure!(errors == 0, "the driver does not find all of its functions");
    Ok(serde_json::json!({ "call_ns": took, "library": library_of(*lookup as usize)? }))
}

fn median(mut nanos: Vec<u64>) -> anyhow::Result<f64> {
    nanos.sort_unstable();
    let median = nanos.get(nanos.len() / 2).context("nothing was measured")?;
    Ok(*median as f64)
}

/// CPU nanoseconds of one batch.
fn batch(launch: Launch, calls: u32) -> u64 {
    let start = cpu_time();
    for _ in 0..calls {
        launch::call(launch);
    }
    cpu_time() - start
}

/// The file of the library that an address lies in: proof of whether the call was hooked.
fn library_of(address: usize) -> anyhow::Result<String> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let holds = |line: &&str| {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        let parse = |hex| usize::from_str_radix(hex, 16).unwrap_or_default();
        range.is_some_and(|(from, to)| (parse(from)..parse(to)).contains(&address))
    };
    let line = maps.lines().find(holds).context("the launch is nowhere in memory")?;
    Ok(line.rsplit('/').next().unwrap_or_default().to_owned())
}

fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

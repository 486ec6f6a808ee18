//! Calls a launch that does nothing, many times, and prints what one call costs as one line of JSON.
//!
//! Run with and without the preload; the difference is what the hook and an open gate add. The time is the
//! thread's own CPU time, so that other threads on the same core do not count.

mod launch;

use std::sync::Barrier;
use std::{fs, thread};

use anyhow::Context;
use clap::Parser;
use launch::Launch;
use libloading::Library;
use rustix::time::{ClockId, clock_gettime};

/// Measure a launch that does nothing
#[derive(Parser)]
struct Arguments {
    /// Threads that call at once
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Batches of each thread; the median batch counts
    #[arg(long, default_value_t = 200)]
    batches: usize,
    /// Calls of one batch
    #[arg(long, default_value_t = 20_000)]
    calls: u32,
}

fn main() -> anyhow::Result<()> {
    let Arguments {
        threads,
        batches,
        calls,
    } = Arguments::parse();
    // SAFETY: the driver under test has no initialisers.
    let driver = unsafe { Library::new("libcuda.so.1") }.context("cannot open libcuda.so.1")?;
    // SAFETY: the driver's headers give this export this signature.
    let launch = unsafe { driver.get::<Launch>("cuLaunchKernel") }?;

    let together = Barrier::new(threads);
    let work = || {
        together.wait();
        (0..batches).map(|_| batch(*launch, calls)).collect::<Vec<u64>>()
    };
    let mut nanos = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .collect::<Vec<_>>()
    })
    .concat();
    nanos.sort_unstable();
    let median = nanos.get(nanos.len() / 2).context("nothing was measured")?;
    let line = serde_json::json!({
        "call_ns": *median as f64 / f64::from(calls),
        "threads": threads,
        "library": library_of(*launch as usize)?,
    });
    println!("{line}");
    Ok(())
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
    let line = maps
        .lines()
        .find(holds)
        .context("the launch is nowhere in memory")?;
    Ok(line.rsplit('/').next().unwrap_or_default().to_owned())
}

fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

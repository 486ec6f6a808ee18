//! `train`: a program that keeps touching all of its memory, and knows at the end whether any of it is wrong.
//!
//! ```text
//! allocate ─> fill every page ─> [ touch every page ─> add to one buffer ─> compute ─> host gap ] × steps ─> checksum
//! ```
//!
//! Each step needs all of the memory on the card but changes one buffer in turn, because the simulated card
//! really computes, and its time should be the model's and not that of the machine under it.
//!
//! With `--async-ahead N` the host runs at most N steps ahead of the GPU, as training loops do.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::thread;

use clap::Args;
use gpushare_proto::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::driver::Handle;
use crate::error::CudaError;
use crate::gpu::{DEFAULT_STREAM, Gpu};
use crate::kernels::Kernel;
use crate::memory::{Buffer, Door};
use crate::pattern;
use crate::report::percentile;

/// Words from one touched word to the next: 64 KiB, the smallest page of any driver's managed memory.
const TOUCH_STRIDE: u64 = (64 << 10) / 4;

/// Size and length of a training.
#[derive(Clone, Debug, Args)]
pub struct Plan {
    /// Memory of all buffers together
    #[arg(long, value_name = "SIZE")]
    pub memory: Bytes,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub steps: u32,
    /// Begin no step once this file exists, however many are left
    #[arg(long, value_name = "FILE")]
    pub until: Option<PathBuf>,
    /// Buffers
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    pub buffers: u32,
    /// How the buffers are allocated
    #[arg(long, value_enum, default_value_t)]
    pub door: Door,
    /// What the memory is filled with
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u32,
    /// Times that each step adds to its buffer: work that takes longer when others have the GPU too
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub passes: u32,
    /// Time that a kernel spins in each step: a wait that others' work does not lengthen
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    pub compute: Nanos,
    /// Time that the host works after each step
    #[arg(long, value_name = "TIME", default_value = "0ms")]
    pub host_gap: Nanos,
    /// Time from the beginning of a step to that of the next: bursts of work. None begins before the last
    /// has ended
    #[arg(long, value_name = "TIME", conflicts_with = "host_gap")]
    pub every: Option<Nanos>,
    /// Steps that the host may run ahead of the GPU
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub async_ahead: u32,
    /// Also report when each step began and ended
    #[arg(long)]
    pub trace: bool,
    /// Progress on stderr
    #[arg(long)]
    pub verbose: bool,
}

/// Result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Whether every buffer holds what it must.
    pub ok: bool,
    /// Buffers that do not.
    pub corrupted: u32,
    /// Steps done.
    pub steps: u32,
    /// Wall time from the first allocation to the last checksum.
    pub seconds: f64,
    /// Steps per second of the steps alone.
    pub steps_per_s: f64,
    /// `CLOCK_MONOTONIC` before the first allocation.
    pub start_ns: Nanos,
    /// `CLOCK_MONOTONIC` after the last checksum.
    pub end_ns: Nanos,
    /// Median time of a step.
    pub step_ns_p50: Nanos,
    /// 99th percentile.
    pub step_ns_p99: Nanos,
    /// When the host began each step, by `CLOCK_MONOTONIC`, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_begins_ns: Option<Vec<Nanos>>,
    /// When each step ended, by `CLOCK_MONOTONIC`, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_ends_ns: Option<Vec<Nanos>>,
}

/// Runs the whole program.
pub fn run(gpu: &Gpu, plan: &Plan) -> Result<Report, CudaError> {
    let start = clock::now();
    let buffers = allocate(gpu, plan)?;
    for (buffer, seed) in buffers.iter().zip(plan.seed..) {
        fill(gpu, *buffer, seed)?;
    }
    gpu.synchronize()?;
    let first_step = clock::now();
    let Steps { begins, ends } = steps(gpu, plan, &buffers)?;
    let last_step = clock::now();
    // As many as there were.
    let done = begins.len() as u32;

    let mut corrupted = 0;
    for (index, (buffer, seed)) in buffers.iter().zip(plan.seed..).enumerate() {
        let sum = gpu.checksum(*buffer)?;
        corrupted += u32::from(sum != pattern::checksum(buffer.words(), seed, added(plan, done, index)));
    }
    for buffer in buffers {
        gpu.free(buffer)?;
    }
    let end = clock::now();

    let mut times: Vec<Nanos> = ends
        .iter()
        .scan(first_step, |from, &to| Some(to - std::mem::replace(from, to)))
        .collect();
    times.sort_unstable();
    Ok(Report {
        ok: corrupted == 0,
        corrupted,
        steps: done,
        seconds: seconds(end - start),
        steps_per_s: f64::from(done) / seconds(last_step - first_step).max(f64::EPSILON),
        start_ns: start,
        end_ns: end,
        step_ns_p50: percentile(&times, 50),
        step_ns_p99: percentile(&times, 99),
        step_begins_ns: plan.trace.then_some(begins),
        step_ends_ns: plan.trace.then_some(ends),
    })
}

fn allocate(gpu: &Gpu, plan: &Plan) -> Result<Vec<Buffer>, CudaError> {
    let each = Bytes(plan.memory.0 / u64::from(plan.buffers));
    (0..plan.buffers).map(|_| gpu.allocate(each, plan.door)).collect()
}

fn fill(gpu: &Gpu, buffer: Buffer, seed: u32) -> Result<(), CudaError> {
    for (first, count, value) in pattern::pages(buffer.words(), seed) {
        let p = buffer.address + first * 4;
        gpu.launch(Kernel::Fill { p, n: count, value }, DEFAULT_STREAM)?;
    }
    Ok(())
}

/// When the host began each step, and when each ended on the GPU.
#[derive(Default)]
struct Steps {
    begins: Vec<Nanos>,
    ends: Vec<Nanos>,
}

fn steps(gpu: &Gpu, plan: &Plan, buffers: &[Buffer]) -> Result<Steps, CudaError> {
    let mut times = Steps::default();
    let mut in_flight: VecDeque<Handle> = VecDeque::new();
    for step in 0..plan.steps {
        if plan.until.as_deref().is_some_and(Path::exists) {
            break;
        }
        if let (Some(every), Some(&last)) = (plan.every, times.begins.last()) {
            thread::sleep((last + every - clock::now()).into());
        }
        times.begins.push(clock::now());
        for buffer in buffers {
            let touch = Kernel::Touch { p: buffer.address, n: buffer.words(), stride: TOUCH_STRIDE };
            gpu.launch(touch, DEFAULT_STREAM)?;
        }
        let buffer = buffers[turn(plan, step)];
        let add = Kernel::Add { p: buffer.address, n: buffer.words(), value: summand(step) };
        for _ in 0..plan.passes {
            gpu.launch(add, DEFAULT_STREAM)?;
        }
        if !plan.compute.is_zero() {
            let compute = Kernel::Spin { flag: 0, nanoseconds: plan.compute.0 };
            gpu.launch(compute, DEFAULT_STREAM)?;
        }
        let done = gpu.event()?;
        gpu.record(done, DEFAULT_STREAM)?;
        in_flight.push_back(done);
        while in_flight.len() > plan.async_ahead as usize {
            finish_oldest(gpu, &mut in_flight, &mut times.ends)?;
        }
        if !plan.host_gap.is_zero() {
            thread::sleep(plan.host_gap.into());
        }
        if plan.verbose {
            eprintln!("step {} of {}", step + 1, plan.steps);
        }
    }
    while !in_flight.is_empty() {
        finish_oldest(gpu, &mut in_flight, &mut times.ends)?;
    }
    Ok(times)
}

fn finish_oldest(
    gpu: &Gpu,
    in_flight: &mut VecDeque<Handle>,
    ends: &mut Vec<Nanos>,
) -> Result<(), CudaError> {
    if let Some(event) = in_flight.pop_front() {
        gpu.synchronize_event(event)?;
        ends.push(clock::now());
        gpu.destroy_event(event)?;
    }
    Ok(())
}

/// The buffer that step `step` changes.
fn turn(plan: &Plan, step: u32) -> usize {
    (step % plan.buffers) as usize
}

/// Number that a step adds in each pass. Each step has another one, so that none can stand for another.
fn summand(step: u32) -> u32 {
    step.wrapping_mul(0x9E37_79B1) | 1
}

/// Sum of that many steps for one buffer.
fn added(plan: &Plan, steps: u32, buffer: usize) -> u32 {
    (0..steps)
        .filter(|&step| turn(plan, step) == buffer)
        .map(|step| summand(step).wrapping_mul(plan.passes))
        .fold(0, u32::wrapping_add)
}

fn seconds(span: Nanos) -> f64 {
    std::time::Duration::from(span).as_secs_f64()
}

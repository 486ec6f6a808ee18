//! A CUDA program that knows nothing of gpushare: each command ends with one line of JSON on stdout.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gpushare_workload::device::Device;
use gpushare_workload::error::CudaError;
use gpushare_workload::gpu::Gpu;
use gpushare_workload::hold;
use gpushare_workload::report::finish;
use gpushare_workload::resolve::Resolve;
use gpushare_workload::train;

/// A CUDA driver-API program for demo, tests and benches
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The device, as CUDA numbers it
    #[arg(long, value_name = "N", default_value_t = 0, global = true)]
    device: i32,
    /// How the driver's functions are looked up
    #[arg(long, value_enum, default_value_t, global = true)]
    resolve: Resolve,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Tell what the device is
    Probe,
    /// Keep touching memory and check it at the end
    Train(train::Plan),
    /// Do what each line of stdin says
    Hold(hold::Options),
}

fn main() -> ExitCode {
    let Arguments { device, resolve, command } = Arguments::parse();
    let open = move || Device::open(resolve, device);
    match command {
        Command::Probe => finish(open().and_then(|device| device.facts())),
        Command::Train(plan) => finish(open().and_then(Gpu::start).and_then(|gpu| train::run(&gpu, &plan))),
        Command::Hold(options) => {
            hold::run(open, &options).unwrap_or_else(|error| finish(Err::<(), CudaError>(error)))
        }
    }
}

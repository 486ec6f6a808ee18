//! Developer commands. Progress goes to stderr; under `--json` stdout ends with one line of JSON.
//!
//! In reading order: where programs come from, how results are told, what is run, and the commands.
#![forbid(unsafe_code)]

mod output;
mod promise;

mod debian;
mod programs;
mod shipped;
mod tools;
mod venv;

mod contention;
mod demo;

mod bench;
mod chaos;
mod fuzz;
mod scenario;
mod sim;

mod extra;
mod imports;
mod symbols;

mod replay;
mod stage;
mod suite;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer commands of gpushare
#[derive(Parser)]
#[command(name = "cargo xtask", version)]
struct Arguments {
    /// End with one line of JSON on stdout
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Two programs that together need 1.5 times the card, without and with gpushare
    Demo(demo::Options),
    /// Hold gpushare against what it promises, on the simulated card; fails if a promise is broken
    #[command(subcommand)]
    Scenario(scenario::Scenario),
    /// Break things at random on the simulated card; fails if bytes are lost, a program hangs, or the dead hold what is not theirs
    Chaos(chaos::Options),
    /// Give the codec and the core what nobody would, for so long; fails if one of them panics or breaks a rule
    Fuzz(fuzz::Options),
    /// Measure one thing
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The checks that need other tools; installs what is missing
    CiExtra(extra::Options),
    /// Do again what a recorded daemon did, and hold it against the scheduler's rules
    Replay(replay::Options),
    /// Run the scheduler's core in virtual time on a trace, against what others do on the same cards
    Sim(sim::Options),
    /// Count what is done about the driver's functions, and hold the list against NVIDIA's headers
    Symbols,
    /// Find circles of imports that are wider than one folder
    Imports(imports::Options),
    /// Prepare a machine with a real GPU
    #[command(subcommand)]
    Gpu(Gpu),
}

#[derive(Subcommand)]
enum Gpu {
    /// Put stripped release builds of everything into target/stage
    Stage,
    /// Run the suite of tests/gpu on this machine's card, on a fresh stage
    Suite(suite::Options),
}

fn main() -> ExitCode {
    let Arguments { json, command } = Arguments::parse();
    let outcome = match command {
        Command::Demo(options) => demo::run(&options, json),
        Command::Scenario(scenario) => scenario::run(&scenario, json),
        Command::Chaos(options) => chaos::run(&options, json),
        Command::Fuzz(options) => fuzz::run(&options, json),
        Command::Bench(bench) => bench::run(&bench, json),
        Command::CiExtra(options) => extra::run(&options, json),
        Command::Replay(options) => replay::run(&options, json),
        Command::Sim(options) => sim::run(&options, json),
        Command::Symbols => symbols::run(json),
        Command::Imports(options) => imports::run(&options, json),
        Command::Gpu(Gpu::Stage) => stage::run(json),
        Command::Gpu(Gpu::Suite(options)) => suite::run(&options, json),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

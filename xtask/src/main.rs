//! Developer commands. Progress goes to stderr; under `--json` stdout ends with one line of JSON.
//!
//! In reading order: output and promises, the tools and programs that commands need, measurements, checks,
//! and the rest.
#![forbid(unsafe_code)]

mod load;
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
mod chromium;
mod fuzz;
mod scenario;
mod sim;

mod extra;
mod imports;
mod promises;
mod symbols;

mod book;
mod dist;
mod k8s;
mod manual;
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
    /// Measure every promise, and write docs/results/scoreboard.md; fails if one does not hold
    Promises(promises::Options),
    /// Measure one scenario's promises on the simulated card; fails if one does not hold
    #[command(subcommand)]
    Scenario(scenario::Scenario),
    /// Break things at random on the simulated card; fails if bytes are lost, a program hangs, or memory of
    /// a dead program stays
    Chaos(chaos::Options),
    /// Give random bytes to the codec and random events to the core; fails if one of them panics or breaks
    /// a rule
    Fuzz(fuzz::Options),
    /// Measure one thing
    #[command(subcommand)]
    Bench(bench::Bench),
    /// The checks that need other tools; installs what is missing
    CiExtra(extra::Options),
    /// Replay the decisions of a recorded daemon, and check them against the scheduler's rules
    Replay(replay::Options),
    /// Run the scheduler's core in virtual time on a trace, beside other schedulers on the same cards
    Sim(sim::Options),
    /// Write the packages for users into target/dist: an archive, a Python wheel, a Debian package
    Dist(dist::Options),
    /// The documentation as a book of HTML pages
    #[command(subcommand)]
    Book(book::Book),
    /// Write the plain manifests of Kubernetes, from the Helm chart
    Manifests,
    /// Run pods with shares on a node with a real API server, kubelet and container runtime, compiled from Debian's
    /// source
    Kubernetes,
    /// Write the manual pages of all commands
    Manual(manual::Options),
    /// Count how the driver's functions are treated, and compare the list with NVIDIA's headers
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
        Command::Promises(options) => promises::run(&options, json),
        Command::Scenario(scenario) => scenario::run(&scenario, json),
        Command::Chaos(options) => chaos::run(&options, json),
        Command::Fuzz(options) => fuzz::run(&options, json),
        Command::Bench(bench) => bench::run(&bench, json),
        Command::CiExtra(options) => extra::run(&options, json),
        Command::Replay(options) => replay::run(&options, json),
        Command::Sim(options) => sim::run(&options, json),
        Command::Dist(options) => dist::run(&options, json),
        Command::Book(book) => book::run(book, json),
        Command::Manifests => k8s::chart::run(),
        Command::Kubernetes => k8s::node::run(),
        Command::Manual(options) => manual::run(&options, json),
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

//! Cost of a quota and of a turn: in the process, at the daemon, in its core, and with a crowd. Prints one
//! line of JSON.
//!
//! ```text
//!   reserve   bytes taken from the lease and entered in the books, in this process, as every door does it
//!   recall    the last byte of a quota, which the daemon must take out of the pages of 32 siblings first
//!   crowd     1000 clients of 500 sessions, which take turns
//!   core      events of 1000 sessions on 8 cards, given to the core alone
//!   grant     a turn on a card that is free, from the request to the open gate
//! ```
//!
//! The clients speak the library's protocol over the daemon's socket and have the pages that it gave them,
//! and no CUDA. `sibling` and `echo` are the other processes of `recall` and `grant`.

mod core;
mod crowd;
mod echo;
mod figures;
mod grant;
mod peer;
mod recall;
mod reserve;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Measure what a quota and a turn cost
#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Take from the lease and enter in the books, and the way back
    Reserve,
    /// Take back what siblings leave unused, and an echo to compare with
    Recall {
        /// The daemon's socket for tenants
        #[arg(long)]
        socket: PathBuf,
    },
    /// Hand the card around among a thousand
    Crowd {
        /// The daemon's socket for tenants
        #[arg(long)]
        socket: PathBuf,
        /// Its process
        #[arg(long)]
        daemon: u32,
    },
    /// Give the core events as fast as it takes them
    Core {
        /// Give it so many rounds of events, and measure no time
        #[arg(long)]
        rounds: Option<u64>,
    },
    /// Ask for a turn on a card that is free, and an echo to compare with
    Grant {
        /// The daemon's socket for tenants
        #[arg(long)]
        socket: PathBuf,
        /// Its process
        #[arg(long)]
        daemon: u32,
    },
    /// One process of a session that leases a piece at each line of its input
    #[command(hide = true)]
    Sibling {
        #[arg(long)]
        socket: PathBuf,
    },
    /// Answers each frame with itself
    #[command(hide = true)]
    Echo {
        #[arg(long)]
        socket: PathBuf,
        #[arg(long)]
        length: usize,
    },
}

fn main() -> anyhow::Result<()> {
    let line = match Arguments::parse().command {
        Command::Reserve => reserve::measure()?,
        Command::Recall { socket } => recall::measure(&socket)?,
        Command::Crowd { socket, daemon } => crowd::measure(&socket, daemon)?,
        Command::Core { rounds } => core::measure(rounds)?,
        Command::Grant { socket, daemon } => grant::measure(&socket, daemon)?,
        Command::Sibling { socket } => return recall::sibling(&socket),
        Command::Echo { socket, length } => return echo::answer(&socket, length),
    };
    println!("{line}");
    Ok(())
}

//! Cost of a quota and of a turn: in the process, at the daemon, in its core, and with a crowd. Prints one
//! line of JSON.
//!
//! ```text
//!   reserve   bytes taken from the lease and entered in the books, in this process, as every door does it
//!   recall    the last byte of a quota, which the daemon must take out of the pages of 32 siblings first
//!   crowd     1000 clients of 500 sessions, which take turns
//!   viewer    1000 sessions, which take turns, with a viewer that follows them and without
//!   viewers   browsers that show the page of 1000 sessions, which take turns
//!   core      events of 1000 sessions on 8 cards, given to the core alone
//!   grant     a turn on a card that is free, from the request to the open gate
//!   hostile   grants of well-behaved sessions beside attacks of another user
//! ```
//!
//! The clients speak the library's protocol over the daemon's socket and have the pages that it gave them,
//! and no CUDA. `sibling`, `echo`, `rival` and `attack` are the other processes of `recall`,
//! `grant` and `hostile`.

mod core;
mod cores;
mod crowd;
mod echo;
mod figures;
mod grant;
mod hostile;
mod peer;
mod recall;
mod reserve;
mod viewer;
mod viewers;

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use gpushare_proto::names::RuntimeDir;

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
        /// Pid of the daemon
        #[arg(long)]
        daemon: u32,
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
    /// Hand the card around among a thousand sessions, with a viewer and without
    Viewer {
        /// The daemon's socket for tenants
        #[arg(long)]
        socket: PathBuf,
        /// Its process
        #[arg(long)]
        daemon: u32,
        /// Its socket for administrators
        #[arg(long)]
        admin: PathBuf,
    },
    /// Show the page of a thousand sessions in no, one and many browsers
    Viewers {
        /// The daemon's socket for tenants
        #[arg(long)]
        socket: PathBuf,
        /// Its process
        #[arg(long)]
        daemon: u32,
        /// Address of its page
        #[arg(long)]
        page: SocketAddr,
        /// Secret of a link to the page
        #[arg(long)]
        link: String,
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
    /// Measure grants of well-behaved sessions with each attack and without it
    Hostile {
        /// The daemon's runtime folder
        #[arg(long)]
        runtime: PathBuf,
        /// Its process
        #[arg(long)]
        daemon: u32,
        /// The address of its metrics
        #[arg(long)]
        metrics: SocketAddr,
    },
    /// Sessions of the attackers' user that always want the card
    #[command(hide = true)]
    Rival {
        #[arg(long)]
        runtime: PathBuf,
        #[arg(long)]
        sessions: usize,
        #[arg(long)]
        lie: Option<hostile::Lie>,
    },
    /// One attack, until it is killed
    #[command(hide = true)]
    Attack {
        attack: hostile::Attack,
        #[arg(long)]
        runtime: PathBuf,
        #[arg(long)]
        metrics: SocketAddr,
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
        Command::Recall { socket, daemon } => recall::measure(&socket, daemon)?,
        Command::Crowd { socket, daemon } => crowd::measure(&socket, daemon)?,
        Command::Viewer { socket, daemon, admin } => viewer::measure(&socket, daemon, &admin)?,
        Command::Viewers { socket, daemon, page, link } => viewers::measure(&socket, daemon, page, &link)?,
        Command::Core { rounds } => core::measure(rounds)?,
        Command::Grant { socket, daemon } => grant::measure(&socket, daemon)?,
        Command::Hostile { runtime, daemon, metrics } => hostile::measure(&runtime, daemon, metrics)?,
        Command::Rival { runtime, sessions, lie } => {
            return hostile::rival(&RuntimeDir::new(runtime), sessions, lie);
        }
        Command::Attack { attack, runtime, metrics } => {
            return hostile::attack(attack, &RuntimeDir::new(runtime), metrics);
        }
        Command::Sibling { socket } => return recall::sibling(&socket),
        Command::Echo { socket, length } => return echo::answer(&socket, length),
    };
    println!("{line}");
    Ok(())
}

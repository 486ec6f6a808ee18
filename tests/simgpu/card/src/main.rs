//! `simgpu-card`: plays the hardware and the kernel driver for tests, demos and CI.

#![forbid(unsafe_code)]

mod options;

use std::os::fd::OwnedFd;

use anyhow::Context;
use clap::Parser;
use simgpu_card::machine::Card;
use simgpu_card::server::Server;

use options::Options;

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut endings = vec![simgpu_card::signals::endings().context("cannot listen for signals")?];
    if options.die_with_parent {
        endings.push(parent().context("cannot watch the parent process")?);
    }
    // Deadlines are microseconds away; the kernel's default slack alone is fifty.
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
        .context("cannot set the timer slack")?;
    // Each handle that can be exported keeps a descriptor.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let most = rustix::process::Rlimit { current: limit.maximum, ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, most).context("cannot open more files")?;
    let card = Card::new(options.constants(), options.gpus());
    let mut server = Server::listen(&options.socket, card)
        .with_context(|| format!("cannot listen at {}", options.socket.display()))?;
    println!("{}", serde_json::json!({ "ready": true, "socket": options.socket }));
    server.run(&endings)?;
    if options.json_stats {
        println!("{}", serde_json::to_string(&server.stats())?);
    }
    Ok(())
}

/// A descriptor that becomes readable when the parent ends.
fn parent() -> anyhow::Result<OwnedFd> {
    let parent = rustix::process::getppid().context("there is no parent")?;
    Ok(rustix::process::pidfd_open(parent, rustix::process::PidfdFlags::empty())?)
}

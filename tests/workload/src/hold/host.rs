//! `hold`: what needs no driver.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use clap::Subcommand;
use gpushare_proto::Nanos;
use serde_json::json;

use super::desk::{Answer, Desk, Failure, done};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Let the host function of a latch return
    Open { latch: String },
    /// Sleep on the host
    Sleep { time: Nanos },
    /// Become another program, without an answer
    Exec { program: String },
    /// Have a child that does nothing, and outlives this program
    Fork,
}

/// How long a child lives that nobody ends.
const CHILD_SECONDS: u32 = 120;

/// A child with all that this process has open but for its standard streams, which its parent's end is told
/// from; its pid.
fn fork_a_sleeper() -> i32 {
    // SAFETY: the child calls nothing but these, each of which may be called after a fork of a program with threads.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            (0..3).for_each(|stream| _ = libc::close(stream));
            libc::alarm(CHILD_SECONDS);
            loop {
                libc::pause();
            }
        }
        pid
    }
}

impl Desk {
    pub(super) fn host(&self, command: &HostCommand) -> Answer {
        match command {
            HostCommand::Open { latch } => self.latches.take(latch)?.open(),
            HostCommand::Sleep { time } => thread::sleep((*time).into()),
            HostCommand::Exec { program } => {
                let cause = Command::new(program).exec();
                let program = program.clone();
                return Err(Failure::Exec { program, cause });
            }
            HostCommand::Fork => return Ok(json!({ "pid": fork_a_sleeper() })),
        }
        done()
    }
}

//! `hold`: what needs no driver.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;

use clap::Subcommand;
use gpushare_proto::Nanos;

use super::desk::{Answer, Desk, Failure, done};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Let the host function of a latch return
    Open { latch: String },
    /// Sleep on the host
    Sleep { time: Nanos },
    /// Become another program, without an answer
    Exec { program: String },
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
        }
        done()
    }
}

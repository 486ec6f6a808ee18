//! `hold`: what needs no driver.

use std::thread;

use clap::Subcommand;
use gpushare_proto::Nanos;

use super::desk::{Answer, Desk, done};

#[derive(Clone, Debug, Subcommand)]
pub(super) enum HostCommand {
    /// Let the host function of a latch return
    Open { latch: String },
    /// Sleep on the host
    Sleep { time: Nanos },
}

impl Desk {
    pub(super) fn host(&self, command: &HostCommand) -> Answer {
        match command {
            HostCommand::Open { latch } => self.latches.take(latch)?.open(),
            HostCommand::Sleep { time } => thread::sleep((*time).into()),
        }
        done()
    }
}

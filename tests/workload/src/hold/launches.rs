//! `hold`: launching kernels.

use clap::{Args, Subcommand};
use gpushare_proto::Nanos;
use serde_json::json;

use super::command::On;
use super::desk::{Answer, Desk, done};
use crate::kernels::{Kernel, LaunchDoor};
use crate::pattern::{self, PAGE_WORDS};

/// Where a launch goes, and through which door.
#[derive(Clone, Debug, Args)]
pub(super) struct Launch {
    #[command(flatten)]
    stream: On,
    /// The driver's function
    #[arg(long, value_enum, default_value_t)]
    door: LaunchDoor,
}

#[derive(Clone, Debug, Subcommand)]
pub(super) enum LaunchCommand {
    /// Launch: every word becomes VALUE
    Fill {
        buffer: String,
        value: u32,
        #[command(flatten)]
        launch: Launch,
    },
    /// Load the kernels once more, and fill a buffer by the new ones
    Load { buffer: String, value: u32 },
    /// Launch: VALUE is added to every word
    Add {
        buffer: String,
        value: u32,
        #[command(flatten)]
        launch: Launch,
    },
    /// Launch: every STRIDE-th word is read and written back
    Touch {
        buffer: String,
        #[arg(default_value_t = PAGE_WORDS)]
        stride: u64,
        #[command(flatten)]
        launch: Launch,
    },
    /// Launch: run for a time, or until the first word of a buffer is set
    Spin {
        limit: Nanos,
        #[arg(long, value_name = "BUFFER")]
        until: Option<String>,
        #[command(flatten)]
        launch: Launch,
    },
    /// Launch: nothing, COUNT times
    Empty {
        #[arg(default_value_t = 1)]
        count: u32,
        #[command(flatten)]
        launch: Launch,
    },
    /// Compute the checksum of a buffer on the GPU
    Checksum { buffer: String },
    /// Whether every word of a buffer is VALUE, by its checksum
    Check { buffer: String, value: u32 },
}

impl Desk {
    pub(super) fn launches(&self, command: &LaunchCommand) -> Answer {
        match command {
            LaunchCommand::Fill { buffer, value, launch } => {
                let buffer = self.buffers.get(buffer)?;
                let kernel = Kernel::Fill { p: buffer.address, n: buffer.words(), value: *value };
                self.launch(kernel, launch)
            }
            LaunchCommand::Load { buffer, value } => {
                let buffer = self.buffers.get(buffer)?;
                let kernel = Kernel::Fill { p: buffer.address, n: buffer.words(), value: *value };
                self.gpu()?.launch_anew(kernel)?;
                done()
            }
            LaunchCommand::Add { buffer, value, launch } => {
                let buffer = self.buffers.get(buffer)?;
                let kernel = Kernel::Add { p: buffer.address, n: buffer.words(), value: *value };
                self.launch(kernel, launch)
            }
            LaunchCommand::Touch { buffer, stride, launch } => {
                let buffer = self.buffers.get(buffer)?;
                let kernel = Kernel::Touch { p: buffer.address, n: buffer.words(), stride: *stride };
                self.launch(kernel, launch)
            }
            LaunchCommand::Spin { limit, until, launch } => {
                let flag = until.as_deref().map(|name| self.buffers.get(name)).transpose()?;
                let kernel = Kernel::Spin { flag: flag.map_or(0, |flag| flag.address), nanoseconds: limit.0 };
                self.launch(kernel, launch)
            }
            LaunchCommand::Empty { count, launch } => {
                for _ in 0..*count {
                    self.launch(Kernel::Empty, launch)?;
                }
                done()
            }
            LaunchCommand::Checksum { buffer } => {
                let sum = self.gpu()?.checksum(self.buffers.get(buffer)?)?;
                Ok(json!({ "checksum": sum }))
            }
            LaunchCommand::Check { buffer, value } => {
                let buffer = self.buffers.get(buffer)?;
                let sum = self.gpu()?.checksum(buffer)?;
                Ok(json!({ "matches": sum == pattern::uniform_checksum(buffer, *value) }))
            }
        }
    }

    fn launch(&self, kernel: Kernel, launch: &Launch) -> Answer {
        let stream = self.stream(&launch.stream)?;
        self.gpu()?.launch_through(launch.door, kernel, stream)?;
        done()
    }
}

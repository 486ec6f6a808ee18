//! `hold`: a CUDA program that is driven line by line, for tests and for trying things out.
//!
//! ```text
//! stdin    alloc a 64MiB ─┐         ┌─ thread main ──> driver
//!          @b fill a 7 ───┼─ reader ┤
//!          sync ──────────┘         └─ thread b ─────> driver
//! stdout   {"id":1,"thread":"main","command":"alloc a 64MiB","ok":true,"ns":…,"address":…}
//! ```
//!
//! Each line is a command (`help` lists them) for the thread `main`, or for the thread that `@NAME` before
//! it names and, if need be, starts. The reader itself never calls the driver, so a thread that sleeps in a
//! call holds up nobody else. Threads share all names. Every line is answered by one line of JSON when it
//! is done: its number (from 1), thread, text, whether it went well, how long it took, and values or the
//! error. Line 0 says that the program is ready.
//!
//! `quit` and the end of stdin let the threads finish what they were told; `exit` ends at once.

use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use gpushare_proto::Bytes;
use serde_json::{Value, json};

use crate::device::Device;
use crate::error::CudaError;
use crate::gpu::Gpu;

mod at_exit;
mod command;
mod contexts;
mod desk;
mod names;
mod threads;

mod copies;
mod host;
mod launches;
mod memory;
mod segments;
mod streams;

use command::{Line, Word};
use desk::Desk;
use threads::Threads;

/// How to start.
#[derive(Clone, Debug, Args)]
pub struct Options {
    /// Allocate and fill this much first, under the name `hold`
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Touch no driver before the first command that needs it
    #[arg(long, conflicts_with = "memory")]
    pub lazy: bool,
}

/// Runs commands from stdin until it is told to stop.
pub fn run(
    open: impl Fn() -> Result<Device, CudaError> + Send + Sync + 'static,
    options: &Options,
) -> Result<ExitCode, CudaError> {
    let start = move || {
        let device = open()?;
        at_exit::register();
        Gpu::start(device)
    };
    let desk = Arc::new(Desk::new(start));
    at_exit::keep(&desk);
    if !options.lazy {
        desk.gpu()?;
    }
    if let Some(bytes) = options.memory {
        desk.hold(bytes)?;
    }
    answer(&json!({ "id": 0, "ok": true, "ready": true, "pid": std::process::id() }));

    let mut threads = Threads::new(desk);
    for (id, text) in (1u64..).zip(io::stdin().lock().lines().map_while(Result::ok)) {
        let line = Line::parse(id, &text);
        match line.word {
            Ok(Word::Nothing) => {}
            Ok(Word::Quit) => break,
            Ok(Word::Exit) => return Ok(ExitCode::SUCCESS),
            Ok(Word::Command(command)) => threads.tell(line.header, command),
            Err(message) => {
                let error = json!({ "error": "usage", "message": message });
                answer(&line.header.failed(error));
            }
        }
    }
    threads.finish();
    Ok(ExitCode::SUCCESS)
}

/// Prints one answer as one write, so that answers of several threads never mix.
fn answer(line: &Value) {
    let mut stdout = io::stdout().lock();
    // A reader that has gone away wants no more answers.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
}

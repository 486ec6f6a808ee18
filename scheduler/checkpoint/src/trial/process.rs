//! The process that is frozen for trial: takes memory of its card, waits, and says whether the memory is as before.
//!
//! It prints `ready` once the memory has its pattern. A line on its standard input makes it read the memory back. It
//! always ends by itself, with a line on standard error if something is wrong.

use std::fs::File;
use std::io::{self, Write};
use std::process::ExitCode;

use rustix::io::dup;
use rustix::stdio::{dup2_stdout, stderr, stdout};

use super::memory::Memory;
use crate::driver::{Driver, OUT_OF_MEMORY};
use crate::helper::ignore_signals;
use crate::protocol::Refusal;

/// First argument by which the daemon's program becomes such a process.
pub const TRIAL: &str = "checkpoint-trial";

/// Line that says that the memory has its pattern.
pub(super) const READY: &[u8] = b"ready\n";
/// Exit code of a process for which its card had no memory.
pub(super) const NO_ROOM: u8 = 3;

/// Longest time for the end of a process whose daemon is gone, in seconds. Nobody thaws it if it is frozen.
const ENDING: u32 = 10;

/// Reason why the process ends without success.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("{0}")]
    NoRoom(Refusal),
    #[error("{0}")]
    Driver(String),
    #[error("{0} words of its memory were wrong after the thaw")]
    Wrong(usize),
    #[error("the daemon is gone: {0}")]
    Alone(String),
}

impl Fault {
    fn code(&self) -> ExitCode {
        match self {
            Self::NoRoom(_) => ExitCode::from(NO_ROOM),
            Self::Driver(_) | Self::Wrong(_) | Self::Alone(_) => ExitCode::FAILURE,
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal.code {
            OUT_OF_MEMORY => Self::NoRoom(refusal),
            _ => Self::Driver(refusal.to_string()),
        }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Alone(error.to_string())
    }
}

/// Runs the process.
pub fn run_trial() -> ExitCode {
    ignore_signals();
    match hold() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            // Nobody reads it if the daemon has ended.
            let _ = writeln!(io::stderr(), "{fault}");
            fault.code()
        }
    }
}

fn hold() -> Result<(), Fault> {
    // NVIDIA's libraries may print to standard output, where only the one line belongs.
    let mut said = File::from(dup(stdout()).map_err(io::Error::from)?);
    dup2_stdout(stderr()).map_err(io::Error::from)?;
    // The driver ends its work when the process ends, and must not be unloaded before.
    let driver = Box::leak(Box::new(Driver::load().map_err(Fault::Driver)?));
    let memory = Memory::written(driver)?;
    said.write_all(READY)?;
    let mut line = String::new();
    if io::stdin().read_line(&mut line)? == 0 {
        end_in_time();
        return Err(Fault::Alone("its end of the input is closed".to_owned()));
    }
    match memory.wrong_words()? {
        0 => Ok(()),
        words => Err(Fault::Wrong(words)),
    }
}

/// Ends this process after a while, if the driver holds it up at its end since it is frozen.
fn end_in_time() {
    // SAFETY: sets a timer, whose signal has no handler of ours.
    unsafe { libc::alarm(ENDING) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lack_of_memory_is_no_failure() {
        let refusal = |code| Refusal { call: "cuX".to_owned(), code, name: "CUDA_ERROR_Y".to_owned() };
        assert_eq!(Fault::from(refusal(OUT_OF_MEMORY)), Fault::NoRoom(refusal(2)));
        assert_eq!(Fault::from(refusal(46)), Fault::Driver("cuX answered CUDA_ERROR_Y (46)".to_owned()));
    }
}

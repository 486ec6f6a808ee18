//! Checkpoints of other processes.

use std::fs;
use std::io;
use std::time::Duration;

use simgpu_card::connection::CallError;
use simgpu_card::wire::{self, Failure, ProcessState, Request, Step};

use crate::api::prelude::*;

/// Arguments of any step: 64 bytes, of which a lock uses the first word, and all others are zero.
type Arguments = In<[u32; 16]>;

/// Whether the kernel lets the caller open descriptors of a process, if it lives. The driver opens pipes of the process.
fn may_open_descriptors(pid: u32) -> bool {
    match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(descriptors) => descriptors.flatten().any(|descriptor| fs::read_link(descriptor.path()).is_ok()),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

/// Asks the card for a step, or about the state.
fn step(pid: i32, step: Step) -> Answer<wire::Answer> {
    let pid = u32::try_from(pid).map_err(|_| Code::INVALID_VALUE)?;
    let driver = driver()?;
    driver.healthy()?;
    if !may_open_descriptors(pid) {
        return Err(Code::OPERATING_SYSTEM);
    }
    match driver.ask(Request::Checkpoint { pid, step }) {
        Ok(reply) => Ok(reply.answer),
        Err(CallError::Refused(Failure::Unknown)) => Err(Code::INVALID_VALUE),
        Err(error) => Err(error.into()),
    }
}

/// The words of the arguments. None at all are zeros.
fn words(arguments: Arguments) -> [u32; 16] {
    arguments.get().unwrap_or_default()
}

fn plain(pid: i32, arguments: Arguments, wanted: Step) -> Answer {
    if words(arguments) != [0; 16] {
        return Err(Code::INVALID_VALUE);
    }
    step(pid, wanted).map(|_| ())
}

api! {
    fn cuCheckpointProcessGetState("cuCheckpointProcessGetState", 12_080)(pid: i32, state: Out<u32>) {
        match step(pid, Step::Ask)? {
            wire::Answer::ProcessState(found) => state.set(found as u32),
            _ => Err(Code::UNKNOWN),
        }
    }

    fn cuCheckpointProcessGetRestoreThreadId("cuCheckpointProcessGetRestoreThreadId", 12_080)
        (pid: i32, thread: Out<i32>)
    {
        // The driver restores on a thread of its own there. Here it needs none, and names the first one.
        match step(pid, Step::Ask)? {
            wire::Answer::ProcessState(ProcessState::Failed) => Err(Code::ILLEGAL_STATE),
            _ => thread.set(pid),
        }
    }

    fn cuCheckpointProcessLock("cuCheckpointProcessLock", 12_080)(pid: i32, arguments: Arguments) {
        let [milliseconds, rest @ ..] = words(arguments);
        if rest != [0; 15] {
            return Err(Code::INVALID_VALUE);
        }
        let patience = (milliseconds > 0).then(|| Duration::from_millis(milliseconds.into()));
        step(pid, Step::Lock(patience)).map(|_| ())
    }

    fn cuCheckpointProcessCheckpoint("cuCheckpointProcessCheckpoint", 12_080)(pid: i32, arguments: Arguments) {
        plain(pid, arguments, Step::Checkpoint)
    }

    fn cuCheckpointProcessRestore("cuCheckpointProcessRestore", 12_080)(pid: i32, arguments: Arguments) {
        plain(pid, arguments, Step::Restore)
    }

    fn cuCheckpointProcessUnlock("cuCheckpointProcessUnlock", 12_080)(pid: i32, arguments: Arguments) {
        plain(pid, arguments, Step::Unlock)
    }
}

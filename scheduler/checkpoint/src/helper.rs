//! The helper process: takes steps as its standard input says, and answers on its standard output.
//!
//! It ends with its input. A signal to end does not stop it in the middle of a step, since a step that stops
//! half-way may cost the process that it is about.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use rustix::io::dup;
use rustix::stdio::{dup2_stdout, stderr, stdout};

use crate::driver::Driver;
use crate::protocol::{Answer, Step};
use crate::target::{Process, Target};

/// First argument by which the daemon's program becomes a helper.
pub const SUBCOMMAND: &str = "checkpoint-helper";

/// Runs the helper for the process that the arguments after [`SUBCOMMAND`] name: pid and start time.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let Some(target) = target(arguments) else {
        eprintln!("gpushare-scheduler {SUBCOMMAND} is started by the daemon, with a pid and a start time");
        return ExitCode::from(2);
    };
    match serve(target) {
        Ok(()) => ExitCode::SUCCESS,
        // The daemon has ended, or has closed its end.
        Err(_) => ExitCode::FAILURE,
    }
}

fn target(mut arguments: impl Iterator<Item = OsString>) -> Option<Target> {
    let (pid, start) = (arguments.next()?, arguments.next()?);
    Some(Target { pid: pid.to_str()?.parse().ok()?, start: start.to_str()?.parse().ok()? })
}

fn serve(target: Target) -> io::Result<()> {
    ignore_signals();
    // NVIDIA's libraries may print to standard output, where only answers belong.
    let mut answers = File::from(dup(stdout())?);
    dup2_stdout(stderr())?;
    let Some(process) = Process::find(target) else {
        return say(&mut answers, &Answer::Gone);
    };
    let driver = process
        .become_its_user()
        .map_err(|error| format!("cannot become the process's user: {error}"));
    let driver = match driver.and_then(|()| Driver::load()) {
        Ok(driver) => driver,
        Err(reason) => return say(&mut answers, &Answer::Unready(reason)),
    };
    say(&mut answers, &Answer::Ready { cuda: driver.cuda })?;
    for line in io::stdin().lock().lines() {
        let step = serde_json::from_str(&line?).map_err(io::Error::other)?;
        say(&mut answers, &take(&driver, &process, step))?;
    }
    Ok(())
}

/// Takes a step if the pid belongs to the process before it, and believes the driver if it does so after it. Only a whole
/// process begins to freeze, but one whose first thread has ended since may come back.
fn take(driver: &Driver, process: &Process, step: Step) -> Answer {
    let may_be_taken = || match step {
        Step::Lock(_) | Step::Checkpoint => process.is_whole(),
        Step::State | Step::Restore | Step::Unlock => process.lives(),
    };
    if !may_be_taken() {
        return Answer::Gone;
    }
    let taken = driver.take(process.pid(), step);
    if !may_be_taken() {
        return Answer::Gone;
    }
    match taken {
        Ok(None) => Answer::Done,
        Ok(Some(state)) => Answer::State(state),
        Err(refusal) => Answer::Refused(refusal),
    }
}

fn say(answers: &mut File, answer: &Answer) -> io::Result<()> {
    let mut line = serde_json::to_string(answer)?;
    line.push('\n');
    answers.write_all(line.as_bytes())
}

/// Lets no signal end this process but those that cannot be ignored.
pub(crate) fn ignore_signals() {
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
        // SAFETY: no handler of ours runs; the signals are ignored.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_name_one_process() {
        let read = |words: &[&str]| target(words.iter().map(OsString::from));
        assert_eq!(read(&["12", "345"]), Some(Target { pid: 12, start: 345 }));
        assert_eq!(read(&["12"]), None);
        assert_eq!(read(&["init", "1"]), None);
    }
}

//! Program of the gpushare daemon: parses flags, starts the log, returns the exit code.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::{fmt, io};

use clap::{CommandFactory as _, Parser as _};
use gpushare_sys::passed;

use crate::args::Args;
use crate::config::{Environment, Reader};
use crate::daemon;
use crate::exit::code;
use crate::log::Log;

/// Runs the daemon and returns its exit code.
pub fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    match words.next() {
        Some(first) if first == gpushare_checkpoint::SUBCOMMAND => return gpushare_checkpoint::run(words),
        Some(first) if first == gpushare_checkpoint::TRIAL => return gpushare_checkpoint::run_trial(),
        _ => {}
    }
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(usage) => return end(&usage),
    };
    // Before any thread starts, since this changes the environment.
    let passed = passed::take().map_err(|cause| {
        let message = format!("cannot take over the passed sockets: {cause}; see docs/systemd.md");
        anyhow::Error::new(cause).context(message)
    });
    match passed.and_then(|passed| run(&args, passed)) {
        Ok(code) => code,
        Err(stop) => {
            complain(&stop);
            code(&stop)
        }
    }
}

/// Returns the definition of the daemon's flags, from which its manual page is made.
pub fn command() -> clap::Command {
    Args::command()
}

/// Writes a message to standard error. A failure is ignored, because the exit code says the same.
fn complain(message: &dyn fmt::Display) {
    let _ = writeln!(io::stderr(), "gpushare-scheduler: {message}");
}

/// Prints the requested help, or an error in the flags as one sentence.
fn end(usage: &clap::Error) -> ExitCode {
    if !usage.use_stderr() {
        usage.exit();
    }
    let text = usage.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> = first.split_whitespace().collect();
    complain(&format_args!("{}; see `gpushare-scheduler --help`", words.join(" ")));
    ExitCode::from(2)
}

fn run(args: &Args, passed: Vec<(String, OwnedFd)>) -> anyhow::Result<ExitCode> {
    let reader = Reader::new(args.clone(), Environment::of_this_process());
    let settings = reader.read(|settings| settings)?;
    let log = Log::start(settings.log_format, settings.log_file.as_deref());
    Ok(match daemon::run(settings, reader, passed, args.ready_fd, log.lost()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            log.say_at_last(&format!("gpushare-scheduler: {stop}"));
            code(&stop)
        }
    })
}

//! Program of the gpushare daemon: parses flags, starts the log, returns the exit code.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::{fmt, io};

use clap::Parser;
use gpushare_proto::names;
use gpushare_sys::passed;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::args::{Args, LogFormat};
use crate::config::{Environment, Reader};
use crate::exit::code;
use crate::{daemon, operation};

/// Runs the daemon and returns its exit code.
pub fn main() -> ExitCode {
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
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("gpushare-scheduler: {stop}");
            code(&stop)
        }
    }
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
    eprintln!("gpushare-scheduler: {}; see `gpushare-scheduler --help`", words.join(" "));
    ExitCode::from(2)
}

fn run(args: &Args, passed: Vec<(String, OwnedFd)>) -> anyhow::Result<()> {
    let reader = Reader::new(args.clone(), Environment::of_this_process());
    let settings = reader.read(|settings| settings)?;
    start_log(settings.log_format);
    daemon::run(settings, reader, passed, args.ready_fd)
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env(names::LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_target(false).with_ansi(false).fmt_fields(debug_fn(words)).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Formats a log record for people: the sentence, and the fields that it does not contain.
fn words(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if operation::FIELDS.contains(&name) => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
}

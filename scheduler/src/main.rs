//! The gpushare daemon's program: flags in, exit code out.
#![forbid(unsafe_code)]

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use clap::Parser;
use gpushare_proto::names;
use gpushare_scheduler::args::{Args, LogFormat};
use gpushare_scheduler::config::{Environment, Source};
use gpushare_scheduler::{daemon, exit::Stop, operation};
use gpushare_sys::passed;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(usage) => return end(&usage),
    };
    // Before anything can have a thread.
    let passed = passed::take()
        .map_err(|cause| Stop::System { what: "take over the sockets that it was started with", cause });
    match passed.and_then(|passed| run(&args, passed)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => {
            eprintln!("gpushare-scheduler: {stop}");
            stop.code()
        }
    }
}

/// Prints the help that was asked for, or what is wrong with the flags in one sentence: the first paragraph
/// of clap's.
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

fn run(args: &Args, passed: Vec<(String, OwnedFd)>) -> Result<(), Stop> {
    let source = Source { args: args.clone(), environment: Environment::of_this_process() };
    let settings = source.read()?;
    start_log(settings.log_format);
    daemon::run(settings, source, passed, args.ready_fd)
}

fn start_log(format: LogFormat) {
    let filter = EnvFilter::try_from_env(names::LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => log.with_target(false).with_ansi(false).fmt_fields(debug_fn(words)).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// A record as people read it: the sentence, and what is not said in it.
fn words(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if operation::FIELDS.contains(&name) => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
}

//! `gpushare-ctl`, the command line of gpushare. The library exists for the commands that print the manual.
//!
//! In reading order: arguments, exit codes, choice of the daemon, output, and the commands.
#![forbid(unsafe_code)]

mod cli;
mod exit;
mod places;
mod output;
mod table;
mod status;
mod session;
mod own;
mod changed;
mod set;
mod watch;
mod top;
mod dashboard;
mod explain;
mod frost;
mod audit;
mod usage;
mod users;
mod run;
mod doctor;
mod env;
mod jupyter;
mod cdi;
mod completions;

use std::process::ExitCode;

pub use completions::completions;

/// Runs the command line of this process and returns its exit code.
pub fn main() -> ExitCode {
    match cli::parse(std::env::args_os()) {
        Ok(cli) => exit::end(dispatch(cli)),
        Err(usage) => usage.end(),
    }
}

/// Returns the definition of the commands that users see, from which completions and manual pages are made.
pub fn command() -> clap::Command {
    cli::visible()
}

fn dispatch(cli: cli::Cli) -> Result<ExitCode, exit::CtlError> {
    let places = places::Places::of_this_user(cli.runtime_dir.clone());
    match cli.command {
        cli::Command::Run(args) if args.dry_run => return run::dry::dry_run(&args, &places),
        cli::Command::Run(args) => match run::run(&args, &places)? {},
        cli::Command::Status(args) => status::status(&args, &places)?,
        cli::Command::Session(command) => session::session(&command, &places)?,
        cli::Command::Set(args) => set::set(&args, &places)?,
        cli::Command::Reload(args) => changed::reload(&args, &places)?,
        cli::Command::Watch(args) => watch::watch(&args, &places)?,
        cli::Command::Top(args) => return top::top(&args, places),
        cli::Command::Dashboard(args) => dashboard::dashboard(&args, &places)?,
        cli::Command::Env(args) => env::env(&args, &places)?,
        cli::Command::Explain(args) => explain::explain(&args, &places)?,
        cli::Command::Audit(command) => audit::audit(&command, &places)?,
        cli::Command::Usage(args) => usage::usage(&args, &places)?,
        cli::Command::Doctor(args) => return Ok(doctor::doctor(&args, &places)?),
        cli::Command::Own(args) => own::own(&args, &places)?,
        cli::Command::Jupyter(command) => jupyter::jupyter(&command, cli.runtime_dir)?,
        cli::Command::Cdi(command) => cdi::cdi(&command, &places)?,
        cli::Command::Completions(args) => completions::print(&args)?,
        cli::Command::StartDaemon => run::detach()?,
        cli::Command::DoctorProbe { question } => doctor::probe(&question)?,
    }
    Ok(ExitCode::SUCCESS)
}

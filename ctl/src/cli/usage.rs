//! Parsing of the command line's arguments, with a one-sentence error for invalid arguments.
//!
//! The exit code depends on the command, because `run` leaves every code below 125 to the program that it starts.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory as _, Parser as _};

use super::Cli;
use crate::{exit, output};

/// Arguments that run no command: a request for help or the version, or a mistake.
#[derive(Debug)]
pub(crate) struct Usage {
    error: clap::Error,
    /// Name of the command in the arguments, if they have one.
    command: Option<String>,
}

pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Usage> {
    let args: Vec<OsString> = args.into_iter().collect();
    Cli::try_parse_from(&args).map_err(|error| {
        let lenient = Cli::command().ignore_errors(true).try_get_matches_from(&args);
        let command = lenient.ok().and_then(|matches| matches.subcommand_name().map(str::to_owned));
        Usage { error, command }
    })
}

impl Usage {
    /// Prints the help, the version or the mistake, and returns the exit code.
    pub(crate) fn end(&self) -> ExitCode {
        match self.error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                match output::print(&self.error.render().to_string()) {
                    Ok(()) => ExitCode::SUCCESS,
                    Err(error) => exit::fail(&error, exit::ERROR),
                }
            }
            _ => exit::fail(&self.sentence(), self.code()),
        }
    }

    /// Returns the exit code for the arguments. A mistake in `run` has 125, as in docker.
    fn code(&self) -> u8 {
        match self.command.as_deref() {
            Some("run") => exit::RUN_FAILED,
            _ => exit::USAGE,
        }
    }

    /// Returns the first paragraph of clap's error in one line and a reference to the help. The list of commands is left
    /// out, since it contains hidden ones.
    fn sentence(&self) -> String {
        let text = self.error.render().to_string();
        let text = text.strip_prefix("error: ").unwrap_or(&text);
        let first = text.split("\n\n").next().unwrap_or(text);
        let first = first.split(" [subcommands: ").next().unwrap_or(first);
        let words: Vec<&str> = first.split_whitespace().collect();
        let command = self.command.as_ref().map_or(String::new(), |name| format!(" {name}"));
        format!("{}; see `gpushare-ctl{command} --help`", words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(line: &str) -> Usage {
        parse(line.split(' ').map(OsString::from)).unwrap_err()
    }

    #[test]
    fn a_mistake_is_one_sentence_that_says_what_would_be_right() {
        assert_eq!(
            usage("gpushare-ctl status --frobnicate").sentence(),
            "unexpected argument '--frobnicate' found; see `gpushare-ctl status --help`"
        );
        assert_eq!(
            usage("gpushare-ctl set").sentence(),
            "'gpushare-ctl set' requires a subcommand but one was not provided; see `gpushare-ctl set --help`"
        );
        assert_eq!(
            usage("gpushare-ctl set quantum soon").sentence(),
            "invalid value 'soon' for '<VALUE>': `soon` is not a time; write it like 250ms, 2s or 10min, \
             or `auto`; see `gpushare-ctl set --help`"
        );
        assert_eq!(
            usage("gpushare-ctl run --gpu x -- true").sentence(),
            "invalid value 'x' for '--gpu <GPU>': `x` is not a card; write its number in `gpushare-ctl \
             status` (0 or gpu0) or its UUID; see `gpushare-ctl run --help`"
        );
    }

    #[test]
    fn a_value_out_of_range_is_a_usage_error_that_names_the_range() {
        for (line, least) in [
            ("gpushare-ctl set quantum 0ms", "quantum is 1ms to 3600s, not 0ns"),
            ("gpushare-ctl set quantum 999us", "quantum is 1ms to 3600s"),
            ("gpushare-ctl set capacity 1B", "capacity is 1MiB to"),
            ("gpushare-ctl set managed-limit 0", "managed_limit is 1MiB to"),
            ("gpushare-ctl set epsilon 0%", "epsilon is 0.01% to 99.99%, not 0%"),
            ("gpushare-ctl set epsilon 100%", "99.99%, not 100%"),
        ] {
            let mistake = usage(line);
            assert_eq!(mistake.code(), 2, "{line}");
            assert!(mistake.sentence().contains(least), "{}", mistake.sentence());
        }
    }

    #[test]
    fn mistakes_in_run_leave_the_low_codes_to_the_program() {
        assert_eq!(usage("gpushare-ctl run --memory 8apples -- true").code(), 125);
        assert_eq!(usage("gpushare-ctl --runtime-dir /x run --memory").code(), 125);
        assert_eq!(usage("gpushare-ctl run").code(), 125);
        assert_eq!(usage("gpushare-ctl status run").code(), 2);
        assert_eq!(usage("gpushare-ctl set managed-limit auto").code(), 2);
        assert_eq!(usage("gpushare-ctl run --memory 0 -- true").code(), 125);
        assert_eq!(usage("gpushare-ctl --frobnicate run -- true").code(), 2);
    }
}

//! Command `completions`: prints what a shell needs to complete commands and flags.

use std::io;
use std::path::PathBuf;

use clap_complete::Shell;

use crate::cli::CompletionsArgs;
use crate::output;

/// Name of the program if the caller does not tell one.
const NAME: &str = "gpushare-ctl";

pub(crate) fn print(args: &CompletionsArgs) -> io::Result<()> {
    let called = std::env::args_os().next().map(PathBuf::from);
    let name = called.as_deref().and_then(|path| path.file_name()?.to_str()).unwrap_or(NAME);
    output::print(&completions(args.shell, name))
}

/// Returns the completions of a shell for the program of this name.
pub fn completions(shell: Shell, name: &str) -> String {
    match shell {
        Shell::Bash => for_bash(name),
        shell => script(shell, name),
    }
}

fn script(shell: Shell, name: &str) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut crate::command(), name, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the script for bash. That of clap_complete 4.6 completes no flag of a subcommand if the program's name has a
/// hyphen, so it is made for a name without, and then bound to the program.
fn for_bash(name: &str) -> String {
    let plain = name.replace('-', "_");
    script(Shell::Bash, &plain).replace(&format!(" {plain}\n"), &format!(" {name}\n"))
}

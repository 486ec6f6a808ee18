//! Standard output of the commands. A reader that closes the pipe early is not an error.

use std::io::{self, ErrorKind, IsTerminal as _, Write as _};

use serde::Serialize;

pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

pub(crate) fn print_json(model: &impl Serialize) -> io::Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(model)?))
}

/// Returns whether the user wants colours where a terminal shows them (<https://no-color.org>).
pub(crate) fn wants_colours() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Returns whether standard output is a terminal that shows colours, and the user wants them.
pub(crate) fn has_colours() -> bool {
    let is_plain = std::env::var_os("TERM").is_some_and(|name| name == "dumb");
    wants_colours() && !is_plain && io::stdout().is_terminal()
}

/// Prints `model` as JSON if `json`, otherwise the result of `text`.
pub(crate) fn show(json: bool, model: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(model) } else { print(&text()) }
}

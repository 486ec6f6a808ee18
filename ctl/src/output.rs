//! Standard output of the commands. A reader that closes the pipe early is not an error.

use std::io::{self, ErrorKind, Write as _};

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

/// Prints `model` as JSON if `json`, otherwise the result of `text`.
pub(crate) fn show(json: bool, model: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(model) } else { print(&text()) }
}

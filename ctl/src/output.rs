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

/// Colours of words, or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    has_colours: bool,
}

impl Paint {
    /// Returns colours if standard output shows them and the user wants them.
    pub(crate) fn of_stdout() -> Self {
        Self { has_colours: has_colours() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(crate) fn red(self, text: &str) -> String {
        self.with("31", text)
    }

    pub(crate) fn green(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(crate) fn yellow(self, text: &str) -> String {
        self.with("33", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        match self.has_colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// Prints `model` as JSON if `json`, otherwise the result of `text`.
pub(crate) fn show(json: bool, model: &impl Serialize, text: impl FnOnce() -> String) -> io::Result<()> {
    if json { print_json(model) } else { print(&text()) }
}

//! The lines of `hold` and what they mean.

use clap::{Parser, Subcommand};
use gpushare_proto::Nanos;
use serde_json::{Value, json};

use super::contexts::ContextCommand;
use super::copies::CopyCommand;
use super::host::HostCommand;
use super::launches::LaunchCommand;
use super::memory::MemoryCommand;
use super::segments::SegmentCommand;
use super::streams::StreamCommand;

/// The thread of a line that names none.
const MAIN: &str = "main";

/// One line of stdin.
pub(super) struct Line {
    pub(super) header: Header,
    /// Command of the line, or the reason why the line is wrong.
    pub(super) word: Result<Word, String>,
}

/// Fields with which every answer begins.
pub(super) struct Header {
    id: u64,
    pub(super) thread: String,
    command: String,
}

/// Meaning of a line.
pub(super) enum Word {
    /// An empty line or a `# comment`.
    Nothing,
    /// End when everything is done.
    Quit,
    /// End now.
    Exit,
    /// Something for a thread.
    Command(Command),
}

impl Line {
    pub(super) fn parse(id: u64, text: &str) -> Self {
        let text = text.trim();
        let (thread, command) =
            match text.strip_prefix('@').map(|rest| rest.split_once(' ').unwrap_or((rest, ""))) {
                Some((thread, command)) => (thread, command.trim()),
                None => (MAIN, text),
            };
        let word = match command {
            "quit" => Ok(Word::Quit),
            "exit" => Ok(Word::Exit),
            _ if command.is_empty() || command.starts_with('#') => Ok(Word::Nothing),
            _ => Prompt::try_parse_from(command.split_whitespace())
                .map(|prompt| Word::Command(prompt.command))
                .map_err(|error| error.to_string()),
        };
        let header = Header { id, thread: thread.to_owned(), command: command.to_owned() };
        Self { header, word }
    }
}

impl Header {
    /// The answer of a command that did what it should.
    pub(super) fn done(&self, took: Nanos, values: Value) -> Value {
        self.answer(true, merge(json!({ "ns": took }), values))
    }

    /// The answer of a command that failed.
    pub(super) fn failed(&self, error: Value) -> Value {
        self.answer(false, error)
    }

    fn answer(&self, ok: bool, values: Value) -> Value {
        let head = json!({ "id": self.id, "thread": self.thread, "command": self.command });
        merge(merge(head, values), json!({ "ok": ok }))
    }
}

/// The fields of both objects; of a field in both, the second.
fn merge(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

#[derive(Parser)]
#[command(multicall = true, disable_help_flag = true)]
struct Prompt {
    #[command(subcommand)]
    command: Command,
}

/// A stream: a name given by `stream`, `legacy`, `per-thread`, or none for the default stream.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct On {
    /// The stream
    #[arg(long, value_name = "STREAM")]
    pub(super) on: Option<String>,
}

/// Command for a thread. Buffers, streams, events, graphs and latches have names.
#[derive(Clone, Debug, Subcommand)]
pub(super) enum Command {
    #[command(flatten)]
    Memory(MemoryCommand),
    #[command(flatten)]
    Segment(SegmentCommand),
    #[command(flatten)]
    Copy(CopyCommand),
    #[command(flatten)]
    Launch(LaunchCommand),
    #[command(flatten)]
    Stream(StreamCommand),
    #[command(flatten)]
    Context(ContextCommand),
    #[command(flatten)]
    Host(HostCommand),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_may_name_its_thread() {
        let line = Line::parse(3, "@b fill a 7 --on s");
        assert_eq!(line.header.thread, "b");
        assert!(matches!(
            line.word,
            Ok(Word::Command(Command::Launch(LaunchCommand::Fill { value: 7, .. })))
        ));
        assert_eq!(Line::parse(4, "sync").header.thread, "main");
    }

    #[test]
    fn blank_lines_and_comments_ask_for_nothing() {
        for text in ["", "   ", "# a comment"] {
            assert!(matches!(Line::parse(1, text).word, Ok(Word::Nothing)), "{text:?}");
        }
    }

    #[test]
    fn a_wrong_line_says_what_is_wrong() {
        let error = |text| Line::parse(1, text).word.err().unwrap_or_default();
        assert!(error("alloc a 8apples").contains("write it like 8GiB"), "{}", error("alloc a 8apples"));
        assert!(error("fly").contains("unrecognized subcommand"), "{}", error("fly"));
    }
}

//! The daemon's log: lines go into a bounded queue, and a thread of its own writes them.
//!
//! ```text
//!   any thread ── line ──▶ queue of 1 MiB ──▶ log thread ──▶ standard error, or a file that is rotated
//!                            │ full             │ disk full, reader gone
//!                            ▼                  ▼
//!                          counted ◀────────── counted: reported by a metric, and by a line once one can be written
//! ```
//!
//! No thread waits for the log. A reader that stalls or a full disk costs lines, and never a grant.

pub(crate) mod limiter;
mod queue;
mod writer;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{fmt, thread};

use gpushare_proto::names;
use tracing::error;
use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use crate::args::LogFormat;
use crate::operation;
use queue::{Queue, Records};
use writer::{Sink, write_lines};

/// Longest time for which the ending daemon waits until its last lines are written.
const PATIENCE: Duration = Duration::from_secs(1);

/// The running log. Dropping it writes the last lines, for at most a second.
#[derive(Debug)]
pub(crate) struct Log {
    queue: Arc<Queue>,
    /// Channel that is disconnected once the log thread has ended.
    ended: Receiver<()>,
}

/// Number of log lines that were lost, as it changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct LostLines(Arc<Queue>);

impl LostLines {
    pub(crate) fn count(&self) -> u64 {
        self.0.lost()
    }
}

impl Log {
    /// Starts the log to a file, else to standard error. Panics are logged too.
    ///
    /// If the thread cannot start, the daemon runs without a log: all lines are lost and counted.
    pub(crate) fn start(format: LogFormat, file: Option<&Path>) -> Self {
        let queue = Arc::new(Queue::default());
        let (ending, ended) = channel::<()>();
        let (own, sink) = (queue.clone(), Sink::new(file));
        let writing = thread::Builder::new().name("log".to_owned()).spawn(move || {
            write_lines(&own, sink, |lines, why| lost_line(format, lines, why));
            drop(ending);
        });
        drop(writing);
        subscribe(format, Records(queue.clone()));
        std::panic::set_hook(Box::new(|panic| {
            let trace = Backtrace::capture();
            match trace.status() {
                BacktraceStatus::Captured => error!("{panic}\n{trace}"),
                _ => error!("{panic}"),
            }
        }));
        Self { queue, ended }
    }

    pub(crate) fn lost(&self) -> LostLines {
        LostLines(self.queue.clone())
    }

    /// Adds the last words of a daemon that ends with an error, whatever the filter of the log says.
    pub(crate) fn say_at_last(&self, words: &str) {
        self.queue.add(format!("{words}\n").as_bytes());
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.queue.end();
        // A disconnected channel means that all lines are written.
        let _ = self.ended.recv_timeout(PATIENCE);
    }
}

fn subscribe(format: LogFormat, records: Records) {
    let filter = EnvFilter::try_from_env(names::LOG).unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .log_internal_errors(false)
        .with_writer(move || records.clone());
    match format {
        LogFormat::Text => log.with_target(false).with_ansi(false).fmt_fields(debug_fn(words)).init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

/// Returns the line about lost lines, in the format of the log.
fn lost_line(format: LogFormat, lines: u64, why: &str) -> Vec<u8> {
    let sentence = format!("{lines} lines of this log are lost: {why}");
    let mut line = match format {
        LogFormat::Text => format!("WARN {sentence}").into_bytes(),
        LogFormat::Json => {
            let fields = serde_json::json!({ "level": "WARN", "message": sentence, "lost_lines": lines });
            fields.to_string().into_bytes()
        }
    };
    line.push(b'\n');
    line
}

/// Formats a log record for people: the sentence, and the fields that it does not contain.
fn words(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    match field.name() {
        "message" => write!(writer, "{value:?}"),
        name if operation::FIELDS.contains(&name) => Ok(()),
        name => write!(writer, " {name}={value:?}"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_lost_on_a_full_disk_are_reported_once_one_can_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        // A folder cannot be opened for writing.
        fs::create_dir(&path).unwrap();
        let queue = Arc::new(Queue::default());
        let own = queue.clone();
        let sink = Sink::new(Some(&path));
        queue.add(b"one\ntwo\n");
        let writing = thread::spawn(move || {
            write_lines(&own, sink, |lines, why| lost_line(LogFormat::Text, lines, why));
        });
        while queue.lost() < 2 {
            thread::sleep(Duration::from_millis(2));
        }
        fs::remove_dir(&path).unwrap();
        queue.add(b"three\n");
        queue.end();
        writing.join().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("WARN 2 lines of this log are lost: "), "{text}");
        assert_eq!(lines[1..], ["three"]);
    }

    #[test]
    fn the_report_of_lost_lines_has_the_format_of_the_log() {
        let line: serde_json::Value =
            serde_json::from_slice(&lost_line(LogFormat::Json, 7, "disk full")).unwrap();
        assert_eq!(line["lost_lines"], 7);
    }
}

//! Lines that a child process prints, each of which is waited for with a deadline.

use std::process::ChildStdout;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest line, in bytes.
const LONGEST: usize = 4096;

/// Reason why there is no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoLine {
    /// None came in time.
    Late,
    /// The process has closed its output, or prints what is no line.
    Ended,
}

/// Output of a child process, line by line.
#[derive(Debug)]
pub(crate) struct Lines {
    output: ChildStdout,
    /// Bytes of a line that is not whole yet.
    begun: Vec<u8>,
}

impl Lines {
    pub(crate) const fn of(output: ChildStdout) -> Self {
        Self { output, begun: Vec::new() }
    }

    /// Waits for the next line, and returns it with its end.
    pub(crate) fn next(&mut self, deadline: Duration) -> Result<Vec<u8>, NoLine> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(length) = self.begun.iter().position(|byte| *byte == b'\n') {
                return Ok(self.begun.drain(..=length).collect());
            }
            let left = end.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).unwrap_or_default();
            let mut polled = [PollFd::new(&self.output, PollFlags::IN)];
            match poll(&mut polled, Some(&timeout)) {
                Ok(0) => return Err(NoLine::Late),
                Ok(_) => {
                    let mut bytes = [0; 512];
                    match rustix::io::read(&self.output, &mut bytes) {
                        Ok(count) if count > 0 && self.begun.len() < LONGEST => {
                            self.begun.extend_from_slice(&bytes[..count]);
                        }
                        Err(rustix::io::Errno::INTR) => {}
                        Ok(_) | Err(_) => return Err(NoLine::Ended),
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(NoLine::Ended),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn lines_come_whole_and_a_late_one_is_waited_for_no_longer() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf 'a\\nb'; read line; echo c"]);
        let mut child = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = Lines::of(child.stdout.take().unwrap());
        let patience = Duration::from_secs(60);
        assert_eq!(lines.next(patience), Ok(b"a\n".to_vec()));
        assert_eq!(lines.next(Duration::ZERO), Err(NoLine::Late));
        drop(child.stdin.take());
        assert_eq!(lines.next(patience), Ok(b"bc\n".to_vec()));
        assert_eq!(lines.next(patience), Err(NoLine::Ended));
        child.wait().unwrap();
    }
}

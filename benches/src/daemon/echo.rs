//! Echo: the time of a question and an answer between two processes that decide nothing, over the same kind
//! of socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::Context;
use gpushare_proto::codec;
use gpushare_proto::tenant::TenantRequest;

/// The other process, which answers.
#[derive(Debug)]
pub(crate) struct Echo {
    stream: UnixStream,
    frame: Vec<u8>,
    child: Child,
}

impl Echo {
    /// Of the frame of `message`.
    pub(crate) fn start(folder: &Path, message: &TenantRequest) -> anyhow::Result<Self> {
        let frame = codec::encode(message)?;
        let path = folder.join("echo.sock");
        let listener = UnixListener::bind(&path).context("cannot listen for the echo")?;
        let child = Command::new(std::env::current_exe()?)
            .arg("echo")
            .arg("--socket")
            .arg(&path)
            .arg("--length")
            .arg(frame.len().to_string())
            .spawn()?;
        let (stream, _) = listener.accept()?;
        // The next echo may listen there.
        fs::remove_file(&path)?;
        Ok(Self { stream, frame, child })
    }

    /// How long each of `times` took.
    pub(crate) fn measure(&mut self, times: usize) -> anyhow::Result<Vec<Duration>> {
        let mut answer = vec![0; self.frame.len()];
        let mut once = || {
            let begun = Instant::now();
            self.stream.write_all(&self.frame)?;
            self.stream.read_exact(&mut answer)?;
            Ok(begun.elapsed())
        };
        (0..times).map(|_| once()).collect()
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        // The process has ended by itself if its socket was closed first.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each frame of this length, until the one who asks hangs up.
pub(crate) fn answer(socket: &Path, length: usize) -> anyhow::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    let mut frame = vec![0; length];
    while stream.read_exact(&mut frame).is_ok() {
        stream.write_all(&frame)?;
    }
    Ok(())
}

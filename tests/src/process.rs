//! A child process that does not outlive the value that stands for it, with its output in the world's folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::patience;

/// A running process. Dropping it kills it; if that is because a test failed, what it said is shown.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command`; its stderr goes to `NAME.err` in `folder`.
    pub fn start(mut command: Command, folder: &Path, name: &str) -> anyhow::Result<Self> {
        let stderr = folder.join(format!("{name}.err"));
        let file = File::options().create(true).append(true).open(&stderr)?;
        command.stderr(file);
        let child = command.spawn().with_context(|| {
            format!("cannot start {name} ({})", Path::new(command.get_program()).display())
        })?;
        Ok(Self { name: name.to_owned(), child, stderr })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Text that the process has written to stderr so far.
    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap_or_default()
    }

    /// Stdin of the process, once, if the command piped it.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// Stdout of the process, once, if the command piped it.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.child.stdout.take()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    /// Kills the process as `kill -9` does, and waits for its end.
    pub fn kill(&mut self) -> anyhow::Result<ExitStatus> {
        self.child.kill()?;
        Ok(self.child.wait()?)
    }

    /// Exit status of the process, if it has ended.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Waits for the end of the process.
    pub fn wait(&mut self) -> anyhow::Result<ExitStatus> {
        let what = format!("the end of {}", self.name);
        patience::until(&what, || self.ended())
    }

    /// Waits for the end of the process.
    pub fn succeed(&mut self) -> anyhow::Result<()> {
        let status = self.wait()?;
        if !status.success() {
            bail!("{} ended with {status}: {}", self.name, self.stderr().trim());
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended before; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("--- stderr of {} (pid {}):\n{}", self.name, self.pid(), self.stderr());
        }
    }
}

/// Writes a file that can be executed. A child writes it: the descriptor for writing would otherwise be in each
/// program that another test starts at that moment, and the kernel executes no file that is open for writing.
pub fn write_executable(path: &Path, text: &str) -> anyhow::Result<()> {
    let draft = path.with_extension("draft");
    fs::write(&draft, text)?;
    let mut install = Command::new("install");
    install.arg("--mode=755").arg(&draft).arg(path);
    output_of(install)?;
    Ok(fs::remove_file(&draft)?)
}

/// Runs `command` to its end and gives its stdout.
pub fn output_of(mut command: Command) -> anyhow::Result<String> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {program}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{program} ended with {}: {}", output.status, said.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

//! The intermediate process through which `run` starts a daemon.
//!
//! ```text
//!   run ── start-daemon ── gpushare-scheduler
//!    │          │ setsid          │
//!    │          └ ends at once    └ now a child of init, without the terminal
//!    └ becomes the program, which must not have a child that it did not start
//! ```
//!
//! The daemon inherits nothing from its starter: standard input and output are `/dev/null`, standard error
//! is its log file, its working directory is `/`, inherited descriptors are closed, and nothing is
//! preloaded into it.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, Stdio};

use gpushare_proto::names::{RUNTIME_DIR, RuntimeDir, SCHEDULER, TOKEN_FILE};
use rustix::io::{FdFlags, fcntl_setfd};

use crate::exit::{self, CommandError};

/// Duration without use after which a daemon that `run` started ends.
const IDLE_EXIT: &str = "10min";

/// Reason why `run` could not start a daemon.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DetachError {
    #[error("this command is internal to `gpushare-ctl run`; use that")]
    NotByHand,
    #[error("{0}")]
    System(#[from] io::Error),
}

impl CommandError for DetachError {
    fn code(&self) -> u8 {
        exit::RUN_FAILED
    }
}

/// Starts the daemon program that the environment names. A ready daemon writes to standard output.
pub(crate) fn detach() -> Result<(), DetachError> {
    let (Some(program), Some(root)) = (std::env::var_os(SCHEDULER), std::env::var_os(RUNTIME_DIR)) else {
        return Err(DetachError::NotByHand);
    };
    rustix::process::setsid().map_err(io::Error::from)?;
    // An old kernel cannot do this; the daemon then inherits open descriptors, which does no harm.
    let _ = gpushare_sys::fd::close_on_exec_from(3);
    let ready = io::stdout().as_fd().try_clone_to_owned()?;
    fcntl_setfd(&ready, FdFlags::empty()).map_err(io::Error::from)?;
    let path = RuntimeDir::new(root).log();
    // For what the program says before its log starts, such as a wrong flag.
    let log = OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    Command::new(program)
        .args(["--user", "--idle-exit", IDLE_EXIT, "--log-file"])
        .arg(path)
        .arg("--ready-fd")
        .arg(ready.as_raw_fd().to_string())
        .env_remove("LD_PRELOAD")
        .env_remove(TOKEN_FILE)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()?;
    Ok(())
}

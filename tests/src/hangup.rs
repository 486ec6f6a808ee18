//! Ending the connection of a process from outside, as if it had done so itself: it lives, and keeps all
//! that it has.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use anyhow::Context;
use gpushare_proto::names::RuntimeDir;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, getpeername, shutdown};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Shuts every connection that a process has to the daemon that serves `runtime`; how many that were.
pub fn hang_up(pid: u32, runtime: &RuntimeDir) -> anyhow::Result<usize> {
    let process = i32::try_from(pid).ok().and_then(Pid::from_raw).context("no pid")?;
    let pidfd = pidfd_open(process, PidfdFlags::empty())?;
    let mut shut = 0;
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // It may close any of them meanwhile.
        let Ok(copy) = pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()) else {
            continue;
        };
        if leads_to(&copy, &runtime.tenant_socket()) && shutdown(copy.as_fd(), Shutdown::Both).is_ok() {
            shut += 1;
        }
    }
    Ok(shut)
}

fn leads_to(socket: &OwnedFd, path: &Path) -> bool {
    // Asked first, since only a connected Unix socket has one.
    socket_peercred(socket).is_ok()
        && getpeername(socket)
            .ok()
            .flatten()
            .and_then(|address| rustix::net::SocketAddrUnix::try_from(address).ok())
            .is_some_and(|address| address.path_bytes() == Some(path.as_os_str().as_encoded_bytes()))
}

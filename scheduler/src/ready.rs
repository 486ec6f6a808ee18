//! Reports to the program that started the daemon: that it is ready, and under systemd that it is alive.
//!
//! Ready is a byte to an inherited pipe and `READY=1` in systemd's notification socket. With a watchdog
//! (`WatchdogSec=` in the unit) the daemon's task sends `WATCHDOG=1` twice in that time, so that a task which
//! hangs is noticed. The socket never blocks: a service manager that hangs must not stop the daemon.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::future;
use std::io::{self, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};
use tracing::warn;

/// Service manager of this process; absent for a daemon that was started by hand.
#[derive(Debug)]
pub(crate) struct Manager {
    socket: Option<UnixDatagram>,
}

/// Times at which the watchdog expects a sign of life, if there is one.
#[derive(Debug)]
pub(crate) struct Signs(Option<Interval>);

impl Signs {
    /// Waits until the next sign of life is due, for ever without a watchdog.
    pub(crate) async fn due(&mut self) {
        match &mut self.0 {
            Some(signs) => drop(signs.tick().await),
            None => future::pending().await,
        }
    }
}

impl Manager {
    /// Finds the service manager in the environment. Failures are only logged.
    pub(crate) fn of_this_process() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|address| match connect(&address) {
            Ok(socket) => Some(socket),
            Err(cause) => {
                warn!("cannot reach the service manager at {}: {cause}", address.display());
                None
            }
        });
        Self { socket }
    }

    /// Returns the times at which the watchdog of this process expects signs of life.
    pub(crate) fn signs() -> Signs {
        let variable = |name| std::env::var(name).ok();
        Signs(pace(variable("WATCHDOG_USEC"), variable("WATCHDOG_PID")).map(|pace| {
            let mut signs = interval(pace);
            signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
            signs
        }))
    }

    /// Reports to the `pipe` and to the service manager, if present, that the daemon is ready.
    pub(crate) fn ready(&self, pipe: Option<u32>) {
        if let Some(number) = pipe
            && let Err(cause) = write_byte(number)
        {
            warn!("cannot write to descriptor {number} that the daemon is ready: {cause}");
        }
        self.tell(b"READY=1");
    }

    /// Sends a sign of life.
    pub(crate) fn is_alive(&self) {
        self.tell(b"WATCHDOG=1");
    }

    /// Reports that the daemon begins to end.
    pub(crate) fn stops(&self) {
        self.tell(b"STOPPING=1");
    }

    fn tell(&self, message: &[u8]) {
        match self.socket.as_ref().map(|socket| socket.send(message)) {
            // The manager does not read; its queue is full.
            Some(Err(cause)) if cause.kind() == ErrorKind::WouldBlock => {}
            Some(Err(cause)) => {
                warn!("cannot tell the service manager {}: {cause}", String::from_utf8_lossy(message));
            }
            Some(Ok(_)) | None => {}
        }
    }
}

/// Writes a byte to an inherited pipe, opened through /proc: safe code cannot own a descriptor by its number.
fn write_byte(number: u32) -> io::Result<()> {
    let mut pipe = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}"))?;
    pipe.write_all(b"\n")
}

/// Connects to the socket of sd_notify(3), at a path or an abstract address.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

/// Returns the time between two signs of life as in sd_watchdog_enabled(3): half of what the watchdog allows.
fn pace(allowed: Option<String>, pid: Option<String>) -> Option<Duration> {
    let microseconds = allowed?.parse().ok().filter(|&microseconds| microseconds > 1)?;
    let is_for_us = pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
    is_for_us.then(|| Duration::from_micros(microseconds) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(systemd: &UnixDatagram) -> String {
        let mut message = [0; 32];
        let length = systemd.recv(&mut message).unwrap();
        String::from_utf8_lossy(&message[..length]).into_owned()
    }

    #[test]
    fn a_manager_that_does_not_read_blocks_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        let manager = Manager { socket: Some(connect(path.as_os_str()).unwrap()) };
        manager.ready(None);
        // More than the longest queue that a kernel has by default.
        (0..2000).for_each(|_| manager.is_alive());
        assert_eq!(received(&systemd), "READY=1");
        assert_eq!(received(&systemd), "WATCHDOG=1");
    }

    #[test]
    fn an_abstract_address_is_understood() {
        let name = format!("gpushare-test-{}", std::process::id());
        let systemd = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        connect(format!("@{name}").as_ref()).unwrap().send(b"READY=1").unwrap();
        assert_eq!(received(&systemd), "READY=1");
    }

    #[test]
    fn signs_of_life_come_twice_in_the_allowed_time() {
        let second = || Some("1000000".to_owned());
        let own = Some(std::process::id().to_string());
        assert_eq!(pace(second(), None), Some(Duration::from_millis(500)));
        assert_eq!(pace(second(), own), Some(Duration::from_millis(500)));
        assert_eq!(pace(second(), Some("1".to_owned())), None, "the watchdog is another process's");
        assert_eq!(pace(None, None), None);
        assert_eq!(pace(Some("0".to_owned()), None), None);
    }
}

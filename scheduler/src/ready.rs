//! Reports that the daemon is ready: by a byte to an inherited pipe, and by systemd's notification socket.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Reports to the `pipe` and to systemd, if present, that the daemon is ready. Failures are only logged.
pub(crate) fn report(pipe: Option<u32>) {
    if let Some(number) = pipe
        && let Err(cause) = write_byte(number)
    {
        warn!("cannot write to descriptor {number} that the daemon is ready: {cause}");
    }
    if let Some(socket) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(cause) = notify(&socket)
    {
        warn!("cannot tell {} that the daemon is ready: {cause}", socket.display());
    }
}

/// Writes a byte to an inherited pipe, opened through /proc: safe code cannot own a descriptor by its number.
fn write_byte(number: u32) -> io::Result<()> {
    let mut pipe = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}"))?;
    pipe.write_all(b"\n")
}

/// Sends `READY=1` to systemd as in sd_notify(3), to a path or to an abstract address.
fn notify(socket: &OsStr) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_is_notified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        notify(path.as_os_str()).unwrap();
        let mut message = [0; 16];
        let length = systemd.recv(&mut message).unwrap();
        assert_eq!(&message[..length], b"READY=1");
    }
}

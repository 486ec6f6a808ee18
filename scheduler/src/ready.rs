//! Telling whoever started the daemon that it listens: a byte into an inherited pipe, or systemd's word.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use tracing::warn;

/// Says it everywhere it is awaited. The daemon serves whether it is heard or not.
pub fn say(pipe: Option<u32>) {
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

/// Through /proc, since the number alone gives no right to the descriptor. Works for pipes.
fn write_byte(number: u32) -> io::Result<()> {
    let mut pipe = OpenOptions::new().write(true).open(format!("/proc/self/fd/{number}"))?;
    pipe.write_all(b"\n")
}

/// sd_notify(3).
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
    fn systemd_hears_the_word() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let systemd = UnixDatagram::bind(&path).unwrap();
        notify(path.as_os_str()).unwrap();
        let mut word = [0; 16];
        let length = systemd.recv(&mut word).unwrap();
        assert_eq!(&word[..length], b"READY=1");
    }
}

//! User namespace in which a process runs, and its creator.
//!
//! A user with subordinate ids (`/etc/subuid`, tens of thousands on most distributions) can become each of
//! them in a user namespace of its own. The kernel treats these as other users, but it also knows the creator
//! of the namespace.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::MetadataExt;

/// Request `NS_GET_PARENT` of linux/nsfs.h.
const GET_PARENT: libc::Ioctl = 0xb702;
const GET_OWNER_UID: libc::Ioctl = 0xb704;
/// Deepest nesting of user namespaces that the kernel allows.
const DEEPEST: usize = 33;

/// User namespace beside this process's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// User who created the namespace.
    pub maker: u32,
    /// Inode number, which no other living namespace has.
    pub number: u64,
}

/// Returns the outermost user namespace around a process that is inside this process's namespace. Returns
/// `None` if both are in the same namespace, or if the namespace cannot be read.
pub fn outermost(pid: u32) -> Option<Namespace> {
    let own = identity(&File::open("/proc/self/ns/user").ok()?)?;
    let mut inner = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    if identity(&inner)? == own {
        return None;
    }
    for _ in 0..DEEPEST {
        let outer = parent(&inner)?;
        if identity(&outer)? == own {
            let (_, number) = identity(&inner)?;
            return Some(Namespace { maker: owner(&inner)?, number });
        }
        inner = outer;
    }
    None
}

fn identity(namespace: &File) -> Option<(u64, u64)> {
    let of = namespace.metadata().ok()?;
    Some((of.dev(), of.ino()))
}

/// Returns the parent namespace; `None` if it is outside this process's namespace.
fn parent(namespace: &File) -> Option<File> {
    // SAFETY: this request takes no argument; the file keeps the descriptor open meanwhile.
    let descriptor = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_PARENT) };
    // SAFETY: the kernel has just made this descriptor for this process, close-on-exec, and no other code
    // knows it.
    (descriptor >= 0).then(|| unsafe { File::from_raw_fd(descriptor) })
}

fn owner(namespace: &File) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: this request writes one user id, for which there is room.
    let result = unsafe { libc::ioctl(namespace.as_raw_fd(), GET_OWNER_UID, &raw mut uid) };
    (result == 0).then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_user_in_namespaces_of_its_own_is_told_however_deep_they_are() {
        let own = rustix::process::geteuid();
        assert_eq!(outermost(std::process::id()), None);
        assert_eq!(outermost(u32::MAX), None);
        let user = if own.is_root() { 12345 } else { own.as_raw() };
        for nested in ["", "unshare --user --map-root-user"] {
            let mut command = Command::new("unshare");
            command.args(["--user", "--map-root-user", "sh", "-c"]);
            command.arg(format!("readlink /proc/self/ns/user; exec {nested} sh -c 'echo in; exec cat'"));
            let child = command.uid(user).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut child = child.unwrap();
            let mut said = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
            let (Some(outer), Some(_)) = (said.next(), said.next()) else {
                eprintln!("skipped: this machine does not allow user namespaces");
                child.wait().unwrap();
                return;
            };
            let told = outermost(child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            let number = outer.trim_start_matches("user:[").trim_end_matches(']').parse().unwrap();
            assert_eq!(told, Some(Namespace { maker: user, number }), "{nested}");
        }
    }
}

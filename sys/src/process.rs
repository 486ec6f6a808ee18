//! What the kernel says about a process in `/proc`.
//!
//! A pid names a process only while it lives, so a caller that keeps what it read here holds a pidfd from
//! before, or compares [`start_time`] with what it knew.

use std::path::PathBuf;
use std::{fs, io};

/// When the process started, in clock ticks since boot. With its pid it is one process only.
#[must_use]
pub fn start_time(pid: u32) -> Option<u64> {
    field(&stat(pid)?, 22)?.parse().ok()
}

/// The name of its program, as `ps` shows it.
#[must_use]
pub fn comm(pid: u32) -> Option<String> {
    let stat = stat(pid)?;
    Some(stat[stat.find('(')? + 1..stat.rfind(')')?].to_owned())
}

/// Whether it is stopped, by a signal or by a tracer.
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    matches!(
        stat(pid).as_deref().and_then(|stat| field(stat, 3)),
        Some("T" | "t")
    )
}

/// Whether it is dead, even if its parent has not yet taken note.
#[must_use]
pub fn is_dead(pid: u32) -> bool {
    matches!(
        stat(pid).as_deref().and_then(|stat| field(stat, 3)),
        None | Some("Z" | "X")
    )
}

/// Whether it has come to its end, dead or not yet: none of its threads will run another instruction of its own. A process
/// that is killed closes its sockets here, and dies when its drivers have let go of it: a card's takes some 60 ms.
#[must_use]
pub fn is_ending(pid: u32) -> bool {
    let threads = match fs::read_dir(format!("/proc/{pid}/task")) {
        Ok(threads) => threads,
        Err(error) => return error.kind() == io::ErrorKind::NotFound,
    };
    let mut stats = threads
        .flatten()
        // A thread that is gone meanwhile has ended.
        .filter_map(|thread| fs::read(thread.path().join("stat")).ok());
    stats.all(|stat| is_exiting(&String::from_utf8_lossy(&stat)))
}

/// Whether the kernel has begun to end the thread of this stat line.
fn is_exiting(stat: &str) -> bool {
    /// `PF_EXITING` of linux/sched.h: as old as `/proc`, and `ps -o f` shows it.
    const EXITING: u32 = 4;
    let flags = field(stat, 9).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Its parent: the process that started it, or that took it over when that one died.
#[must_use]
pub fn parent(pid: u32) -> Option<u32> {
    field(&stat(pid)?, 4)?.parse().ok()
}

/// Its POSIX session: the login, or the job of a batch system, that it belongs to.
#[must_use]
pub fn posix_session(pid: u32) -> Option<u32> {
    field(&stat(pid)?, 6)?.parse().ok()
}

/// Its control group: the path in the unified hierarchy, else the longest of the old ones.
#[must_use]
pub fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroup_path(&text).map(str::to_owned)
}

/// A process as those see it that are in its own PID namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Its PID namespace.
    pub namespace: PathBuf,
    /// Its pid there.
    pub pid: u32,
}

/// How a process is seen from within its PID namespace; `None` if we may not look.
#[must_use]
pub fn inside(pid: u32) -> Option<Inside> {
    let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let pid = innermost_pid(&status)?;
    Some(Inside { namespace, pid })
}

/// The last number of the line with a process's pids, from our namespace inwards.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

fn stat(pid: u32) -> Option<String> {
    // The name is the process's own choice and need not be UTF-8.
    let bytes = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Field `number` of a stat line, counted from 1 as in proc(5). The second one is a name that may itself
/// hold spaces and parentheses, so fields are counted from the last `)`.
fn field(stat: &str, number: usize) -> Option<&str> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

fn cgroup_path(text: &str) -> Option<&str> {
    let paths = || text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    let unified = text.lines().find_map(|line| line.strip_prefix("0::"));
    unified
        .filter(|path| *path != "/")
        .or_else(|| paths().max_by_key(|path| path.len()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const EVIL: &str = "77 (a) R (b) S 1 70 60 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 99 88";

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        assert_eq!(field(EVIL, 3), Some("S"));
        assert_eq!(field(EVIL, 6), Some("60"));
        assert_eq!(field(EVIL, 22), Some("123456"));
        assert_eq!(field("", 22), None);
    }

    #[test]
    fn a_process_knows_itself() {
        let pid = std::process::id();
        assert_eq!(start_time(pid), start_time(pid));
        assert!(start_time(pid).is_some());
        assert!(comm(pid).is_some());
        assert!(!is_stopped(pid) && !is_dead(pid) && !is_ending(pid));
        assert!(posix_session(pid).is_some());
        assert_eq!(parent(pid), Some(std::os::unix::process::parent_id()));
        assert_eq!(start_time(u32::MAX), None);
        assert!(is_dead(u32::MAX) && is_ending(u32::MAX));
    }

    #[test]
    fn a_process_is_seen_from_within_by_its_own_pid() {
        let pid = std::process::id();
        assert_eq!(inside(pid).unwrap().pid, pid);
        assert_eq!(inside(u32::MAX), None);
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t5000\t12\t7\n"), Some(7));
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }

    #[test]
    fn a_child_that_nobody_waited_for_is_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let pidfd = crate::peer::open(pid).unwrap();
        assert!(!is_dead(pid) && !is_ending(pid));
        crate::peer::kill(&pidfd).unwrap();
        let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        assert!(is_dead(pid) && is_ending(pid));
        child.wait().unwrap();
    }

    #[test]
    fn a_thread_that_the_kernel_ends_is_told_by_its_flags() {
        assert!(!is_exiting(EVIL));
        assert!(is_exiting(&EVIL.replace("4194560", "4194564")));
        assert!(!is_exiting(""));
    }

    #[test]
    fn the_unified_control_group_is_preferred() {
        assert_eq!(
            cgroup_path("1:name=systemd:/long/path\n0::/kubepods/pod1\n"),
            Some("/kubepods/pod1")
        );
        assert_eq!(
            cgroup_path("4:memory:/docker/abc\n1:cpu:/\n0::/\n"),
            Some("/docker/abc")
        );
        assert_eq!(cgroup_path(""), None);
    }
}

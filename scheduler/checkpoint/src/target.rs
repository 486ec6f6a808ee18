//! Process that a helper is about, and the user that the helper becomes for it.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use gpushare_sys::{peer, process};
use rustix::process::{DumpableBehavior, Gid, Uid, getuid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};

/// Process, by its pid and its start time. The driver's functions know the pid only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Process id in the PID namespace of the daemon.
    pub pid: u32,
    /// Start time in clock ticks since boot.
    pub start: u64,
}

/// Living process that a helper acts on.
#[derive(Debug)]
pub(crate) struct Process {
    target: Target,
    pidfd: OwnedFd,
}

impl Process {
    /// Finds the process. `None` if it has ended, or if the pid belongs to a thread.
    pub(crate) fn find(target: Target) -> Option<Self> {
        let pidfd = process::open(target.pid, target.start)?;
        Some(Self { target, pidfd }).filter(Self::lives)
    }

    /// Whether the process lives. Then nobody else has its pid.
    pub(crate) fn lives(&self) -> bool {
        !peer::is_dead(&self.pidfd)
    }

    /// Pid for the driver.
    pub(crate) fn pid(&self) -> i32 {
        self.target.pid.cast_signed()
    }

    /// Whether the process lives with its first thread, by which the driver finds it.
    pub(crate) fn is_whole(&self) -> bool {
        self.lives() && !process::is_dead(self.target.pid)
    }

    /// Makes this process the user's: same user and groups, and no capability but what the driver's calls need. Only
    /// its one thread changes, so it comes before the first other one.
    pub(crate) fn become_its_user(&self) -> io::Result<()> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.target.pid))?;
        let user = User::of(&status).ok_or_else(|| {
            io::Error::other("the process runs with the rights of another user than its own")
        })?;
        // What it has in a user namespace of its own says nothing of the host.
        let theirs = if self.shares_user_namespace() { capabilities_of(&status) } else { None };
        set_no_new_privs(true)?;
        // Nobody attaches to a helper, whatever else its user may do on the host.
        set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
        // A change of the user takes all capabilities away.
        if user.uid != getuid() {
            set_thread_groups(&user.groups)?;
            set_thread_res_gid(user.gid, user.gid, user.gid)?;
            set_thread_res_uid(user.uid, user.uid, user.uid)?;
        }
        keep_least(theirs.unwrap_or(CapabilitySet::empty()), || self.shows_descriptors())
    }

    /// Whether the process has the user namespace of this one, as far as this one may see that.
    fn shares_user_namespace(&self) -> bool {
        let namespace = |of: &str| fs::read_link(format!("/proc/{of}/ns/user")).ok();
        namespace("self").is_some_and(|ours| namespace(&self.target.pid.to_string()) == Some(ours))
    }

    /// Whether the kernel lets this process open descriptors of the process, as the driver does.
    fn shows_descriptors(&self) -> bool {
        let listed = fs::read_dir(format!("/proc/{}/fd", self.target.pid));
        listed.is_ok_and(|mut listed| {
            listed.any(|entry| entry.is_ok_and(|fd| fs::read_link(fd.path()).is_ok()))
        })
    }
}

/// Reads the permitted capabilities of a process in a file `/proc/PID/status`.
fn capabilities_of(status: &str) -> Option<CapabilitySet> {
    let set = status.lines().find_map(|line| line.strip_prefix("CapPrm:"))?;
    u64::from_str_radix(set.trim(), 16).ok().map(CapabilitySet::from_bits_retain)
}

/// Gives up all capabilities of this thread but the fewest with which it `sees` the other process: none, then those of
/// `theirs`, then `CAP_SYS_PTRACE`. Without success it keeps none, and the driver refuses the process.
fn keep_least(theirs: CapabilitySet, sees: impl Fn() -> bool) -> io::Result<()> {
    let ours = capabilities(None)?.permitted;
    let (none, inheritable) = (CapabilitySet::empty(), CapabilitySet::empty());
    for least in [none, theirs & ours, CapabilitySet::SYS_PTRACE & ours] {
        set_capabilities(None, CapabilitySets { effective: least, permitted: ours, inheritable })?;
        if sees() {
            set_capabilities(None, CapabilitySets { effective: least, permitted: least, inheritable })?;
            return Ok(());
        }
    }
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable })?)
}

/// User of a process.
#[derive(Debug, PartialEq, Eq)]
struct User {
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl User {
    /// Reads a file `/proc/PID/status`. `None` if real, effective and saved ids differ.
    fn of(status: &str) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let one = |name| {
            let all = numbers(name)?;
            let first = *all.first()?;
            all.iter().all(|id| *id == first).then_some(first)
        };
        Some(Self {
            uid: Uid::from_raw(one("Uid:")?),
            gid: Gid::from_raw(one("Gid:")?),
            groups: numbers("Groups:")?.into_iter().map(Gid::from_raw).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(uids: &str) -> String {
        format!("Name:\tpython\nTgid:\t7\nUid:\t{uids}\nGid:\t100\t100\t100\t100\nGroups:\t44 100 \n")
    }

    #[test]
    fn the_user_is_read_with_all_groups() {
        let groups = [44, 100].map(Gid::from_raw).to_vec();
        let user = User { uid: Uid::from_raw(1000), gid: Gid::from_raw(100), groups };
        assert_eq!(User::of(&status("1000\t1000\t1000\t1000")), Some(user));
    }

    #[test]
    fn the_capabilities_of_a_process_are_read() {
        let theirs = capabilities_of("Name:\tpython\nCapPrm:\t0000000000000021\nCapEff:\t0\n").unwrap();
        assert_eq!(theirs, CapabilitySet::CHOWN | CapabilitySet::KILL);
        assert_eq!(capabilities_of("Name:\tpython\n"), None);
    }

    /// Capabilities of a thread that had `ours`, after it has kept those with which it sees a process that asks for
    /// `needed`. `None` without the right to drop any.
    fn kept(ours: CapabilitySet, theirs: CapabilitySet, needed: CapabilitySet) -> Option<CapabilitySet> {
        let of_thread = move || {
            let sets =
                CapabilitySets { effective: ours, permitted: ours, inheritable: CapabilitySet::empty() };
            set_capabilities(None, sets).ok()?;
            keep_least(theirs, || capabilities(None).unwrap().effective.contains(needed)).unwrap();
            let CapabilitySets { effective, permitted, .. } = capabilities(None).unwrap();
            assert_eq!(effective, permitted);
            Some(permitted)
        };
        std::thread::spawn(of_thread).join().unwrap()
    }

    #[test]
    fn the_helper_keeps_the_fewest_capabilities_that_show_it_the_process() {
        let (none, ptrace) = (CapabilitySet::empty(), CapabilitySet::SYS_PTRACE);
        let (chown, kill) = (CapabilitySet::CHOWN, CapabilitySet::KILL);
        // Only root has capabilities to drop.
        let Some(of_user) = kept(chown | kill | ptrace, chown, none) else { return };
        assert_eq!(of_user, none);
        assert_eq!(kept(chown | kill | ptrace, chown, chown), Some(chown));
        assert_eq!(kept(chown | ptrace, chown | kill, ptrace), Some(ptrace));
        assert_eq!(kept(chown | kill, chown | kill, ptrace), Some(none), "it sees nothing");
    }

    #[test]
    fn a_program_with_borrowed_rights_has_no_user() {
        assert_eq!(User::of(&status("1000\t0\t0\t0")), None);
        assert_eq!(User::of("Name:\tpython\n"), None);
    }

    #[test]
    fn only_the_same_living_process_is_found() {
        let pid = std::process::id();
        let start = process::start_time(pid).unwrap();
        assert!(Process::find(Target { pid, start }).unwrap().is_whole());
        assert!(Process::find(Target { pid, start: start + 1 }).is_none());
    }

    #[test]
    fn a_thread_is_no_process() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender
                .send(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
                .unwrap();
            let _ = ended.recv();
        });
        let pid = receiver.recv().unwrap();
        let stat = fs::read_to_string(format!("/proc/self/task/{pid}/stat")).unwrap();
        let start = stat[stat.rfind(')').unwrap()..].split_ascii_whitespace().nth(20).unwrap();
        assert!(Process::find(Target { pid, start: start.parse().unwrap() }).is_none());
        drop(end);
        thread.join().unwrap();
    }
}

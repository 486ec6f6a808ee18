//! Facts about a process from `/proc`.
//!
//! A pid identifies a process only while it lives. A caller that keeps facts holds an earlier pidfd, or
//! compares [`start_time`] with an earlier value.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::peer;

/// Returns the start time of a process in clock ticks since boot. Pid and start time identify a process.
pub fn start_time(pid: u32) -> Option<u64> {
    started(&stat(pid)?)
}

/// Returns a pidfd of the process with this pid and start time; `None` if the process is dead.
///
/// A process lives until its last thread ends, even if its first thread has ended.
pub fn open(pid: u32, start: u64) -> Option<OwnedFd> {
    let pidfd = peer::open(pid).ok()?;
    // As long as the process of the pidfd is alive, the pid belongs to it.
    let is_same = start_time(pid) == Some(start) && !peer::is_dead(&pidfd);
    is_same.then_some(pidfd)
}

/// Returns the name of the process's program, as `ps` shows it.
pub fn comm(pid: u32) -> Option<String> {
    let stat = stat(pid)?;
    Some(stat[stat.find('(')? + 1..stat.rfind(')')?].to_owned())
}

/// Returns whether the process is stopped, by a signal or by a tracer.
pub fn is_stopped(pid: u32) -> bool {
    matches!(stat(pid).as_deref().and_then(|stat| field(stat, 3)), Some("T" | "t"))
}

/// Returns whether a tracer, such as a debugger, holds the process. It may hold one that was killed, for ever.
pub fn is_held_by_tracer(pid: u32) -> bool {
    stat(pid).as_deref().and_then(|stat| field(stat, 3)) == Some("t")
}

/// Returns whether the process is dead, even if its parent has not waited for it yet.
pub fn is_dead(pid: u32) -> bool {
    matches!(stat(pid).as_deref().and_then(|stat| field(stat, 3)), None | Some("Z" | "X"))
}

/// Returns whether the process is exiting, so that its threads run no instruction of the program any more. A
/// killed process closes its sockets first. It dies when its drivers are done, about 60 ms for a card's
/// driver.
///
/// A process with more than 256 threads never counts as exiting, because its threads are read one by one.
pub fn is_ending(pid: u32) -> bool {
    /// Number of attempts, since threads may disappear while they are counted.
    const LOOKS: usize = 8;
    (0..LOOKS).find_map(|_| are_all_exiting(pid)).unwrap_or(false)
}

/// Returns whether all threads of a process are exiting; `None` if the threads changed meanwhile.
///
/// One reading of the thread list proves nothing, because a thread may start another one and end before it is
/// read. So the exiting threads are read again. If all remain, and are as many as the kernel counts, no other
/// thread exists.
fn are_all_exiting(pid: u32) -> Option<bool> {
    /// Largest number of threads that are read.
    const MOST: usize = 256;
    let mut exiting = Vec::new();
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = thread.ok()?.path().join("stat");
        // A thread that cannot be read is missing in the count.
        let Some(stat) = read(&path) else { continue };
        if !is_exiting(&stat) || exiting.len() == MOST {
            return Some(false);
        }
        exiting.push((path, started(&stat)));
    }
    let again: Option<Vec<String>> = exiting.iter().map(|(path, _)| read(path)).collect();
    let again = again?;
    let threads = field(again.first()?, 20)?.parse();
    let are_same = again
        .iter()
        .map(|stat| started(stat))
        .eq(exiting.iter().map(|&(_, start)| start));
    (are_same && threads == Ok(exiting.len())).then_some(true)
}

/// Returns whether the kernel has begun to end the thread of this stat line.
fn is_exiting(stat: &str) -> bool {
    /// `PF_EXITING` of linux/sched.h, which `ps -o f` shows too.
    const EXITING: u32 = 4;
    let flags = field(stat, 9).and_then(|flags| flags.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Returns the pid of the parent: the process that started or adopted this one.
pub fn parent(pid: u32) -> Option<u32> {
    field(&stat(pid)?, 4)?.parse().ok()
}

/// Returns the POSIX session of the process: the login or batch job that it belongs to.
pub fn posix_session(pid: u32) -> Option<u32> {
    field(&stat(pid)?, 6)?.parse().ok()
}

/// Returns the control groups of the process, that of the unified hierarchy first; empty if they cannot be
/// read. With both kinds of hierarchies, only the old ones tell Docker's containers apart.
pub fn cgroups(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    cgroup_paths(&text).map(str::to_owned).collect()
}

/// Ids of a process as seen from inside its own PID namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inside {
    /// Name of the PID namespace, which contains its inode number.
    pub namespace: PathBuf,
    /// Process id in that namespace.
    pub pid: u32,
}

/// Returns the ids from inside the process's PID namespace; `None` if they cannot be read.
pub fn inside(pid: u32, pidfd: impl AsFd) -> Option<Inside> {
    let namespace = fs::read_link(format!("/proc/{pid}/ns/pid")).ok()?;
    // The status file of the process has this line too, but behind up to 65536 groups.
    let pidfd = pidfd.as_fd().as_raw_fd();
    let facts = fs::read_to_string(format!("/proc/self/fdinfo/{pidfd}")).ok()?;
    let pid = innermost_pid(&facts)?;
    Some(Inside { namespace, pid })
}

/// Returns whether this process is in the first PID namespace of the machine, so that its pids are those of the kernel.
pub fn is_in_first_namespace() -> bool {
    // The kernel gives that namespace a fixed inode number (PROC_PID_INIT_INO).
    fs::read_link("/proc/self/ns/pid").is_ok_and(|name| name.as_os_str() == "pid:[4026531836]")
}

/// Returns the last pid in the line of pids, which lead from this namespace inwards.
fn innermost_pid(facts: &str) -> Option<u32> {
    let line = facts.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_ascii_whitespace().next_back()?.parse().ok()
}

/// Returns the stat line of the process's first thread. The kernel adds up all threads for that of the process.
fn stat(pid: u32) -> Option<String> {
    read(format!("/proc/{pid}/task/{pid}/stat").as_ref())
}

fn read(stat: &Path) -> Option<String> {
    // The process chooses its own name, which need not be UTF-8.
    let bytes = fs::read(stat).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

fn started(stat: &str) -> Option<u64> {
    field(stat, 22)?.parse().ok()
}

/// Returns the field `number` of a stat line, counted from 1 as in proc(5). Counting begins at the last `)`,
/// because the name in the second field may contain spaces and parentheses.
fn field(stat: &str, number: usize) -> Option<&str> {
    let after_name = &stat[stat.rfind(')')? + 1..];
    after_name.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Returns paths of control groups, last line first, because the kernel lists the unified hierarchy last.
fn cgroup_paths(text: &str) -> impl Iterator<Item = &str> {
    text.lines().rev().filter_map(|line| line.splitn(3, ':').nth(2))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const EVIL: &str = "77 (a) R (b) S 1 70 60 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 99 88";

    #[test]
    fn a_tracer_that_holds_a_process_is_told() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id();
        let request = |request| {
            // SAFETY: neither request writes to this process, and the process is our child.
            unsafe { libc::ptrace(request, pid.cast_signed(), 0, 0) }
        };
        if request(libc::PTRACE_SEIZE) == 0 {
            assert!(!is_held_by_tracer(pid));
            assert_eq!(request(libc::PTRACE_INTERRUPT), 0);
            // SAFETY: asks for no status.
            let stopped = unsafe { libc::waitpid(pid.cast_signed(), std::ptr::null_mut(), 0) };
            assert_eq!(stopped.cast_unsigned(), pid);
            assert!(is_stopped(pid) && is_held_by_tracer(pid));
        } else {
            eprintln!("skipped: this machine does not allow ptrace");
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

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
        assert!(is_dead(u32::MAX) && !is_ending(u32::MAX));
    }

    #[test]
    fn a_process_is_seen_from_within_by_its_own_pid() {
        let pid = std::process::id();
        let pidfd = peer::open(pid).unwrap();
        assert_eq!(inside(pid, &pidfd).unwrap().pid, pid);
        assert_eq!(inside(u32::MAX, &pidfd), None);
        assert_eq!(innermost_pid("Pid:\t5000\nNSpid:\t5000\t12\t7\n"), Some(7));
        assert_eq!(innermost_pid("Pid:\t-1\nNSpid:\t-1\n"), None, "it is dead");
        assert_eq!(innermost_pid("Pid:\t5000\n"), None);
    }

    #[test]
    fn a_child_that_was_not_waited_for_is_dead() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let pidfd = peer::open(pid).unwrap();
        assert!(!is_dead(pid) && !is_ending(pid));
        peer::kill(&pidfd).unwrap();
        let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        assert!(is_dead(pid) && is_ending(pid));
        child.wait().unwrap();
    }

    extern "C" fn start_next(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the attribute is initialised by the first call, and the function has no argument that could
        // dangle.
        unsafe {
            let mut detached = std::mem::zeroed();
            libc::pthread_attr_init(&raw mut detached);
            libc::pthread_attr_setdetachstate(&raw mut detached, libc::PTHREAD_CREATE_DETACHED);
            let mut next = 0;
            while libc::pthread_create(&raw mut next, &raw const detached, start_next, std::ptr::null_mut())
                != 0
            {}
        }
        std::ptr::null_mut()
    }

    /// Process that was forked from this test. It is killed and waited for when the value is dropped.
    struct Forked(libc::pid_t);

    impl Forked {
        /// Starts a process that starts threads with `start`, and ends its first thread.
        fn with_threads(count: usize, start: extern "C" fn(*mut libc::c_void) -> *mut libc::c_void) -> Self {
            // SAFETY: the child starts threads and ends its first one. It takes no lock but the allocator's,
            // which glibc resets. The limit and the handles are initialised.
            unsafe {
                let pid = libc::fork();
                if pid == 0 {
                    // It ends a child that outlives the test.
                    let most = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
                    libc::setrlimit(libc::RLIMIT_CPU, &raw const most);
                    let mut thread = 0;
                    for _ in 0..count {
                        libc::pthread_create(&raw mut thread, std::ptr::null(), start, std::ptr::null_mut());
                    }
                    libc::syscall(libc::SYS_exit, 0);
                }
                Self(pid)
            }
        }

        fn pid(&self) -> u32 {
            u32::try_from(self.0).unwrap()
        }

        fn threads(&self) -> Vec<libc::pid_t> {
            let listed = fs::read_dir(format!("/proc/{}/task", self.0)).unwrap();
            let names = listed.map(|thread| thread.unwrap().file_name().into_string().unwrap());
            names.map(|name| name.parse().unwrap()).collect()
        }

        /// Waits until the process has as many threads that ended and were not waited for.
        fn wait_for_ended(&self, count: usize) {
            let has_ended = |thread| {
                let stat = read(format!("/proc/{}/task/{thread}/stat", self.0).as_ref());
                stat.as_deref().and_then(|stat| field(stat, 3)) == Some("Z")
            };
            while self.threads().into_iter().filter(|&thread| has_ended(thread)).count() < count {
                std::thread::yield_now();
            }
        }
    }

    impl Drop for Forked {
        fn drop(&mut self) {
            let mut threads = self.threads();
            threads.retain(|&thread| thread != self.0);
            // SAFETY: the child and its traced threads belong to this test, and no other code waits for them.
            unsafe {
                libc::kill(self.0, libc::SIGKILL);
                for thread in threads {
                    libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL);
                }
                libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL);
            }
        }
    }

    extern "C" fn end_unseen(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: the parent traces the thread, so it stays until the parent waits for it. Nothing of the
        // thread is used any more.
        unsafe {
            libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
            libc::syscall(libc::SYS_exit, 0);
        }
        std::ptr::null_mut()
    }

    extern "C" fn sleep(_: *mut libc::c_void) -> *mut libc::c_void {
        // SAFETY: has no preconditions.
        unsafe { libc::pause() };
        std::ptr::null_mut()
    }

    #[test]
    fn ended_threads_are_read_up_to_a_limit() {
        let few = Forked::with_threads(20, end_unseen);
        few.wait_for_ended(21);
        assert!(is_ending(few.pid()));
        let many = Forked::with_threads(300, end_unseen);
        many.wait_for_ended(301);
        assert!(!is_ending(many.pid()), "all its threads were read");
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        let child = Forked::with_threads(1, sleep);
        let start = start_time(child.pid()).unwrap();
        child.wait_for_ended(1);
        assert!(open(child.pid(), start).is_some());
        assert!(open(child.pid(), start + 1).is_none());
        let pidfd = peer::open(child.pid()).unwrap();
        peer::kill(&pidfd).unwrap();
        let mut polled = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut polled, None).unwrap();
        assert!(open(child.pid(), start).is_none());
    }

    #[test]
    fn a_process_whose_threads_end_and_start_others_is_not_ending() {
        // SAFETY: the child starts threads and ends its first one. It takes no lock but the allocator's,
        // which glibc resets.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let most = libc::rlimit { rlim_cur: 20, rlim_max: 20 };
            // SAFETY: the limit is initialised; it ends a child that outlives the test.
            unsafe { libc::setrlimit(libc::RLIMIT_CPU, &raw const most) };
            start_next(std::ptr::null_mut());
            // SAFETY: has no preconditions; it ends only this thread, of which nothing is used any more.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let child = u32::try_from(pid).unwrap();
        let pidfd = peer::open(child).unwrap();
        let was_ending = (0..3000).any(|_| is_ending(child));
        let lived = !peer::is_dead(&pidfd);
        peer::kill(&pidfd).unwrap();
        // SAFETY: the child belongs to this test, and no other code waits for it.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        assert!(lived && !was_ending);
    }

    #[test]
    fn a_thread_that_the_kernel_ends_is_told_by_its_flags() {
        assert!(!is_exiting(EVIL));
        assert!(is_exiting(&EVIL.replace("4194560", "4194564")));
        assert!(!is_exiting(""));
    }

    #[test]
    fn the_unified_control_group_comes_first() {
        let paths = |text| cgroup_paths(text).collect::<Vec<_>>();
        assert_eq!(paths("1:name=systemd:/long/path\n0::/kubepods/pod1\n"), ["/kubepods/pod1", "/long/path"]);
        assert_eq!(paths("0::/a:b\n"), ["/a:b"]);
        assert!(paths("").is_empty());
        assert!(!cgroups(std::process::id()).is_empty());
    }
}

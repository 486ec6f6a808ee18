//! Rights and places of the bench's processes: the attackers' user, the cores, and the limit on descriptors.

use std::fs;

use anyhow::{Context, ensure};
use rustix::process::{Gid, Pid, Resource, Rlimit, Uid, getrlimit, setrlimit};
use rustix::thread::{
    CpuSet, sched_getaffinity, sched_setaffinity, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

/// The user `nobody`. The daemon's own user has no limits, so the attackers must be of another one.
const NOBODY: u32 = 65534;

/// Gives this process, which has one thread, to the attackers' user.
pub(super) fn become_another_user() -> anyhow::Result<()> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    let why = "attackers are of another user, so this needs root";
    set_thread_groups(&[]).context(why)?;
    set_thread_res_gid(group, group, group).context(why)?;
    set_thread_res_uid(user, user, user).context(why)
}

/// Puts this process on the core that all attackers share.
pub(super) fn go_to_last_core() -> anyhow::Result<()> {
    let mut one = CpuSet::new();
    one.set(last_core()?);
    Ok(sched_setaffinity(None, &one)?)
}

/// Puts this process and the daemon on the cores without attackers.
pub(super) fn keep_off_last_core(daemon: u32) -> anyhow::Result<()> {
    let mut cores = sched_getaffinity(None)?;
    cores.unset(last_core()?);
    ensure!(cores.count() > 0, "attackers have a core of their own, so this needs two");
    sched_setaffinity(None, &cores)?;
    for thread in fs::read_dir(format!("/proc/{daemon}/task")).context("the daemon ended")? {
        let thread: i32 = thread?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(thread), &cores)?;
    }
    Ok(())
}

/// The last core on which the processes of this machine's users may run.
fn last_core() -> anyhow::Result<usize> {
    // The first process may run everywhere that this one could before it was put anywhere.
    let may = sched_getaffinity(Some(Pid::INIT)).or_else(|_| sched_getaffinity(None))?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|&cpu| may.is_set(cpu));
    last.context("this process may run nowhere")
}

/// Raises the soft limit on open descriptors to the hard limit, because each client takes two.
pub(super) fn raise_descriptor_limit() -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}

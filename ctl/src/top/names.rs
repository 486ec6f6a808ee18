//! Names of users and commands of processes, looked up on this machine once each.
//!
//! The daemon sends user ids and pids only. Looking up more than is shown would cost a process for each user.

use std::collections::BTreeMap;
use std::fs;

use super::model::Model;
use crate::table::harmless;
use crate::users;

/// Largest number of lookups for one picture; the rest follows with the next one.
const AT_ONCE: usize = 16;

/// Names and commands that were looked up.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    users: BTreeMap<String, String>,
    /// Command of each process; empty if the process is not on this machine.
    commands: BTreeMap<u32, String>,
    /// Whether the daemon's pids mean this machine's processes.
    shares_pids: bool,
}

impl Names {
    #[cfg(test)]
    pub(super) fn of<const U: usize, const C: usize>(
        users: [(&str, &str); U],
        commands: [(u32, &str); C],
    ) -> Self {
        Self {
            users: users.map(|(user, name)| (user.to_owned(), name.to_owned())).into(),
            commands: commands.map(|(pid, command)| (pid, command.to_owned())).into(),
            shares_pids: true,
        }
    }

    /// Notes whether the daemon's pids mean this machine's processes. Forgets all commands.
    pub(super) fn connected(&mut self, shares_pids: bool) {
        self.commands.clear();
        self.shares_pids = shares_pids;
    }

    /// Returns the name of a user: that of a user id, or the last part of a control group.
    pub(super) fn user<'a>(&'a self, user: &'a str) -> &'a str {
        match self.users.get(user) {
            Some(name) => name,
            None => user.rsplit('/').next().unwrap_or(user),
        }
    }

    /// Returns the command of the first process, if it is known.
    pub(super) fn command(&self, pids: &[u32]) -> &str {
        pids.first().and_then(|pid| self.commands.get(pid)).map_or("", String::as_str)
    }

    /// Looks up all users and commands of a model.
    pub(super) fn look_up_all(&mut self, model: &Model) {
        let all = || model.sessions.values().map(|session| &session.facts);
        while self.look_up(all().map(|facts| (facts.user.as_deref(), &facts.pids[..]))) {}
    }

    /// Looks up what is not known yet. Returns whether something was.
    pub(super) fn look_up<'a>(&mut self, shown: impl Iterator<Item = (Option<&'a str>, &'a [u32])>) -> bool {
        let mut left = AT_ONCE;
        for (user, pids) in shown {
            let is_number = |user: &&str| user.bytes().all(|digit| digit.is_ascii_digit());
            let is_new = |user: &&str| left > 0 && !self.users.contains_key(*user);
            if let Some(user) = user.filter(is_number).filter(is_new) {
                self.users.insert(user.to_owned(), harmless(&users::name(user)));
                left -= 1;
            }
            if let Some(&pid) = pids.first().filter(|pid| left > 0 && !self.commands.contains_key(pid)) {
                let command = if self.shares_pids { command(pid) } else { String::new() };
                self.commands.insert(pid, command);
                left -= 1;
            }
        }
        left < AT_ONCE
    }
}

/// Returns the command line of a process on this machine, without the folder of the program; empty if it
/// cannot be read.
fn command(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let mut words: Vec<String> = line
        .split(|&byte| byte == 0)
        .map(|word| harmless(&String::from_utf8_lossy(word)))
        .collect();
    if let Some(program) = words.first_mut() {
        program.drain(..program.rfind('/').map_or(0, |at| at + 1));
    }
    words.join(" ").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_looked_up_once_and_only_where_pids_mean_this_machine() {
        let own = std::process::id();
        let mut names = Names::default();
        names.connected(true);
        assert!(names.look_up([(None, &[own][..])].into_iter()));
        assert!(names.command(&[own]).starts_with("gpushare_ctl"), "without the folder");
        assert!(!names.look_up([(None, &[own][..])].into_iter()));
        names.connected(false);
        names.look_up([(None, &[own][..])].into_iter());
        assert_eq!(names.command(&[own]), "");
    }

    #[test]
    fn a_pod_is_named_by_the_last_part_of_its_group() {
        assert_eq!(Names::default().user("/kubepods.slice/kubepods-pod7f3a.slice"), "kubepods-pod7f3a.slice");
        assert_eq!(Names::default().user("1001"), "1001");
    }
}

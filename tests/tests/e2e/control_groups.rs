//! Programs whose own control group has less memory of the host than what they have on the card.

use std::fs;
use std::path::PathBuf;

use gpushare_proto::{Bytes, GateState, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Program, Sharing, World};

/// Folder of a hierarchy, and the name of the file with a group's limit.
const HIERARCHIES: [(&str, &str); 2] =
    [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];

/// Control group with a limit of memory. Dropping it removes it; its processes must have ended.
pub(crate) struct Group {
    folder: PathBuf,
    limit: &'static str,
}

impl Group {
    /// Makes the group. None where this machine does not allow it, which is said.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let made = HIERARCHIES.into_iter().find_map(|(hierarchy, limit)| {
            let folder = PathBuf::from(hierarchy).join(format!("{name}{}", std::process::id()));
            fs::create_dir(&folder).ok()?;
            let group = Self { folder, limit };
            // Without the controller there is no such file.
            group.folder.join(limit).exists().then_some(group)
        });
        if made.is_none() {
            eprintln!("skipped: this machine does not allow control groups with a limit of memory");
        }
        made
    }

    pub(crate) fn limit(&self, bytes: Bytes) -> anyhow::Result<()> {
        Ok(fs::write(self.folder.join(self.limit), bytes.0.to_string())?)
    }

    pub(crate) fn add(&self, pid: u32) -> anyhow::Result<()> {
        Ok(fs::write(self.folder.join("cgroup.procs"), pid.to_string())?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs a moment to let go of a process that has ended.
        let removed = until("the group is empty", || Ok(fs::remove_dir(&self.folder).ok()));
        if let Err(cause) = removed {
            eprintln!("{}: {cause}", self.folder.display());
        }
    }
}

#[test]
fn memory_for_which_the_group_has_no_room_stays_on_the_card_until_there_is_some() -> anyhow::Result<()> {
    let Some(group) = Group::new("gpushare-narrow-") else { return Ok(()) };
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut program = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "remap")?;
    program.must("alloc x 64MiB; fill x 7; sync")?;
    group.limit(Bytes::mib(300))?;
    group.add(program.process().pid())?;

    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    until("the program says that it has no room", || {
        let said = program.process().stderr();
        let line = "gpushare: memory of this program cannot leave the card: its control group has ";
        Ok(said.contains(line).then_some(()))
    })?;
    assert!(daemon.residence().1.resident >= Bytes::mib(64), "nothing has left");

    group.limit(Bytes::gib(4))?;
    daemon.is_followed()?;
    assert_eq!(daemon.residence().1.resident, Bytes::ZERO);
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)?;
    program.must("check x 7")?;
    assert_eq!(program.process().stderr().matches("cannot leave the card").count(), 1);
    program.quit()?;
    Ok(())
}

//! The packages for users, installed by the commands of docs/install.md. The files are those that were
//! staged before, so nothing is built here.
//!
//! ```text
//!   world of a simulated card   wheel and archive of a user without root
//!   machine with systemd        install.sh and the Debian package, in namespaces of its own (machine.rs)
//! ```

mod blocks;
mod machine;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_proto::{Bytes, names};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::cargo;
use gpushare_tests::patience;
use gpushare_tests::process::output_of;
use gpushare_tests::world::World;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::blocks::Blocks;
use crate::dist::{self, ForNodes, Packages};
use crate::output::progress;
use crate::shipped::FLOOR;
use crate::tools;
use crate::venv::Venv;

const AUDITWHEEL: [&str; 3] = ["auditwheel==6.8.2", "pyelftools==0.33", "packaging==26.3"];
/// Output of [`super::python`]'s script, which is `train.py` here.
const TRAINED: &str = "16777216 bytes hold 0xabcd1234\n";

pub(super) fn check() -> anyhow::Result<()> {
    let scripts = ["install.sh", "deb/postinst", "deb/prerm", "deb/postrm"];
    let scripts = scripts.map(|name| format!("xtask/packages/{name}"));
    let own = ["enter.sh", "boot.sh", "machine.sh"].map(|name| format!("xtask/src/extra/packages/{name}"));
    tools::need("shellcheck", "shellcheck")?;
    let mut shellcheck = Command::new("shellcheck");
    shellcheck
        .current_dir(cargo::workspace())
        .arg("--shell=sh")
        .args(scripts)
        .args(own);
    shellcheck.output().context("cannot start shellcheck").and_then(|output| {
        ensure!(output.status.success(), "shellcheck: {}", String::from_utf8_lossy(&output.stdout));
        Ok(())
    })?;

    let packages = dist::build(std::env::consts::ARCH, ForNodes::LeftOut)?;
    progress(&packages);
    let blocks = Blocks::read()?;
    ensure!(blocks.get("source") == "cargo xtask dist", "docs/install.md makes the packages in another way");
    audit(&packages)?;
    for_one_user(&packages, &blocks)?;
    machine::check(&packages, &blocks)
}

/// The wheel runs on all systems that its tags name.
fn audit(packages: &Packages) -> anyhow::Result<()> {
    let venv = Venv::with("auditwheel", &AUDITWHEEL)?;
    let mut audit = Command::new(venv.program("auditwheel"));
    audit.env("PATH", venv.first_in_path()?).arg("show").arg(packages.wheel());
    let said = output_of(audit)?;
    let words: Vec<&str> = said.split_whitespace().collect();
    let tag = format!("manylinux_{}_{}_{}", FLOOR.0, FLOOR.1, std::env::consts::ARCH);
    let expected = format!("is consistent with the following platform tag: \"{tag}\"");
    ensure!(words.join(" ").contains(&expected), "auditwheel says {said}");
    Ok(())
}

/// A world whose programs find the daemon and the library beside themselves, as installed ones do.
struct User(World);

impl User {
    fn shell(&self, folder: &Path, script: &str) -> Command {
        let mut shell = self.0.program("sh".as_ref());
        shell.current_dir(folder).args(["-euc", script]);
        shell.env_remove(names::LIBRARY).env_remove(names::SCHEDULER);
        shell.env("HOME", self.0.folder()).env_remove("PIP_USER");
        shell
    }

    /// Program of the daemon that `run` has started, and its pid.
    fn daemon(&self, ctl: &Path) -> anyhow::Result<(PathBuf, Pid)> {
        let mut status = self.0.program(ctl);
        status.args(["status", "--json"]);
        let status: Value = serde_json::from_str(&output_of(status)?)?;
        let pid = status["daemon"]["pid"]
            .as_i64()
            .and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        let pid = pid.with_context(|| format!("no daemon in {status}"))?;
        Ok((fs::read_link(format!("/proc/{}/exe", pid.as_raw_nonzero()))?, pid))
    }

    /// Ends the daemon that `run` has started.
    fn end(&self, ctl: &Path) -> anyhow::Result<()> {
        let (_, pid) = self.daemon(ctl)?;
        kill_process(pid, Signal::TERM)?;
        // A dead process has no program any more, whether or not it was waited for.
        let program = format!("/proc/{}/exe", pid.as_raw_nonzero());
        patience::until("the end of the daemon", || Ok(fs::read_link(&program).is_err().then_some(())))
    }
}

/// The wheel and the unpacked archive, each with its own daemon on a simulated card.
fn for_one_user(packages: &Packages, blocks: &Blocks) -> anyhow::Result<()> {
    tools::need("python3", "python3-venv")?;
    let user = User(World::simulated(Artifacts::of_tests()?, Bytes::mib(256))?);
    let folder = user.0.folder().join("user");
    fs::create_dir(&folder)?;
    // As the user writes it down, whatever folder the world has.
    let folder = fs::canonicalize(folder)?;
    fs::write(folder.join("train.py"), super::python::SCRIPT)?;
    for file in packages.files() {
        symlink(&file, folder.join(file.file_name().context("a package has no name")?))?;
    }
    let archive = folder.join(packages.archive_folder());
    let ways =
        [("python-wheel", folder.join("env"), "bin/gpushare-ctl"), ("archive", archive, "bin/gpushare-ctl")];
    for (way, prefix, ctl) in ways {
        let ctl = prefix.join(ctl);
        let ran = output_of(user.shell(&folder, blocks.get(way)));
        let used = ran.and_then(|said| {
            ensure!(said.contains(TRAINED), "{way}: the program said {said}");
            let (scheduler, _) = user.daemon(&ctl)?;
            ensure!(scheduler.starts_with(&prefix), "{way}: {} was started", scheduler.display());
            let short = ctl.with_file_name("gpushare").display().to_string();
            let maps = output_of(user.shell(&folder, &format!("{short} run -- cat /proc/self/maps")))?;
            let library = prefix.join("lib/gpushare/libgpushare.so").display().to_string();
            ensure!(maps.contains(&library), "{way}: another library than {library} is loaded: {maps}");
            Ok(())
        });
        // It ends in any case, unless there is none.
        let ended = user.end(&ctl);
        used?;
        ended?;
    }
    output_of(user.shell(&folder, blocks.get("python-wheel-2")))?;
    let left = output_of(user.shell(&folder, "find env -name '*gpushare*'"))?;
    ensure!(left.is_empty(), "pip leaves {left}");
    Ok(())
}

//! Check of install.sh in a folder that stands for another machine: it installs what it says, removes
//! exactly that, and answers each mistake with one sentence.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::process::output_of;
use tempfile::TempDir;

use crate::dist::Packages;

/// Some of the files of an installation below `/usr/local`.
const INSTALLED: [&str; 8] = [
    "etc/gpushare/config.toml",
    "usr/local/bin/gpushare",
    "usr/local/bin/gpushare-scheduler",
    "usr/local/lib/gpushare/libgpushare.so",
    "usr/local/lib/systemd/system/gpushare-scheduler.service",
    "usr/local/lib/tmpfiles.d/gpushare.conf",
    "usr/local/share/man/man8/gpushare-scheduler.8",
    "usr/local/share/zsh/site-functions/_gpushare-ctl",
];

/// The unpacked archive, and the root of another machine.
struct Place {
    folder: TempDir,
    archive: String,
}

impl Place {
    fn new(packages: &Packages) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut tar = Command::new("tar");
        tar.arg("xzf").arg(packages.tarball()).arg("-C").arg(folder.path());
        output_of(tar)?;
        fs::create_dir(folder.path().join("root"))?;
        Ok(Self { folder, archive: packages.archive_folder() })
    }

    fn root(&self) -> std::path::PathBuf {
        self.folder.path().join("root")
    }

    fn script(&self) -> Command {
        let mut script = Command::new(self.folder.path().join(&self.archive).join("install.sh"));
        script.env("DESTDIR", self.root());
        script
    }

    fn run(&self, flags: &[&str]) -> anyhow::Result<String> {
        let mut script = self.script();
        script.args(flags);
        output_of(script)
    }

    fn installed(&self, flags: &[&str]) -> anyhow::Result<String> {
        let mut script = Command::new(self.root().join("usr/local/share/gpushare/install.sh"));
        script.args(flags);
        output_of(script)
    }

    /// Checks that the script refuses with this sentence and leaves the machine as it is.
    fn refuses(&self, flags: &[&str], sentence: &str) -> anyhow::Result<()> {
        let before = files(&self.root())?;
        let output = self.script().args(flags).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.code() == Some(1)
                && said.lines().count() == 1
                && said.starts_with("install.sh: ")
                && said.contains(sentence),
            "{flags:?} ended with {} and {said}; expected `{sentence}`",
            output.status
        );
        ensure!(files(&self.root())? == before, "{flags:?} changed something");
        Ok(())
    }
}

pub(super) fn check(packages: &Packages) -> anyhow::Result<()> {
    let place = Place::new(packages)?;
    let root = place.root();
    mistakes(&place)?;

    let told = place.run(&["--dry-run"])?;
    ensure!(files(&root)?.is_empty(), "--dry-run installed something");
    place.run(&[])?;
    let there = files(&root)?;
    for file in INSTALLED {
        ensure!(there.contains(file), "there is no {file}");
    }
    for file in &there {
        let is_list = file == "usr/local/share/gpushare/manifest";
        let line = format!("  install   {}/{file}\n", root.display());
        ensure!(is_list || told.contains(&line), "{file} was not told of: {told}");
    }
    let unit = fs::read_to_string(root.join(INSTALLED[4]))?;
    ensure!(unit.contains("\nExecStart=/usr/local/bin/gpushare-scheduler --system\n"), "{unit}");
    ensure!(!unit.contains("/usr/bin/gpushare"), "{unit}");

    upgrade(&place, &there)?;
    place.refuses(&["--prefix", "/usr/local/../local"], "was not installed by this script")?;
    removal(&place)
}

/// Installed again, nothing is added, what the new version lacks goes, and a changed configuration stays.
fn upgrade(place: &Place, there: &BTreeSet<String>) -> anyhow::Result<()> {
    let root = place.root();
    let manifest = root.join("usr/local/share/gpushare/manifest");
    let obsolete = root.join("usr/local/lib/gpushare/old.so");
    fs::write(&obsolete, "")?;
    let lines = fs::read_to_string(&manifest)?;
    fs::write(&manifest, format!("{lines}file /usr/local/lib/gpushare/old.so\n"))?;
    fs::write(root.join(INSTALLED[0]), "quantum = 1\n")?;
    let told = place.run(&[])?;
    ensure!(told.contains(&format!("  remove    {}\n", obsolete.display())), "{told}");
    ensure!(files(&root)? == *there, "an upgrade changed what is there");
    ensure!(fs::read_to_string(root.join(INSTALLED[0]))? == "quantum = 1\n", "the configuration is lost");
    Ok(())
}

/// Everything goes, but the files of others, the changed configuration and the state.
fn removal(place: &Place) -> anyhow::Result<()> {
    let root = place.root();
    let state = "var/lib/gpushare/registry.redb";
    let others = "usr/local/bin/other";
    fs::create_dir_all(root.join("var/lib/gpushare"))?;
    for file in [state, others] {
        fs::write(root.join(file), "")?;
    }
    let before = files(&root)?;
    place.installed(&["--uninstall", "--purge", "--dry-run"])?;
    ensure!(files(&root)? == before, "--dry-run removed something");
    place.installed(&["--uninstall"])?;
    let kept = [INSTALLED[0], others, state].map(str::to_owned);
    ensure!(files(&root)? == BTreeSet::from(kept), "{:?} is left", files(&root)?);
    for folder in ["usr/local/share", "usr/local/lib", "usr/local/lib/systemd"] {
        ensure!(!root.join(folder).exists(), "the folder {folder} is left");
    }

    fs::remove_file(root.join(INSTALLED[0]))?;
    place.run(&[])?;
    place.installed(&["--uninstall", "--purge"])?;
    ensure!(files(&root)? == BTreeSet::from([others.to_owned()]), "{:?} is left", files(&root)?);
    place.refuses(&["--uninstall"], "nothing is installed at this prefix")
}

fn mistakes(place: &Place) -> anyhow::Result<()> {
    let root = place.root();
    for (flags, sentence) in [
        (&["--frobnicate"][..], "there is no option --frobnicate; see --help"),
        (&["--prefix"], "--prefix needs a folder after it"),
        (&["--prefix", "local"], "`local` is no absolute path; write it like /usr/local"),
        (&["--prefix=/opt/my programs"], "has a space, a colon or a $"),
        (&["--destdir", "image"], "`image` is no absolute path"),
        (&["--purge"], "--purge goes with --uninstall"),
        (&["--enable"], "--destdir is another one"),
        (&["--uninstall"], "so nothing is installed at this prefix"),
    ] {
        place.refuses(flags, sentence)?;
    }
    fs::create_dir_all(root.join("opt/bin"))?;
    fs::write(root.join("opt/bin/gpushare"), "")?;
    place.refuses(&["--prefix=/opt"], "/opt/bin/gpushare is there and was not installed by this script")?;
    fs::remove_dir_all(root.join("opt"))?;

    let page = place.folder.path().join(&place.archive).join("share/man/man1/gpushare.1");
    let intact = fs::read(&page)?;
    fs::write(&page, "")?;
    place.refuses(&[], "are damaged; unpack the archive again")?;
    fs::write(&page, intact).context("cannot restore the archive")
}

/// Paths of all files and links below a folder.
fn files(root: &Path) -> anyhow::Result<BTreeSet<String>> {
    let mut find = Command::new("find");
    find.arg(root).args(["!", "-type", "d", "-printf", "%P\\n"]);
    Ok(output_of(find)?.lines().map(str::to_owned).collect())
}

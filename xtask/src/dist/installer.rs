//! Tests of install.sh with an archive of stand-ins for the programs: it installs what it says, removes exactly
//! that, answers each mistake with one sentence, and as root goes nowhere that another user can lead it to.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use gpushare_tests::process::output_of;
use tempfile::TempDir;

use super::contents::Binaries;
use super::{Batch, tarball};

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
const CONFIG: &str = INSTALLED[0];
const UNIT: &str = INSTALLED[4];
const MANIFEST: &str = "usr/local/share/gpushare/manifest";
/// A user without privileges.
const NOBODY: u32 = 65534;

/// Bytes of the archive, which take a second to make.
static ARCHIVE: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let binaries = Binaries::stand_ins();
    let batch = Batch {
        folder: folder.path(),
        architecture: env::consts::ARCH,
        binaries: &binaries,
        time: 0,
    };
    let name = tarball::write(&batch).unwrap();
    fs::read(folder.path().join(name)).unwrap()
});

/// The unpacked archive, and the root of another machine.
struct Place {
    folder: TempDir,
    archive: String,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("archive");
        fs::write(&file, &*ARCHIVE).unwrap();
        let mut tar = Command::new("tar");
        tar.arg("xzf").arg(&file).arg("-C").arg(folder.path());
        output_of(tar).unwrap();
        fs::create_dir(folder.path().join("root")).unwrap();
        Self { folder, archive: tarball::name(env::consts::ARCH) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A path on the other machine.
    fn at(&self, path: &str) -> PathBuf {
        self.path("root").join(path)
    }

    /// The script of the archive, for this machine.
    fn bare(&self, flags: &[&str]) -> Command {
        let mut script = Command::new(self.path(&self.archive).join("install.sh"));
        script.args(flags).env_remove("DESTDIR");
        script
    }

    /// The script of the archive, for the other machine.
    fn script(&self, flags: &[&str]) -> Command {
        let mut script = self.bare(flags);
        script.env("DESTDIR", self.path("root"));
        script
    }

    /// The copy on the other machine.
    fn installed(&self, flags: &[&str]) -> Command {
        let mut script = Command::new(self.at("usr/local/share/gpushare/install.sh"));
        script.args(flags).env_remove("DESTDIR");
        script
    }

    fn files(&self) -> BTreeSet<String> {
        files(&self.path("root"))
    }

    /// Checks that a script refuses with one sentence, and changes neither the other machine nor its surroundings.
    fn refuses(&self, mut script: Command, sentence: &str) {
        let before = files(self.folder.path());
        let Output { status, stderr, .. } = script.output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        let is_one_line = said.lines().count() == 1 && said.starts_with("install.sh: ");
        assert!(
            status.code() == Some(1) && is_one_line && said.contains(sentence),
            "{script:?} ended with {status} and {said}; expected `{sentence}`"
        );
        assert_eq!(files(self.folder.path()), before, "{script:?}");
    }

    /// Replaces text in the list of the other machine.
    fn edit_manifest(&self, from: &str, to: &str) {
        let lines = fs::read_to_string(self.at(MANIFEST)).unwrap();
        assert!(lines.contains(from), "{lines}");
        fs::write(self.at(MANIFEST), lines.replace(from, to)).unwrap();
    }
}

/// Paths of all files and links below a folder.
fn files(root: &Path) -> BTreeSet<String> {
    let mut find = Command::new("find");
    find.arg(root).args(["!", "-type", "d", "-printf", "%P\\n"]);
    output_of(find).unwrap().lines().map(str::to_owned).collect()
}

fn set<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(str::to_owned).into()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Whether this is root. Others cannot make files of another user, so they skip what needs some.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: not root");
    }
    is_root
}

#[test]
fn it_installs_what_it_says() {
    let place = Place::new();
    let root = place.path("root");
    let told = output_of(place.script(&["--dry-run"])).unwrap();
    assert_eq!(place.files(), set([]), "--dry-run installed something");
    output_of(place.script(&[])).unwrap();
    let there = place.files();
    for file in INSTALLED {
        assert!(there.contains(file), "there is no {file}");
    }
    for file in &there {
        let line = format!("  install   {}/{file}\n", root.display());
        assert!(file == MANIFEST || told.contains(&line), "{file} was not told of: {told}");
        let mode = fs::metadata(root.join(file)).unwrap().mode() & 0o777;
        let is_program = file.contains("/bin/") || file.ends_with(".so") || file.ends_with("install.sh");
        assert_eq!(mode, if is_program { 0o755 } else { 0o644 }, "{file}");
    }
    let mut shipped = files(&place.path(&place.archive));
    let extension = shipped.iter().filter(|file| file.contains("gpushare_jupyter")).count();
    assert_eq!(extension, 1, "{shipped:?}");
    for at_the_top in ["LICENSE", "README.md", "SHA256SUMS"] {
        assert!(shipped.remove(at_the_top));
    }
    assert_eq!(there.len(), shipped.len() + 1, "not all of {shipped:?} is in {there:?}");
    let unit = fs::read_to_string(place.at(UNIT)).unwrap();
    assert!(unit.contains("\nExecStart=/usr/local/bin/gpushare-scheduler --system\n"), "{unit}");
    assert!(!unit.contains("/usr/bin/gpushare"), "{unit}");
}

#[test]
fn an_upgrade_adds_nothing_and_removes_what_is_obsolete() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let there = place.files();
    let obsolete = place.at("usr/local/lib/gpushare/old.so");
    fs::write(&obsolete, "old").unwrap();
    let changed = place.at("usr/local/lib/gpushare/changed.so");
    fs::write(&changed, "mine").unwrap();
    // printf old | sha256sum
    let sum = "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4";
    let lines = ["old", "changed"].map(|name| format!("file {sum} lib/gpushare/{name}.so\n"));
    place.edit_manifest("prefix /usr/local\n", &format!("prefix /usr/local\n{}", lines.concat()));
    fs::write(place.at(CONFIG), "quantum = 1\n").unwrap();

    let told = output_of(place.script(&[])).unwrap();
    assert!(told.contains(&format!("  remove    {}\n", obsolete.display())), "{told}");
    let kept = format!("  keep      {}, which was changed; --force removes it\n", changed.display());
    assert!(told.contains(&kept), "{told}");
    assert_eq!(fs::read_to_string(place.at(CONFIG)).unwrap(), "quantum = 1\n");
    let told = output_of(place.script(&["--force"])).unwrap();
    assert!(told.contains(&format!("  remove    {}\n", changed.display())), "{told}");
    assert_eq!(place.files(), there);
    assert_eq!(fs::read_to_string(place.at(CONFIG)).unwrap(), "quantum = 1\n");
}

#[test]
fn removal_leaves_the_files_of_others_and_the_state() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let (state, others) = ("var/lib/gpushare/registry.redb", "usr/local/bin/other");
    fs::create_dir_all(place.at("var/lib/gpushare")).unwrap();
    fs::write(place.at(state), "").unwrap();
    fs::write(place.at(others), "").unwrap();
    fs::write(place.at(CONFIG), "quantum = 1\n").unwrap();
    let before = place.files();
    output_of(place.installed(&["--uninstall", "--purge", "--dry-run"])).unwrap();
    assert_eq!(place.files(), before, "--dry-run removed something");
    output_of(place.installed(&["--uninstall"])).unwrap();
    assert_eq!(place.files(), set([CONFIG, others, state]));
    for folder in ["usr/local/share", "usr/local/lib", "usr/local/lib/systemd"] {
        assert!(!place.at(folder).exists(), "the folder {folder} is left");
    }

    fs::remove_file(place.at(CONFIG)).unwrap();
    output_of(place.script(&[])).unwrap();
    fs::write(place.at(CONFIG), "quantum = 1\n").unwrap();
    output_of(place.installed(&["--uninstall", "--purge"])).unwrap();
    assert_eq!(place.files(), set([others]));

    // A configuration that nobody changed goes without --purge.
    output_of(place.script(&[])).unwrap();
    assert!(place.files().contains(CONFIG));
    output_of(place.installed(&["--uninstall"])).unwrap();
    assert_eq!(place.files(), set([others]));
    place.refuses(place.script(&["--uninstall"]), "nothing is installed at this prefix");
}

#[test]
fn a_changed_file_is_kept_unless_forced() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let original = fs::read(place.at(UNIT)).unwrap();
    fs::write(place.at(UNIT), "[Service]\nNice=5\n").unwrap();
    place.refuses(
        place.script(&[]),
        "gpushare-scheduler.service was changed since it was installed; save the change elsewhere",
    );
    let told = output_of(place.installed(&["--uninstall", "--dry-run"])).unwrap();
    let line = format!("  keep      {}, which was changed; --force removes it\n", place.at(UNIT).display());
    assert!(told.contains(&line), "{told}");
    output_of(place.script(&["--force"])).unwrap();
    assert_eq!(fs::read(place.at(UNIT)).unwrap(), original);

    fs::write(place.at(UNIT), "[Service]\nNice=5\n").unwrap();
    fs::remove_file(place.at(INSTALLED[1])).unwrap();
    symlink("/opt/gpushare", place.at(INSTALLED[1])).unwrap();
    output_of(place.installed(&["--uninstall"])).unwrap();
    assert_eq!(place.files(), set([UNIT, INSTALLED[1]]));
    assert_eq!(fs::read_to_string(place.at(UNIT)).unwrap(), "[Service]\nNice=5\n");
    place.refuses(place.script(&[]), "is there and was not installed by this script; remove it first");

    for name in [UNIT, INSTALLED[1]] {
        fs::remove_file(place.at(name)).unwrap();
    }
    output_of(place.script(&[])).unwrap();
    fs::write(place.at(UNIT), "").unwrap();
    output_of(place.installed(&["--uninstall", "--force"])).unwrap();
    assert_eq!(place.files(), set([]));
}

#[test]
fn an_interrupted_upgrade_counts_old_and_new_files_as_unchanged() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let line = fs::read_to_string(place.at(MANIFEST)).unwrap();
    let line = line
        .lines()
        .find(|line| line.ends_with(" bin/gpushare-ctl"))
        .unwrap()
        .to_owned();
    let other = format!("file {} bin/gpushare-ctl", "0".repeat(64));
    place.edit_manifest(&line, &format!("{other}\n{line}"));
    output_of(place.installed(&["--uninstall"])).unwrap();
    assert_eq!(place.files(), set([]));
}

#[test]
fn mistakes_are_answered_with_one_sentence() {
    let place = Place::new();
    for (flags, sentence) in [
        (&["--frobnicate"][..], "there is no option --frobnicate; see --help"),
        (&["--prefix"], "--prefix needs a folder after it"),
        (&["--prefix", "local"], "`local` is no absolute path; write it like /usr/local"),
        (&["--prefix=/opt/my programs"], "has a space, a quote or one of"),
        (&["--prefix=/opt/50%"], "has a space, a quote or one of"),
        (&["--prefix", "/usr/local/../local"], "has //, /./ or /../ in it; write it without"),
        (&["--destdir", "image"], "`image` is no absolute path"),
        (&["--purge"], "--purge goes with --uninstall"),
        (&["--enable"], "--destdir is another one"),
        (&["--uninstall"], "so nothing is installed at this prefix"),
    ] {
        place.refuses(place.script(flags), sentence);
    }
    fs::create_dir_all(place.at("opt/bin")).unwrap();
    fs::write(place.at("opt/bin/gpushare"), "").unwrap();
    let sentence = "/opt/bin/gpushare is there and was not installed by this script";
    place.refuses(place.script(&["--prefix=/opt"]), sentence);
    fs::remove_dir_all(place.at("opt")).unwrap();
    let page = place.path(&place.archive).join("share/man/man1/gpushare.1");
    fs::write(page, "").unwrap();
    place.refuses(place.script(&[]), "are damaged; unpack the archive again");
}

#[test]
fn no_symbolic_link_leads_out_of_the_destdir() {
    let place = Place::new();
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    for link in ["usr", "usr/local/lib/gpushare", "usr/local/share", "etc/gpushare"] {
        fs::create_dir_all(place.at(link).parent().unwrap()).unwrap();
        symlink(&outside, place.at(link)).unwrap();
        place.refuses(place.script(&[]), "is a symbolic link and leads out of");
        fs::remove_file(place.at(link)).unwrap();
    }
    output_of(place.script(&[])).unwrap();
    let program = place.at("usr/local/bin/gpushare-ctl");
    fs::rename(place.at("usr/local/bin"), outside.join("bin")).unwrap();
    symlink(outside.join("bin"), place.at("usr/local/bin")).unwrap();
    assert!(program.exists());
    place.refuses(place.installed(&["--uninstall"]), "is a symbolic link and leads out of");
}

#[test]
fn a_file_that_became_a_link_is_replaced_itself() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let (other, folder) = (place.path("other"), place.path("folder"));
    fs::write(&other, "other").unwrap();
    fs::create_dir(&folder).unwrap();
    for (name, to) in [(UNIT, &other), (INSTALLED[1], &folder), (INSTALLED[2], &folder)] {
        fs::remove_file(place.at(name)).unwrap();
        symlink(to, place.at(name)).unwrap();
    }
    output_of(place.script(&["--force"])).unwrap();
    assert_eq!(fs::read_to_string(&other).unwrap(), "other");
    assert_eq!(files(&folder), set([]));
    assert!(fs::symlink_metadata(place.at(UNIT)).unwrap().is_file());
    assert_eq!(fs::read_link(place.at(INSTALLED[1])).unwrap(), Path::new("gpushare-ctl"));
}

#[test]
fn a_list_with_other_files_than_ours_is_refused() {
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    fs::create_dir(place.at("victims")).unwrap();
    fs::write(place.at("victims/file"), "").unwrap();
    let lines = fs::read_to_string(place.at(MANIFEST)).unwrap();
    let sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    for name in [
        "../../victims/file",
        "/victims/file",
        "lib/gpushare/../../../../victims/file",
        "bin/other",
        "share/gpushare/../../../../victims/file",
        "bin/gpushare x",
    ] {
        for script in [place.script(&[]), place.installed(&["--uninstall"])] {
            fs::write(place.at(MANIFEST), format!("{lines}file {sum} {name}\n")).unwrap();
            place.refuses(script, "which this script does not write; remove the line");
        }
    }
    fs::write(place.at(MANIFEST), format!("{lines}config {sum} /victims/file\n")).unwrap();
    place.refuses(place.installed(&["--uninstall"]), "which this script does not write");
    fs::write(place.at(MANIFEST), lines.replace("prefix /usr/local", "prefix /usr")).unwrap();
    place.refuses(place.script(&["--uninstall"]), "is for the prefix /usr; name that with --prefix");
    place.refuses(place.installed(&["--uninstall"]), "is a copy of what is installed at the prefix `/usr`");

    // A folder of others is not removed, even if it is empty.
    fs::remove_file(place.at("victims/file")).unwrap();
    fs::write(place.at(MANIFEST), format!("{lines}folder /victims\nfolder /usr/../victims\n")).unwrap();
    output_of(place.installed(&["--uninstall"])).unwrap();
    assert!(place.at("victims").exists());
}

#[test]
fn root_believes_no_list_that_others_can_write() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    output_of(place.script(&[])).unwrap();
    let list = place.at(MANIFEST);
    let sentence = "another user than root can write to";
    for script in [|place: &Place| place.script(&[]), |place: &Place| place.installed(&["--uninstall"])] {
        chown(&list, Some(NOBODY), None).unwrap();
        place.refuses(script(&place), sentence);
        chown(&list, Some(0), None).unwrap();
        mode(&list, 0o664);
        place.refuses(script(&place), sentence);
        mode(&list, 0o644);
        let copy = place.path("copy");
        fs::rename(&list, &copy).unwrap();
        symlink(&copy, &list).unwrap();
        place.refuses(script(&place), "is no plain file");
        fs::remove_file(&list).unwrap();
        fs::rename(&copy, &list).unwrap();
        mode(list.parent().unwrap(), 0o775);
        place.refuses(script(&place), sentence);
        mode(list.parent().unwrap(), 0o755);
    }
    output_of(place.installed(&["--uninstall"])).unwrap();
}

#[test]
fn root_installs_only_where_no_other_user_can_write() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    let (open, inside) = (place.path("open"), place.path("open/inside"));
    fs::create_dir_all(&inside).unwrap();
    let into =
        |prefix: &Path| place.bare(&["--no-systemd", "--dry-run", "--prefix", prefix.to_str().unwrap()]);
    output_of(into(&inside)).unwrap();
    for bits in [0o775, 0o757] {
        mode(&open, bits);
        place.refuses(into(&inside), "another user than root can write to");
    }
    mode(&open, 0o1777);
    output_of(into(&inside)).unwrap();
    place.refuses(into(&open.join("new")), "anybody can make");
    place.refuses(into(&open), "anybody can make");
    chown(&inside, Some(NOBODY), None).unwrap();
    place.refuses(into(&inside), "belongs to another user than root");
    mode(&open, 0o755);
    place.refuses(into(&inside), "another user than root can write to");
    place.refuses(into(&inside.join("a/b")), "another user than root can write to");

    // A link of root's is followed to what it points to.
    let link = place.path("link");
    symlink("open/inside", &link).unwrap();
    place.refuses(into(&link), "another user than root can write to");
    chown(&inside, Some(0), None).unwrap();
    output_of(into(&link)).unwrap();
    fs::remove_file(&link).unwrap();
    symlink("link", &link).unwrap();
    place.refuses(into(&link), "is a symbolic link to itself");
    // The image of another machine is no safer.
    mode(&open, 0o777);
    let image = inside.to_str().unwrap();
    place.refuses(place.bare(&["--destdir", image]), "another user than root can write to");
}

#[test]
fn a_user_installs_into_a_folder_behind_a_link() {
    let place = Place::new();
    let home = place.path("home");
    fs::create_dir_all(home.join("dotfiles/local")).unwrap();
    symlink("dotfiles/local", home.join(".local")).unwrap();
    let is_root = is_root();
    let as_user = |mut command: Command| {
        if is_root {
            command.uid(NOBODY).gid(NOBODY);
        }
        output_of(command)
    };
    if is_root {
        mode(place.folder.path(), 0o755);
        for folder in ["home", "home/dotfiles", "home/dotfiles/local"] {
            chown(place.path(folder), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let prefix = home.join(".local");
    as_user(place.bare(&["--prefix", prefix.to_str().unwrap()])).unwrap();
    assert!(home.join("dotfiles/local/bin/gpushare-ctl").exists());
    let mut remove = Command::new(prefix.join("share/gpushare/install.sh"));
    remove.arg("--uninstall").env_remove("DESTDIR");
    as_user(remove).unwrap();
    assert_eq!(files(&home), set([".local"]));
}

//! Packages of Debian, unpacked below `target/debian/`: nothing is installed, root is not needed, and they
//! may be of another architecture or of an older Debian than this machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use gpushare_tests::cargo;
use gpushare_tests::process::output_of;

use crate::output::progress;

/// How often apt tries to reach the archive again.
const RETRIES: &str = "Acquire::Retries=5";
const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];
const ADVICE: &str =
    "this needs Debian's archive: check the network and the apt sources in /etc/apt (Debian 12 or newer)";

/// Debian's name of this machine's architecture.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// An archive, and a folder for what comes from it.
pub(crate) struct Debian {
    folder: PathBuf,
    /// One line of a sources.list instead of this machine's own.
    source: Option<String>,
}

impl Debian {
    /// The one that this machine is installed from.
    pub(crate) fn of_this_machine() -> Self {
        Self { folder: cargo::workspace().join("target/debian/own"), source: None }
    }

    /// Another release, by its name.
    pub(crate) fn release(name: &str) -> Self {
        Self {
            folder: cargo::workspace().join("target/debian").join(name),
            source: Some(format!("deb http://deb.debian.org/debian {name} main\n")),
        }
    }

    /// The source packages of a release, by its name.
    pub(crate) fn sources(name: &str) -> Self {
        Self {
            folder: cargo::workspace().join("target/debian").join(format!("{name}-sources")),
            source: Some(format!("deb-src http://deb.debian.org/debian {name} main\n")),
        }
    }

    /// The archive of a source package as its authors published it.
    ///
    /// # Errors
    /// It cannot be had.
    pub(crate) fn source(&self, package: &str) -> anyhow::Result<PathBuf> {
        let folder = self.folder.join(package);
        fs::create_dir_all(&folder)?;
        let archive = || {
            let files = fs::read_dir(&folder).ok()?.flatten().map(|file| file.path());
            files.into_iter().find(|path| path.to_string_lossy().contains(".orig.tar."))
        };
        if archive().is_none() {
            progress(format_args!("fetching the source of {package} from Debian"));
            self.update()?;
            let mut download = self.apt("apt-get")?;
            download
                .current_dir(&folder)
                .args(["source", "--download-only", "--only-source", package]);
            output_of(download).with_context(|| format!("cannot fetch {package}; {ADVICE}"))?;
        }
        archive().with_context(|| format!("the source of {package} has no archive"))
    }

    /// A folder with these packages unpacked into it, `NAME` or `NAME:ARCHITECTURE`, and without those that
    /// they depend on. Nothing is asked of the network if they are there.
    ///
    /// # Errors
    /// They cannot be had.
    pub(crate) fn unpack(&self, folder: &str, packages: &[&str]) -> anyhow::Result<PathBuf> {
        let root = self.folder.join(folder);
        let unpacked = self.folder.join(format!("{folder}.unpacked"));
        let wanted = packages.join("\n");
        if fs::read_to_string(&unpacked).is_ok_and(|there| there == wanted) {
            return Ok(root);
        }
        progress(format_args!("fetching {} from Debian", packages.join(", ")));
        let files = self.folder.join(format!("{folder}.debs"));
        for old in [&root, &files] {
            if old.exists() {
                fs::remove_dir_all(old)?;
            }
            fs::create_dir_all(old)?;
        }
        let download = || {
            let mut download = self.apt("apt-get")?;
            download.current_dir(&files).arg("download").args(packages);
            output_of(download)
        };
        // There is no list yet, or it is older than the archive and names files that are gone.
        if download().is_err() {
            self.update()?;
            download().with_context(|| format!("cannot fetch {}; {ADVICE}", packages.join(", ")))?;
        }
        for file in fs::read_dir(&files)? {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(file?.path()).arg(&root);
            output_of(unpack)?;
        }
        fs::remove_dir_all(&files)?;
        fs::write(unpacked, wanted)?;
        Ok(root)
    }

    /// Returns the dependency of `package` whose name starts with `prefix`.
    ///
    /// # Errors
    /// There is no such package, or it depends on nothing of that name.
    pub(crate) fn dependency(&self, package: &str, prefix: &str) -> anyhow::Result<String> {
        let mut show = self.apt("apt-cache")?;
        show.args(["depends", "--important", package]);
        let said = match output_of(show) {
            Ok(said) if said.contains("Depends:") => said,
            _ => {
                self.update()?;
                let mut show = self.apt("apt-cache")?;
                show.args(["depends", "--important", package]);
                output_of(show).with_context(|| format!("there is no {package}; {ADVICE}"))?
            }
        };
        let names = said.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
        let found = names.into_iter().find(|name| name.starts_with(prefix));
        found
            .map(str::to_owned)
            .with_context(|| format!("{package} depends on no {prefix}; {ADVICE}"))
    }

    fn update(&self) -> anyhow::Result<()> {
        let mut update = self.apt("apt-get")?;
        update.arg("update");
        output_of(update)
            .map(drop)
            .with_context(|| format!("apt-get update failed; {ADVICE}"))
    }

    /// `program` of apt with lists and a cache of our own.
    fn apt(&self, program: &str) -> anyhow::Result<Command> {
        let state = self.folder.join("apt");
        for folder in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(state.join(folder))?;
        }
        let mut apt = Command::new(program);
        // The output is parsed, so it must not depend on the user's language.
        apt.env("LC_ALL", "C").arg("--quiet");
        let mut option = |name: &str, value: &Path| {
            apt.arg("--option").arg(format!("{name}={}", value.display()));
        };
        option("Dir::State", &state);
        option("Dir::State::status", Path::new("/dev/null"));
        option("Dir::Cache", &state);
        if let Some(source) = &self.source {
            let list = self.folder.join("sources.list");
            fs::write(&list, source)?;
            option("Dir::Etc::sourcelist", &list);
            option("Dir::Etc::sourceparts", Path::new("-"));
        }
        for architecture in ARCHITECTURES {
            apt.arg("--option").arg(format!("APT::Architectures::={architecture}"));
        }
        apt.args(["--option", RETRIES, "--option", "APT::Sandbox::User=root"]);
        Ok(apt)
    }
}

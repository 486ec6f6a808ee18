//! How what users get is built: for the C library of old systems, whatever this machine has.
//!
//! A library that is linked here needs the glibc of here, and does not load in an older container. Zig
//! brings the symbol tables of every glibc since 2.17 and links against the one that is asked for;
//! `cargo-zigbuild` puts it in the linker's place. Both come from PyPI, at pinned versions, into an
//! environment below `target/`.
//!
//! Zig would also bring an unwinder of its own. Ours must be the C library's: when a thread is cancelled,
//! glibc unwinds it with libgcc's, and libgcc asks the functions that our frames name about *its* state. So
//! `libgcc_s.so.1` comes first.

pub(crate) mod cross;
pub(crate) mod elf;

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use gpushare_tests::artifacts::Part;
use gpushare_tests::cargo::{self, Profile, Progress};
use gpushare_tests::process::output_of;

use self::elf::Version;
use crate::venv::Venv;

/// The newest glibc that what we ship may ask for: that of CentOS 7 and of manylinux2014.
pub(crate) const FLOOR: Version = Version(2, 17);

/// Environment variables by which a release build takes less time, for checks that only run it.
const OVERRIDES: [&str; 4] = [
    "CARGO_PROFILE_RELEASE_LTO",
    "CARGO_PROFILE_RELEASE_CODEGEN_UNITS",
    "CARGO_PROFILE_RELEASE_OPT_LEVEL",
    "CARGO_PROFILE_RELEASE_DEBUG",
];

const TOOLS: [&str; 2] = ["cargo-zigbuild==0.20.1", "ziglang==0.13.0.post1"];

/// How the files of a build are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Linking {
    /// Optimised over all crates, as users get them, unless the environment says otherwise (`.ci/run`).
    Full,
    /// As users get them, whatever the environment says.
    Exact,
    /// In little time, for checks.
    Quick,
}

/// For which machine, by which compiler, and where it goes.
pub(crate) struct Build<'a> {
    /// First part of the target's name: `x86_64` in `x86_64-unknown-linux-gnu`.
    pub(crate) architecture: &'a str,
    /// Another compiler than the one of this workspace.
    pub(crate) rustc: Option<&'a Path>,
    /// How it is linked.
    pub(crate) linking: Linking,
    /// That architecture's libgcc.
    pub(crate) libgcc: PathBuf,
    /// Below `target/`.
    pub(crate) folder: &'a str,
    /// Arguments of cargo that choose targets of the packages; all without any.
    pub(crate) targets: &'a [&'a str],
}

/// Builds all that is shipped, staged and measured in release, for this machine's architecture. Always all
/// of it: another choice of packages would choose other features of what they share, and build that once
/// more. A quick build leaves out this program and the benches.
///
/// # Errors
/// The tools cannot be had, or something does not compile.
pub(crate) fn build(progress: Progress) -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut packages = Part::ALL.map(Part::package).to_vec();
    if !is_quick() {
        packages.extend(["xtask", "gpushare-benches"]);
    }
    here()?.run(&packages, progress)
}

/// Whether the environment asks for quick release builds, which are only run.
pub(crate) fn is_quick() -> bool {
    OVERRIDES.iter().any(|name| env::var_os(name).is_some())
}

/// A build for this machine's architecture.
fn here() -> anyhow::Result<Build<'static>> {
    let mut gcc = Command::new("cc");
    gcc.arg("-print-file-name=libgcc_s.so.1");
    let libgcc = PathBuf::from(output_of(gcc).context("cannot ask cc for libgcc_s.so.1")?.trim());
    let linking = Linking::Full;
    Ok(Build {
        architecture: env::consts::ARCH,
        rustc: None,
        linking,
        libgcc,
        folder: "shipped",
        targets: &[],
    })
}

/// Builds all that [`build`] does. The library and the programs whose instructions are counted are exactly as
/// users get them.
///
/// # Errors
/// As for [`build`].
pub(crate) fn build_counted() -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let mut built = build(Progress::Hidden)?;
    if is_quick() {
        let targets = &["--lib", "--bin", "instructions", "--bin", "daemon"];
        let build = Build { linking: Linking::Exact, folder: "counted", targets, ..here()? };
        built.extend(build.run(&[Part::Library.package(), "gpushare-benches"], Progress::Hidden)?);
    }
    Ok(built)
}

/// Builds one more program of users in release, for this machine's architecture or for aarch64.
///
/// # Errors
/// As for [`build`].
pub(crate) fn build_one(architecture: &str, package: &str, progress: Progress) -> anyhow::Result<PathBuf> {
    let mut built = match architecture == env::consts::ARCH {
        true => here()?.run(&[package], progress)?,
        false => cross::Tools::fetch()?.build(&[package], Linking::Full, progress)?,
    };
    let file = built.remove(package).with_context(|| format!("cargo made no {package}"))?;
    if architecture != env::consts::ARCH {
        // That build has no debug information already.
        return Ok(file);
    }
    let stripped = file.with_extension("stripped");
    strip(&file, &stripped)?;
    Ok(stripped)
}

/// Copies a program or library without its debug information.
///
/// # Errors
/// `strip` is missing or fails.
pub(crate) fn strip(file: &Path, stripped: &Path) -> anyhow::Result<()> {
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(stripped).arg(file);
    output_of(strip).context("cannot strip; is binutils installed?")?;
    Ok(())
}

/// A C compiler for that architecture and [`FLOOR`].
///
/// # Errors
/// The compiler cannot be installed.
pub(crate) fn c_compiler(architecture: &str) -> anyhow::Result<Command> {
    let mut zig = Command::new(tools()?.program("python"));
    zig.args(["-m", "ziglang", "cc", "-target"])
        .arg(format!("{architecture}-linux-gnu.{FLOOR}"));
    Ok(zig)
}

fn tools() -> anyhow::Result<Venv> {
    Venv::with("zig", &TOOLS)
}

impl Build<'_> {
    /// Builds these packages in release.
    ///
    /// # Errors
    /// As for [`build`].
    pub(crate) fn run(
        &self,
        packages: &[&str],
        progress: Progress,
    ) -> anyhow::Result<BTreeMap<String, PathBuf>> {
        ensure!(self.libgcc.is_absolute(), "there is no libgcc_s.so.1; install libgcc-s1");
        let tools = tools()?;
        let mut zigbuild = Command::new(tools.program("cargo-zigbuild"));
        zigbuild
            .current_dir(cargo::workspace())
            // cargo-zigbuild looks for zig with the first python3.
            .env("PATH", tools.first_in_path()?)
            .env("RUSTFLAGS", self.rust_flags())
            .args(["zigbuild", "--target"])
            .arg(format!("{}-unknown-linux-gnu.{FLOOR}", self.architecture))
            .arg("--target-dir")
            .arg(cargo::workspace().join("target").join(self.folder))
            .args(self.targets);
        if let Some(rustc) = self.rustc {
            // The `strip` of this machine may not know the other architecture.
            zigbuild.env("RUSTC", rustc).env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
        }
        match self.linking {
            Linking::Full => {}
            Linking::Exact => OVERRIDES.iter().for_each(|name| _ = zigbuild.env_remove(name)),
            Linking::Quick => {
                zigbuild
                    .env("CARGO_PROFILE_RELEASE_LTO", "off")
                    .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
            }
        }
        cargo::build_with(zigbuild, packages, Profile::Release, progress)
    }

    fn rust_flags(&self) -> OsString {
        let mut flags = env::var_os("RUSTFLAGS").unwrap_or_default();
        flags.push(" -C link-arg=");
        flags.push(&self.libgcc);
        flags.push(" -C link-arg=-Wl,--build-id=sha1");
        flags
    }
}

/// The newest glibc that `file` asks for.
///
/// # Errors
/// The version is newer than [`FLOOR`], or the file cannot be read.
pub(crate) fn floor_of(file: &Path) -> anyhow::Result<Version> {
    let needs = elf::needs(file)?;
    let newest = needs.iter().filter_map(|need| need.strip_prefix("GLIBC_")?.parse().ok()).max();
    let newest: Version = newest.with_context(|| format!("{} needs no glibc at all", file.display()))?;
    ensure!(
        newest <= FLOOR,
        "{} needs glibc {newest}, and may need {FLOOR} at most; it needs {}",
        file.display(),
        needs.into_iter().collect::<Vec<_>>().join(" ")
    );
    Ok(newest)
}

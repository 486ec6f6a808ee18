//! Check of the shipped crates for aarch64 (Grace, Jetson) on another machine. All of them are linted. The
//! library is built and loaded in emulation.

use std::env;

use gpushare_tests::artifacts::{Artifacts, Part};
use gpushare_tests::cargo::Progress;
use gpushare_tests::world::World;

use super::elsewhere;
use crate::output::progress;
use crate::shipped::cross::{ARCHITECTURE, Tools};
use crate::shipped::{Linking, floor_of};

pub(super) fn check() -> anyhow::Result<()> {
    if env::consts::ARCH != "x86_64" {
        progress(
            "SKIPPED aarch64: Debian's cross compiler is taken for x86_64 only; here the usual build is the check",
        );
        return Ok(());
    }
    let tools = Tools::fetch()?;
    tools.lint()?;
    let library = tools.build(&[Part::Library.package()], Linking::Quick, Progress::Hidden)?;
    let library = &library[Part::Library.target()];
    floor_of(library)?;
    let world = World::on_this_machine(Artifacts::of_tests()?)?;
    let mut emulated = world.program(tools.emulator());
    emulated.arg("-L").arg(tools.sysroot());
    emulated.arg("-E").arg(format!("LD_PRELOAD={}", library.display()));
    emulated.arg("-E").arg(format!("LD_LIBRARY_PATH={}", world.folder().display()));
    elsewhere::finds_symbols(&world, ARCHITECTURE, emulated)
}

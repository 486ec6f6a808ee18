//! Room for what the driver takes for itself: where it finds none, the daemon is asked, and the call is made
//! once more, or for a while if the program can do nothing about it.

use gpushare_proto::Bytes;
use gpushare_tests::{Artifacts, Program, Sharing, World};

/// Calls whose first try finds the card full.
const FULL_AT_FIRST: &str = "cuDevicePrimaryCtxRetain@1=2,cuModuleLoadData@1=2,cuMemAllocManaged@1=2,cuArray3DCreate@1=2,cuMemCreate@1=2";

fn begin(world: &World, sharing: &Sharing, faults: &str) -> anyhow::Result<Program> {
    let mut command = world.workload(sharing);
    command.env("SIMGPU_FAULTS", faults);
    Program::begin(command, world, "a")
}

#[test]
fn a_call_that_finds_the_card_full_is_made_once_more() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = begin(&world, &Sharing::session("a"), FULL_AT_FIRST)?;
    program.ready()?;
    for door in ["mem", "array", "handle"] {
        program.must(&format!("alloc {door} 4MiB --door {door}"))?;
    }
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(12));
    Ok(())
}

/// A program that starts right after another one was killed may find the card full until the driver has taken the memory
/// of the dead back.
#[test]
fn a_context_and_code_wait_for_memory_that_is_about_to_be_free() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let full = |call: &str| {
        (1..=10)
            .map(|number| format!("{call}@{number}=2"))
            .collect::<Vec<_>>()
            .join(",")
    };
    let faults = [full("cuDevicePrimaryCtxRetain"), full("cuModuleLoadData")].join(",");
    let mut program = begin(&world, &Sharing::session("a"), &faults)?;
    program.ready()?;
    Ok(())
}

/// The driver takes half a second to free the memory of the dead, which fills the card by the daemon's accounts too.
#[test]
fn a_program_that_starts_right_after_one_was_killed_gets_its_context() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--context-memory", "64MiB", "--death-release-us", "500000"];
    let (world, _daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let native = |name: &str| Sharing::session(name).and(&["--backend", "native"]);
    let mut first = Program::hold(&world, &native("a"), "a")?;
    first.must("alloc x 150MiB; fill x 1; sync")?;
    first.kill()?;
    let mut second = Program::hold(&world, &native("b"), "b")?;
    second.must("alloc x 150MiB; fill x 2; check x 2")?;
    Ok(())
}

#[test]
fn a_context_that_finds_no_memory_in_the_end_says_so() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = begin(&world, &Sharing::session("a"), "cuDevicePrimaryCtxRetain@1+=2")?;
    let failed = program.ready().unwrap_err();
    assert!(failed.to_string().contains("CUDA_ERROR_OUT_OF_MEMORY"), "{failed}");
    Ok(())
}

#[test]
fn a_card_that_stays_full_says_so_and_nothing_is_charged() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = begin(&world, &Sharing::session("a"), "cuArray3DCreate@1+=2,cuMemCreate@1+=2")?;
    program.ready()?;
    for door in ["array", "handle"] {
        let refused = program.ask(&format!("alloc {door} 4MiB --door {door}"))?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "{door}");
    }
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::ZERO);
    Ok(())
}

#[test]
fn a_program_alone_hears_of_a_full_card_at_once() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut program = begin(&world, &Sharing::Native, "cuMemAlloc@1=2")?;
    program.ready()?;
    assert_eq!(program.ask("alloc x 4MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    Ok(())
}

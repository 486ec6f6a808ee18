//! Room for what the driver takes for itself: where it finds none, the daemon is asked and the call made
//! once more.

use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, World};

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

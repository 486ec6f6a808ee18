//! Contexts besides the primary one: each takes room, and its memory is free when it ends.

use gpushare_proto::Bytes;
use gpushare_tests::{Daemon, Program, Sharing, World};

const LIMIT: Bytes = Bytes::mib(64);

fn begin(world: &World) -> anyhow::Result<(Daemon, Program)> {
    let daemon = Daemon::start(world, &[])?;
    let mut program = Program::hold(world, &Sharing::limited("a", LIMIT), "a")?;
    program.must("alloc own 4MiB")?;
    Ok((daemon, program))
}

fn used(daemon: &Daemon) -> anyhow::Result<Bytes> {
    Ok(daemon.session("a")?.gpus[0].allocated_bytes)
}

#[test]
fn memory_of_a_context_is_free_when_it_ends() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let (_daemon, mut program) = begin(&world)?;
    program.must("make c; alloc-in c x 60MiB")?;
    assert_eq!(program.ask("alloc y 2MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    program.must("end c; alloc y 60MiB")?;
    Ok(())
}

#[test]
fn a_context_lives_until_its_last_user_detaches() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let (daemon, mut program) = begin(&world)?;
    program.must("make c; attach c; alloc-in c x 60MiB; detach c")?;
    assert_eq!(program.ask("alloc y 2MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(used(&daemon)?, LIMIT);
    program.must("detach c; alloc y 60MiB")?;
    Ok(())
}

#[test]
fn detaching_from_the_primary_context_ends_nothing() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let (daemon, mut program) = begin(&world)?;
    program.must("detach-primary; alloc x 60MiB")?;
    assert_eq!(used(&daemon)?, LIMIT);
    assert_eq!(program.ask("alloc y 2MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    Ok(())
}

#[test]
fn memory_asked_for_in_a_part_of_the_card_is_charged_and_lives_on_with_the_card() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let (daemon, mut program) = begin(&world)?;
    program.must("green part; alloc-in part x 60MiB")?;
    assert_eq!(program.ask("alloc y 2MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    program.must("end part")?;
    assert_eq!(used(&daemon)?, LIMIT);
    program.must("reset")?;
    daemon.until("nothing is allocated", |status| status.gpus[0].allocated_bytes.is_zero())?;
    Ok(())
}

#[test]
fn the_primary_context_lives_as_long_as_a_part_of_the_card() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let (daemon, mut program) = begin(&world)?;
    program.must("green part")?;
    assert_eq!(program.ask("reset")?.error(), Some("CUDA_ERROR_NOT_PERMITTED"));
    program.must("release")?;
    assert_eq!(used(&daemon)?, Bytes::mib(4));
    program.must("end part")?;
    daemon.until("nothing is allocated", |status| status.gpus[0].allocated_bytes.is_zero())?;
    Ok(())
}

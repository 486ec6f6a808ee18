//! The CUDA program itself, without gpushare: every command of `hold` does on the simulated card what the
//! driver API manual says, so that a test which fails with gpushare has found gpushare.

use anyhow::ensure;
use gpushare_proto::Bytes;
use gpushare_tests::{Program, Sharing, Training, World};

fn program(world: &World) -> anyhow::Result<Program> {
    Program::hold(world, &Sharing::Native, "program")
}

#[test]
fn memory_of_every_function_holds_what_kernels_and_copies_put_there() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    for door in ["mem", "pitch", "managed"] {
        program.must(&format!("alloc a 4MiB --door {door}"))?;
        program.must("fill a 7; add a 5 --door ex; add a 1 --door cooperative; touch a")?;
        ensure!(program.ask("check a 13")?.flag("matches"), "{door}: kernels");
        program.must("put a 9")?;
        ensure!(program.must("get a")?.number("last") == 9, "{door}: copies");
        program.must("set a 4")?;
        ensure!(program.ask("check a 4")?.flag("matches"), "{door}: memset");
        program.must("free a")?;
    }
    Ok(())
}

#[test]
fn asynchronous_copies_arrive_in_stream_order() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    program.must("alloc a 1MiB; alloc b 1MiB; stream s; put a 6 --async --on s; add a 1 --on s")?;
    program.must("fetch a --on s; set b 3 --async --on s; sync s")?;
    assert_eq!(program.must("look a")?.number("first"), 7);
    program.must("check b 3; copy a b; sync; check b 7")?;
    Ok(())
}

#[test]
fn an_error_is_told_by_the_drivers_name() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    assert_eq!(program.ask("alloc a 1GiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    assert_eq!(program.ask("free-address 4096")?.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    assert_eq!(program.ask("fill nothing 1")?.error(), Some("unknown name"));
    assert_eq!(program.ask("fly")?.error(), Some("usage"));
    assert!(program.quit()?.success());
    Ok(())
}

#[test]
fn a_stream_waits_for_latches_values_and_events_while_other_threads_go_on() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    program.must("alloc flag 4KiB; set flag 0; stream s; stream t; event e")?;

    program.must("latch door --on s; record e --on s")?;
    let synced = program.tell("@other sync s")?;
    assert!(!program.must("event-query e")?.flag("finished"));
    assert_eq!(program.peek(synced), None);
    program.must("open door")?;
    assert!(program.answer(synced)?.flag("ok"));

    program.must("wait-value flag 2 --on s")?;
    assert!(!program.must("stream-query s")?.flag("finished"));
    program.must("write-value flag 2 --on t; sync s")?;

    program.must("set flag 0; spin 30s --until flag --on s; write-value flag 1 --on t; sync s")?;
    Ok(())
}

#[test]
fn a_captured_launch_runs_as_often_as_it_is_replayed() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    program.must("alloc a 1MiB; fill a 1; sync; stream s")?;
    for mode in ["global", "thread", "relaxed"] {
        program.must(&format!("capture s --mode {mode}"))?;
        program.must("add a 1 --on s; end-capture s g; replay g --on s; replay g --on s; sync s")?;
        program.must("graph-destroy g")?;
    }
    program.must("check a 7")?;
    Ok(())
}

#[test]
fn the_driver_tells_about_device_and_memory() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let mut program = program(&world)?;
    let facts = program.must("facts")?;
    assert!(facts.json()["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")));
    assert_eq!(program.must("total-mem")?.number("total_bytes"), 64 << 20);

    let before = program.must("mem-info")?.number("free_bytes");
    let address = program.must("alloc a 6MiB")?.number("address");
    assert_eq!(before - program.must("mem-info")?.number("free_bytes"), 6 << 20);
    let range = program.must("range a 1MiB")?;
    assert_eq!((range.number("address"), range.number("bytes")), (address, 6 << 20));
    let attributes = program.must("attributes a")?;
    assert_eq!((attributes.number("memory_type"), attributes.flag("managed")), (2, false));
    Ok(())
}

#[test]
fn every_way_to_find_a_function_finds_it() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    for resolve in ["dlsym", "proc-address", "proc-address-per-thread"] {
        let mut command = world.workload(&Sharing::Native);
        command.args(["--resolve", resolve]);
        let mut program = Program::begin(command, &world, resolve)?;
        program.ready()?;
        program.must("alloc a 1MiB; fill a 3; sync")?;
        ensure!(program.ask("check a 3")?.flag("matches"), "{resolve}");
    }
    Ok(())
}

#[test]
fn training_knows_its_memory_is_right() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(64))?;
    let flags = ["--steps", "9", "--async-ahead", "3", "--door", "managed", "--trace"];
    let report = Training::start(&world, &Sharing::Native, "train", Bytes::mib(24), &flags)?.report()?;
    assert_eq!((report.ok, report.corrupted, report.steps), (true, 0, 9));
    assert_eq!(report.step_ends_ns.map(|ends| ends.len()), Some(9));
    Ok(())
}

//! Where a program's memory is: managed memory moves and cannot be handed to others, native memory can and
//! stays.

use gpushare_proto::Bytes;
use gpushare_tests::{Artifacts, Dialogue, Program, Sharing, World, foreign, output_of};

fn native(name: &str) -> Sharing {
    Sharing::session(name).and(&["--backend", "native"])
}

#[test]
fn managed_memory_is_not_handed_to_other_processes_and_a_line_says_what_to_do() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let managed = Sharing::session("a").and(&["--backend", "managed"]);
    let mut program = Program::hold(&world, &managed, "a")?;
    program.must("alloc x 4MiB")?;
    for _ in 0..2 {
        assert_eq!(program.ask("ipc x")?.error(), Some("CUDA_ERROR_NOT_SUPPORTED"));
    }
    let stderr = program.process().stderr();
    assert_eq!(stderr.matches("gpushare-ctl run --backend native").count(), 1, "{stderr}");
    Ok(())
}

#[test]
fn memory_that_stays_is_handed_to_other_processes() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &native("a"), "a")?;
    program.must("alloc x 4MiB; ipc x; fill x 7; check x 7")?;
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(4));
    assert_eq!(program.process().stderr(), "");
    Ok(())
}

/// Questions about rewritten memory get the answers that a program without gpushare gets.
#[test]
fn memory_that_was_rewritten_answers_as_plain_memory_does() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let ask = |sharing: &Sharing, name: &str| -> anyhow::Result<Vec<Option<String>>> {
        let mut program = Program::hold(&world, sharing, name)?;
        program.must("alloc x 4MiB; alloc own 4MiB --door managed; alloc mapped 4MiB --door handle")?;
        ["retain x", "preferred x", "retain own", "preferred own", "retain mapped", "free mapped"]
            .into_iter()
            .map(|line| Ok(program.ask(line)?.error().map(str::to_owned)))
            .collect()
    };
    let alone = ask(&Sharing::Native, "alone")?;
    assert_eq!(ask(&Sharing::session("shared"), "shared")?, alone);
    assert_eq!(ask(&native("native"), "native")?, alone);
    let refused = Some("CUDA_ERROR_INVALID_VALUE".to_owned());
    assert_eq!(alone, [refused.clone(), refused.clone(), refused, None, None, None]);
    Ok(())
}

#[test]
fn the_mapping_of_memory_that_moves_changes_no_more_than_that_of_plain_memory() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let program = foreign::program(&world, "changes_mapping")?;
    let answers = |sharing: &Sharing| output_of(world.sharing(sharing, &program));
    let alone = answers(&Sharing::Native)?;
    assert_eq!(alone.lines().last(), Some("word 7"));
    for backend in ["managed", "native", "remap"] {
        let shared = answers(&Sharing::session(backend).and(&["--backend", backend]))?;
        assert_eq!(shared, alone, "{backend}");
    }
    Ok(())
}

/// Neither flag nor variable names a backend.
#[test]
fn memory_of_a_program_that_names_no_backend_is_remapped() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::session("a"), "a")?;
    program.must("alloc x 64MiB; fill x 7; check x 7")?;
    let stats = world.card().expect("a simulated card").stats()?;
    let own = stats.processes.iter().find(|known| known.pid == program.process().pid());
    assert_eq!(own.expect("the program is on the card").managed_bytes, 0);
    gpushare_tests::patience::until("its memory is told", || {
        Ok((daemon.residence("a")?.resident_bytes >= Bytes::mib(64)).then_some(()))
    })?;
    Ok(())
}

/// What the cards can do is not known before the driver is initialized.
#[test]
fn a_call_before_the_driver_is_initialized_does_not_choose_the_backend() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let program = foreign::program(&world, "early_context")?;
    let command = world.sharing(&Sharing::session("a"), &program);
    let mut program = Dialogue::start(&world, command, "early_context")?;
    assert_eq!(program.answer()?, "3", "CUDA_ERROR_NOT_INITIALIZED");
    assert_eq!(program.answer()?, "21");
    gpushare_tests::patience::until("its remapped memory is told", || {
        Ok((daemon.residence("a")?.resident_bytes >= Bytes::mib(64)).then_some(()))
    })?;
    program.end()
}

/// A card on which managed memory is of no use: the program runs, and a line says what that means.
#[test]
fn memory_stays_on_a_card_without_concurrent_managed_access() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--no-concurrent-managed"];
    let (world, daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(32)), "a")?;
    program.must("alloc x 4MiB; alloc y 4MiB --door pitch; ipc x; fill x 7; check x 7")?;
    let card = world.card().expect("a simulated card").stats()?;
    let own = card.processes.iter().find(|known| known.pid == program.process().pid());
    let own = own.expect("the program is on the card");
    assert_eq!((own.managed_bytes, own.device_bytes), (0, Bytes::mib(8).0));
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(8));
    let stderr = program.process().stderr();
    assert_eq!(stderr.matches("device 0 has no concurrent managed access").count(), 1, "{stderr}");
    Ok(())
}

#[test]
fn a_program_with_one_card_gives_no_advice() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let managed = Sharing::session("a").and(&["--backend", "managed"]);
    let mut program = Program::hold(&world, &managed, "a")?;
    program.must("alloc x 4MiB; fill x 1; sync")?;
    let total = world.card().expect("a simulated card").stats()?.total;
    assert_eq!((total.advised_location, total.advised_access), (0, 0));
    Ok(())
}

#[test]
fn memory_by_handle_is_free_when_its_last_use_is_over() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(64)), "a")?;
    let used = || -> anyhow::Result<_> { Ok(daemon.session("a")?.gpus[0].allocated_bytes) };
    program.must("alloc x 62MiB --door handle; fill x 3; check x 3")?;
    assert_eq!(used()?, Bytes::mib(62), "its handle is released, its mapping is there");
    assert_eq!(program.ask("alloc y 4MiB --door handle")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    program.must("retain x")?;
    assert_eq!(used()?, Bytes::mib(62));
    program.must("free x; alloc y 64MiB")?;
    Ok(())
}

#[test]
fn an_unknown_backend_is_named_and_the_program_runs() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program =
        Program::hold_with(&world, &Sharing::session("a"), "a", gpushare_proto::names::BACKEND, "fast")?;
    program.must("alloc x 4MiB")?;
    let stderr = program.process().stderr();
    assert!(stderr.contains("\"fast\" is not a backend; write managed"), "{stderr}");
    Ok(())
}

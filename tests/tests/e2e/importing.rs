//! Remapped memory that one program hands to another: both see the same bytes, it stays on the card, and somebody
//! always pays for it.

use gpushare_proto::{Bytes, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Artifacts, Daemon, Program, Sharing, World};

use crate::users::{NUMBERED, command_of, started};

const WHOLE: Bytes = Bytes::mib(20);

fn remap(name: &str) -> Sharing {
    Sharing::session(name).and(&["--backend", "remap"])
}

/// Starts a program in a session of its own, whose memory is remapped.
fn begin(world: &World, name: &str) -> anyhow::Result<Program> {
    Program::hold(world, &remap(name), name)
}

/// Returns the handle of a buffer.
fn handle(program: &mut Program, buffer: &str) -> anyhow::Result<String> {
    Ok(program.must(&format!("ipc {buffer}"))?.text("handle").to_owned())
}

/// Starts two programs, of which the second has opened the first one's 20 MiB as `y`.
fn sharing(world: &World) -> anyhow::Result<(Program, Program, String)> {
    let (mut exporter, mut importer) = (begin(world, "a")?, begin(world, "b")?);
    exporter.must("alloc x 20MiB; fill x 7; sync")?;
    let handle = handle(&mut exporter, "x")?;
    importer.must(&format!("import y {handle} 20MiB"))?;
    Ok((exporter, importer, handle))
}

/// Bytes of device memory that count for a program on the simulated card.
fn on_card(world: &World, program: &Program) -> anyhow::Result<Bytes> {
    let stats = world.card().expect("a simulated card").stats()?;
    let own = stats.processes.iter().find(|known| known.pid == program.process().pid());
    Ok(own.map_or(Bytes::ZERO, |own| Bytes(own.device_bytes)))
}

fn allocated(daemon: &Daemon, session: &str) -> anyhow::Result<Bytes> {
    Ok(daemon.session(session)?.gpus.iter().map(|gpu| gpu.allocated_bytes).sum())
}

fn is_charged(daemon: &Daemon, session: &str, bytes: Bytes) -> anyhow::Result<()> {
    until(&format!("{session} pays for {bytes}"), || Ok((allocated(daemon, session)? == bytes).then_some(())))
}

#[test]
fn both_programs_see_the_same_bytes_and_the_first_one_pays() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, _) = sharing(&world)?;
    importer.must("check y 7; fill y 9; sync")?;
    importer.must("stream s")?;
    for free in ["free y", "free-async y --on s"] {
        let refused = importer.ask(free)?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_INVALID_VALUE"), "it is another program's");
    }
    exporter.must("check x 9; fill x 11; sync")?;
    importer.must("check y 11")?;
    assert_eq!(allocated(&daemon, "a")?, WHOLE);
    assert_eq!(allocated(&daemon, "b")?, Bytes::ZERO);
    let range = importer.must("range y 4096")?;
    assert_eq!(range.number("bytes"), WHOLE.0);
    let attributes = importer.must("attributes y")?;
    assert_eq!((attributes.number("memory_type"), attributes.flag("managed")), (2, false));
    importer.must("close-import y")?;
    exporter.must("check x 11; free x")?;
    assert_eq!(importer.process().stderr(), "");
    Ok(())
}

#[test]
fn a_small_block_is_opened_where_it_begins() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer) = (begin(&world, "a")?, begin(&world, "b")?);
    exporter.must("alloc x 64KiB; alloc z 64KiB; fill x 3; fill z 5; sync")?;
    let (x, z) = (handle(&mut exporter, "x")?, handle(&mut exporter, "z")?);
    let first = importer.must(&format!("import x {x} 64KiB"))?.number("address");
    importer.must(&format!("import z {z} 64KiB"))?;
    importer.must("check x 3; check z 5; fill z 6; sync")?;
    exporter.must("check x 3; check z 6")?;
    // The same handle gives the same address, until it was closed as often as it was opened.
    assert_eq!(importer.must(&format!("import again {x} 64KiB"))?.number("address"), first);
    importer.must("close-import again; check x 3; close-import x; check z 6; close-import z")?;
    assert_eq!(importer.ask(&format!("free-address {first}"))?.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    importer.must(&format!("import x {x} 64KiB; check x 3"))?;
    Ok(())
}

#[test]
fn memory_that_was_handed_out_stays_on_the_card_and_is_said_to() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let mut daemon = ScriptedDaemon::listen(&world)?;
    let mut program = Program::hold_with(&world, &Sharing::Preload, "a", names::BACKEND, "remap")?;
    program.must("alloc x 20MiB; alloc z 64MiB; fill x 7; fill z 5; sync; ipc x")?;
    daemon.set_goal(Bytes::ZERO);
    daemon.take_back()?;
    until("all but the exported memory has left", || {
        let residence = daemon.residence().1;
        Ok(((residence.resident, residence.pinned) == (WHOLE, WHOLE)).then_some(()))
    })?;
    assert_eq!(daemon.residence().1.hosted, Bytes::mib(64));
    program.must("free x")?;
    until("the exported memory is gone", || Ok((daemon.residence().1.resident == Bytes::ZERO).then_some(())))
}

#[test]
fn both_see_the_same_bytes_while_their_other_memory_makes_way_for_each_other() -> anyhow::Result<()> {
    let flags = ["--capacity", "0=160MiB", "--host-budget", "1GiB"];
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&flags)?;
    let (mut exporter, mut importer, _) = sharing(&world)?;
    exporter.must("alloc z 100MiB; fill z 5; sync")?;
    importer.must("alloc w 100MiB; fill w 3; check y 7; fill y 9; sync")?;
    for round in 0..3 {
        let (theirs, ours) = (9 + round, 20 + round);
        exporter.must(&format!("check x {theirs}; check z 5; fill x {ours}; sync"))?;
        importer.must(&format!("check y {ours}; check w 3; fill y {}; sync", theirs + 1))?;
    }
    let handoffs = daemon.status()?.gpus[0].handoffs;
    assert!(handoffs >= 6, "{handoffs} handoffs");
    importer.must("close-import y")?;
    Ok(())
}

#[test]
fn whoever_keeps_memory_of_a_dead_program_pays_for_it() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, handle) = sharing(&world)?;
    assert_eq!(on_card(&world, &importer)?, Bytes::ZERO, "it counts for its maker");
    exporter.kill()?;
    is_charged(&daemon, "b", WHOLE)?;
    assert_eq!(on_card(&world, &importer)?, WHOLE);
    importer.must("check y 7; fill y 9; check y 9; close-import y")?;
    is_charged(&daemon, "b", Bytes::ZERO)?;
    let gone = importer.ask(&format!("import y {handle} 20MiB"))?;
    assert_eq!(gone.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    assert!(on_card(&world, &importer)? < WHOLE, "the last one has closed it");
    Ok(())
}

#[test]
fn whoever_keeps_memory_that_was_freed_pays_for_it() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, handle) = sharing(&world)?;
    exporter.must("free x")?;
    is_charged(&daemon, "a", Bytes::ZERO)?;
    is_charged(&daemon, "b", WHOLE)?;
    importer.must("check y 7")?;
    // Nobody can open it any more, and the next memory of the exporter is other memory.
    let mut late = begin(&world, "c")?;
    assert_eq!(late.ask(&format!("import y {handle} 20MiB"))?.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    exporter.must("alloc x 20MiB; fill x 1; sync")?;
    importer.must("check y 7; close-import y")?;
    is_charged(&daemon, "b", Bytes::ZERO)
}

#[test]
fn an_importer_that_dies_leaves_the_memory_to_the_others() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, handle) = sharing(&world)?;
    importer.must("fill y 9; sync")?;
    importer.kill()?;
    exporter.must("check x 9")?;
    let mut next = begin(&world, "c")?;
    next.must(&format!("import y {handle} 20MiB; check y 9"))?;
    exporter.must("free x")?;
    is_charged(&daemon, "c", WHOLE)
}

#[test]
fn a_handle_and_open_memory_outlive_the_daemon() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, handle) = sharing(&world)?;
    daemon.kill()?;
    daemon.restart()?;
    daemon.until("both are back", |status| {
        status.sessions.len() == 2 && status.sessions.iter().all(|session| session.clients.len() == 1)
    })?;
    let mut late = begin(&world, "c")?;
    late.must(&format!("import y {handle} 20MiB; check y 7; fill y 8; sync"))?;
    importer.must("check y 8; close-import y")?;
    exporter.must("free x")?;
    is_charged(&daemon, "c", WHOLE)?;
    is_charged(&daemon, "b", Bytes::ZERO)
}

#[test]
fn a_handle_that_is_wrong_opens_nothing() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, mut importer, handle) = sharing(&world)?;
    let altered = |at: usize| {
        let digit = if handle.as_bytes()[at] == b'0' { "1" } else { "0" };
        format!("{}{digit}{}", &handle[..at], &handle[at + 1..])
    };
    // All zero is the driver's matter. Of ours: magic number, exporter, number of the export, secret, offset, and size.
    let wrong = [0, 34, 48, 64, 110, 126].map(altered);
    for wrong in wrong.iter().chain([&"0".repeat(128)]) {
        let answer = importer.ask(&format!("import w {wrong} 20MiB"))?;
        assert_eq!(answer.error(), Some("CUDA_ERROR_INVALID_VALUE"), "{wrong}");
    }
    let own = exporter.ask(&format!("import w {handle} 20MiB"))?;
    assert_eq!(own.error(), Some("CUDA_ERROR_INVALID_CONTEXT"), "as with the driver");
    assert_eq!(importer.ask("ipc y")?.error(), Some("CUDA_ERROR_INVALID_VALUE"), "it is not given on");
    importer.must("check y 7")?;
    Ok(())
}

#[test]
fn programs_of_other_backends_open_remapped_memory_and_native_ones_do_not() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let (mut exporter, _importer, handle) = sharing(&world)?;
    for backend in ["managed", "native"] {
        let sharing = Sharing::session(backend).and(&["--backend", backend]);
        let mut program = Program::hold(&world, &sharing, backend)?;
        program.must(&format!("import y {handle} 20MiB; check y 7; fill y 7; close-import y"))?;
    }
    let mut native = Program::hold(&world, &Sharing::Native, "alone")?;
    let refused = native.ask(&format!("import y {handle} 20MiB"))?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    exporter.must("check x 7")?;
    assert_eq!(allocated(&daemon, "a")?, WHOLE);
    Ok(())
}

#[test]
fn a_card_that_refuses_exportable_memory_moves_memory_and_shares_none() -> anyhow::Result<()> {
    let flags = ["--memory", "256MiB", "--refuse-exportable"];
    let (world, _daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut program = begin(&world, "a")?;
    program.must("alloc x 20MiB; fill x 7; check x 7")?;
    assert_eq!(program.ask("ipc x")?.error(), Some("CUDA_ERROR_NOT_SUPPORTED"));
    let stderr = program.process().stderr();
    assert_eq!(stderr.matches("gpushare-ctl run --backend native").count(), 1, "{stderr}");
    program.must("check x 7")?;
    Ok(())
}

#[test]
fn memory_of_another_user_cannot_be_opened() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can start another user's programs");
        return Ok(());
    }
    let (world, _daemon) = started(Bytes::mib(256), &[])?;
    let remapped = |uid, name: &str| -> anyhow::Result<Program> {
        let mut command = command_of(&world, uid, name, Bytes::mib(64))?;
        command.env(names::BACKEND, "remap");
        let mut program = Program::begin(command, &world, name)?;
        program.ready()?;
        Ok(program)
    };
    let (mut own, mut sibling, mut other) =
        (remapped(NUMBERED, "own")?, remapped(NUMBERED, "sibling")?, remapped(NUMBERED + 1, "other")?);
    own.must("alloc x 20MiB; fill x 7; sync")?;
    let handle = handle(&mut own, "x")?;
    sibling.must(&format!("import y {handle} 20MiB; check y 7"))?;
    let refused = other.ask(&format!("import y {handle} 20MiB"))?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_INVALID_VALUE"));
    Ok(())
}

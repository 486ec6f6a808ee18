//! Memory that a program creates by handle and maps itself, as PyTorch's expandable segments: it moves like
//! memory of `cuMemAlloc` while it is mapped once, and stays in every other case.

use std::time::Duration;

use anyhow::Context;
use gpushare_proto::{Bytes, GateState, names};
use gpushare_tests::patience::until;
use gpushare_tests::scripted::ScriptedDaemon;
use gpushare_tests::{Program, Sharing, World};

/// Size of one handle of PyTorch's large segments.
const PIECE: Bytes = Bytes::mib(20);
/// Longest time for one turn.
const PATIENCE: Duration = Duration::from_secs(60);
/// A block of the arena, in which a check counts.
const SMALL: Bytes = Bytes::mib(2);

/// A program whose memory is remapped, and the daemon that the test plays for it.
fn program() -> anyhow::Result<(World, ScriptedDaemon, Program)> {
    program_with("")
}

/// A program whose driver fails as `SIMGPU_FAULTS` says.
fn program_with(faults: &str) -> anyhow::Result<(World, ScriptedDaemon, Program)> {
    let world = World::of(Bytes::mib(256))?;
    let daemon = ScriptedDaemon::listen(&world)?;
    let mut command = world.workload(&Sharing::Preload);
    command
        .env(names::BACKEND, "remap")
        .env(names::PARANOID, "1")
        .env("SIMGPU_FAULTS", faults);
    let mut program = Program::begin(command, &world, "a")?;
    program.ready()?;
    Ok((world, daemon, program))
}

/// Bytes of device memory of the program on the simulated card.
fn on_card(world: &World, program: &Program) -> anyhow::Result<Bytes> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let own = stats.processes.iter().find(|known| known.pid == program.process().pid());
    Ok(Bytes(own.context("the program is on the card")?.device_bytes))
}

/// Takes the card back, so that only `left` bytes stay there.
fn send_out(daemon: &mut ScriptedDaemon, left: Bytes) -> anyhow::Result<()> {
    daemon.set_goal(left);
    daemon.take_back()?;
    daemon.is_followed()
}

/// Gives the card again, with room for all memory.
fn bring_in(daemon: &mut ScriptedDaemon) -> anyhow::Result<()> {
    daemon.set_goal(Bytes::mib(256));
    daemon.set_gate(GateState::Moving)?;
    daemon.entered()?;
    Ok(())
}

#[test]
fn memory_by_handle_leaves_the_card_and_comes_back_with_its_bytes() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment kept 20MiB 3; segment released 20MiB 2; release-segment released")?;
    program.must("alloc one 4MiB --door handle; fill kept 7; fill released 3; fill one 5; sync")?;
    let whole = PIECE + PIECE + PIECE + PIECE + PIECE + Bytes::mib(4);
    assert_eq!(on_card(&world, &program)?, whole);
    for round in 0..2 {
        send_out(&mut daemon, Bytes::ZERO)?;
        assert_eq!(on_card(&world, &program)?, Bytes::ZERO, "round {round}");
        assert_eq!(daemon.residence().1.hosted, whole + if round > 0 { SMALL } else { Bytes::ZERO });
        // What a handle is does not depend on where the memory is.
        let properties = program.must("segment-properties kept")?;
        let facts = ["exports", "kind", "device"].map(|fact| properties.number(fact));
        assert_eq!(facts, [1, 1, 0]);
        bring_in(&mut daemon)?;
        program.must("check kept 7; check released 3; check one 5")?;
    }
    program.must("fill kept 8; allow-segment kept; sync")?;
    send_out(&mut daemon, PIECE)?;
    assert!(on_card(&world, &program)? <= PIECE);
    bring_in(&mut daemon)?;
    program.must("check kept 8; check released 3")?;
    assert!(!program.process().stderr().contains("paranoid"), "{}", program.process().stderr());
    Ok(())
}

/// Triton asks for the device pointer of each argument before a launch.
#[test]
fn questions_about_memory_that_is_away_are_answered_at_once() -> anyhow::Result<()> {
    let (_world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 2; fill s 7; sync")?;
    let facts = ["memory_type", "managed", "ordinal", "range_start", "range_bytes"];
    let ask = |program: &mut Program| -> anyhow::Result<Vec<serde_json::Value>> {
        let told = [program.tell("attributes s 21MiB")?, program.tell("buffer-id s")?];
        let answers = [program.answer(told[0])?, program.answer(told[1])?];
        let mut values: Vec<_> = facts.iter().map(|fact| answers[0].json()[fact].clone()).collect();
        values.push(answers[1].json()["number"].clone());
        Ok(values)
    };
    let before = ask(&mut program)?;
    assert!(before.iter().all(|value| !value.is_null()), "{before:?}");
    send_out(&mut daemon, Bytes::ZERO)?;
    assert_eq!(ask(&mut program)?, before);
    bring_in(&mut daemon)?;
    assert_eq!(ask(&mut program)?, before);
    Ok(())
}

#[test]
fn memory_that_is_away_ends_with_its_last_mapping_without_coming_back() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 4; release-segment s; fill s 7; sync")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    let refused = program.ask("free-segment s")?;
    assert_eq!(refused.error(), Some("CUDA_ERROR_INVALID_VALUE"), "memory is mapped there");
    program.must("unmap-segment s 1 2")?;
    until("what was unmapped is nowhere", || {
        Ok((daemon.residence().1.hosted == PIECE + PIECE).then_some(()))
    })?;
    assert_eq!(on_card(&world, &program)?, Bytes::ZERO);
    program.must("unmap-segment s 0 1; unmap-segment s 3 1; free-segment s")?;
    bring_in(&mut daemon)?;
    program.must("segment t 20MiB 4; fill t 3; check t 3")?;
    Ok(())
}

#[test]
fn memory_that_is_unmapped_while_its_handle_is_kept_keeps_its_bytes() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 4; fill s 7; sync")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    // Its bytes are to be in its handle afterwards, so it comes back before.
    let unmapped = program.tell("unmap-segment s")?;
    assert!(program.answer_within(unmapped, Duration::from_millis(300)).is_err());
    bring_in(&mut daemon)?;
    program.done(unmapped)?;
    let all = PIECE + PIECE + PIECE + PIECE;
    assert_eq!(on_card(&world, &program)?, all);
    // Without an address it stays.
    until("the client says so", || Ok((daemon.residence().1.pinned == all).then_some(())))?;
    program.must("map-segment s; check s 7")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    bring_in(&mut daemon)?;
    program.must("check s 7; unmap-segment s; free-segment s; release-segment s")?;
    assert!(on_card(&world, &program)? <= SMALL);
    Ok(())
}

#[test]
fn memory_that_is_mapped_twice_or_exported_stays() -> anyhow::Result<()> {
    for (pins, end) in [
        ("map-again s again", "unmap-segment again; release-segment s"),
        ("export-segment s", "release-segment s"),
    ] {
        let (world, mut daemon, mut program) = program()?;
        program.must("segment s 20MiB 4; fill s 7; sync")?;
        // Also where it is away at first.
        send_out(&mut daemon, Bytes::ZERO)?;
        let waiting = program.tell(pins)?;
        assert!(program.answer_within(waiting, Duration::from_millis(300)).is_err(), "{pins}");
        bring_in(&mut daemon)?;
        program.done(waiting)?;
        program.must("check s 7")?;
        send_out(&mut daemon, PIECE)?;
        until("the client says what stays", || Ok((daemon.residence().1.pinned == PIECE).then_some(())))?;
        assert_eq!(on_card(&world, &program)?, PIECE, "{pins}");
        bring_in(&mut daemon)?;
        program.must("check s 7")?;
        if pins.starts_with("map-again") {
            program.must("check again 7")?;
        }
        program.must("unmap-segment s")?;
        program.must(end)?;
        assert!(on_card(&world, &program)? <= SMALL, "{pins}");
    }
    Ok(())
}

#[test]
fn a_call_that_fails_pins_nothing() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 2; fill s 7; sync")?;
    for line in ["map-segment s", "unmap-segment s 0 3", "export-segment s 8"] {
        assert_eq!(program.ask(line)?.error(), Some("CUDA_ERROR_INVALID_VALUE"), "{line}");
    }
    send_out(&mut daemon, Bytes::ZERO)?;
    assert_eq!(on_card(&world, &program)?, Bytes::ZERO);
    bring_in(&mut daemon)?;
    program.must("check s 7")?;
    Ok(())
}

/// Destructors of static objects run after the end of gpushare.
#[test]
fn memory_that_is_away_ends_at_once_at_the_exit() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 4; fill s 7; sync; end-segment-at-exit s")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    assert!(program.quit()?.success());
    let stderr = program.process().stderr();
    assert!(stderr.contains("segment s ended at exit"), "{stderr}");
    drop(world);
    Ok(())
}

#[test]
fn an_unmapping_that_the_driver_refuses_fails_and_is_made_again() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut command = world.workload(&Sharing::session("a").and(&["--backend", "remap"]));
    command.env("SIMGPU_FAULTS", "cuMemUnmap@1=801");
    let mut program = Program::begin(command, &world, "a")?;
    program.ready()?;
    program.must("segment s 20MiB 2; release-segment s; fill s 7; sync")?;
    assert_eq!(program.ask("unmap-segment s")?.error(), Some("CUDA_ERROR_NOT_SUPPORTED"));
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, PIECE + PIECE);
    program.must("unmap-segment s; free-segment s")?;
    assert!(on_card(&world, &program)? <= SMALL);
    program.must("segment t 20MiB 8")?;
    Ok(())
}

#[test]
fn a_call_that_cannot_get_all_memory_pins_nothing() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program_with("cuMemUnmap@1=801")?;
    program.must("segment s 20MiB 2; release-segment s; fill s 7; sync")?;
    // The first piece is half ended, and so cannot be had. The other one can.
    assert_eq!(program.ask("unmap-segment s 0 1")?.error(), Some("CUDA_ERROR_NOT_SUPPORTED"));
    assert!(program.ask("allow-segment s")?.error().is_some());
    send_out(&mut daemon, Bytes::ZERO)?;
    until("nothing stays", || Ok((on_card(&world, &program)? == Bytes::ZERO).then_some(())))?;
    Ok(())
}

#[test]
fn a_context_that_is_not_the_last_ends_while_memory_is_away() -> anyhow::Result<()> {
    let (_world, mut daemon, mut program) = program()?;
    program.must("make c; segment s 20MiB 2; fill s 7; sync")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    program.must("end c")?;
    bring_in(&mut daemon)?;
    program.must("check s 7")?;
    Ok(())
}

/// Without a context nothing could be copied.
#[test]
fn memory_by_handle_stays_once_the_last_context_has_ended() -> anyhow::Result<()> {
    let (world, mut daemon, mut program) = program()?;
    program.must("segment s 20MiB 2; fill s 7; sync")?;
    send_out(&mut daemon, Bytes::ZERO)?;
    let ending = program.tell("release")?;
    assert!(program.answer_within(ending, Duration::from_millis(300)).is_err());
    bring_in(&mut daemon)?;
    program.done(ending)?;
    let all = PIECE + PIECE;
    until("the client says so", || Ok((daemon.residence().1.pinned == all).then_some(())))?;
    assert_eq!(on_card(&world, &program)?, all);
    Ok(())
}

/// The driver's answers to calls in an odd order do not depend on whether gpushare moves the memory.
#[test]
fn handles_of_memory_that_moves_answer_as_the_drivers() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let lines = [
        "make-segment s 4MiB 3",
        "unmap-segment s",
        "map-segment s",
        "map-segment s",
        "allow-segment s",
        "fill s 7",
        "retain s",
        "free-segment s",
        "release-segment s",
        "release-segment s",
        "map-again s t",
        "export-segment s",
        "segment-properties s",
        "check s 7",
        "retain s",
        "unmap-segment s 1 1",
        "unmap-segment s 1 1",
        "unmap-segment s",
        "free-segment s",
        "unmap-segment s 0 1",
        "unmap-segment s 2 1",
        "retain s",
        "allow-segment s",
        "free-segment s",
        "free-segment s",
        "segment t 3MiB 1",
        "segment t 4MiB 1",
        "mem-info",
    ];
    let ask = |sharing: &Sharing, name: &str| -> anyhow::Result<Vec<(String, Option<String>)>> {
        let mut program = Program::hold(&world, sharing, name)?;
        let ask = |line: &&str| -> anyhow::Result<_> {
            Ok(((*line).to_owned(), program.ask(line)?.error().map(str::to_owned)))
        };
        lines.iter().map(ask).collect()
    };
    let alone = ask(&Sharing::Native, "alone")?;
    for backend in ["remap", "native", "managed"] {
        assert_eq!(
            ask(&Sharing::session(backend).and(&["--backend", backend]), backend)?,
            alone,
            "{backend}"
        );
    }
    Ok(())
}

#[test]
fn memory_by_handle_counts_as_memory_that_moves() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut program = Program::hold(&world, &Sharing::limited("a", Bytes::mib(64)), "a")?;
    program.must("segment s 20MiB 3; fill s 3; sync")?;
    assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(60));
    until("it is told as resident", || {
        Ok((daemon.residence("a")?.resident_bytes == Bytes::mib(60)).then_some(()))
    })?;
    assert_eq!(program.ask("segment t 20MiB 1")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    program.must("unmap-segment s; release-segment s; alloc x 64MiB")?;
    Ok(())
}

/// Two programs that have nothing but memory by handle need one and a half times the card.
#[test]
fn programs_of_memory_by_handle_take_turns() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(512))?.with_daemon(&["--host-budget", "2GiB"])?;
    let hold = |name: &str, fill: u8| -> anyhow::Result<Program> {
        let sharing = Sharing::session(name).and(&["--backend", "remap", "--paranoid"]);
        let mut program = Program::hold(&world, &sharing, name)?;
        let made = program.tell("segment s 20MiB 18")?;
        program.answer_within(made, PATIENCE)?;
        program.must(&format!("fill s {fill}; sync"))?;
        Ok(program)
    };
    let (mut a, mut b) = (hold("a", 10)?, hold("b", 20)?);
    for round in 0..3 {
        for (program, fill) in [(&mut a, 10 + round), (&mut b, 20 + round)] {
            let check = program.tell(&format!("check s {fill}"))?;
            assert!(program.answer_within(check, PATIENCE)?.flag("matches"), "round {round}");
            assert!(on_card(&world, program)? >= Bytes::mib(360));
            program.must(&format!("fill s {}; sync", fill + 1))?;
        }
    }
    until("memory is away", || Ok((!daemon.residence("a")?.hosted_bytes.is_zero()).then_some(())))?;
    for program in [&a, &b] {
        let stderr = program.process().stderr();
        assert!(!stderr.contains("paranoid"), "work was found in flight: {stderr}");
    }
    // The memory is also given back by one that has it away.
    a.must("unmap-segment s; release-segment s; free-segment s")?;
    b.must("unmap-segment s; release-segment s; free-segment s")?;
    assert!(on_card(&world, &a)? <= SMALL && on_card(&world, &b)? <= SMALL);
    Ok(())
}

/// Another program has taken room with memory that cannot leave, while this one's was away.
#[test]
fn memory_by_handle_that_has_no_room_on_the_card_any_more_is_mapped_from_the_host() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&["--host-budget", "2GiB"])?;
    let hold = |name: &str| {
        let sharing = Sharing::session(name).and(&["--backend", "remap", "--paranoid"]);
        Program::hold(&world, &sharing, name)
    };
    let says = |program: &mut Program, line: &str| -> anyhow::Result<()> {
        let told = program.tell(line)?;
        let answer = program.answer_within(told, PATIENCE)?;
        anyhow::ensure!(answer.flag("ok"), "{line}: {}", answer.json());
        Ok(())
    };
    let (mut a, mut b) = (hold("a")?, hold("b")?);
    a.must("segment s 20MiB 6; fill s 3; sync")?;
    says(&mut b, "alloc x 144MiB")?;
    says(&mut b, "fill x 5")?;
    // Memory that another process may open stays on the card.
    b.must("ipc x; sync")?;
    says(&mut a, "check s 3")?;
    until("it is told where its memory is", || {
        let place = daemon.residence("a")?;
        Ok((place.mapped_bytes >= PIECE && place.resident_bytes >= PIECE).then_some(()))
    })?;
    says(&mut a, "fill s 7")?;
    // The program gets it back where it is.
    a.must("retain s; check s 7")?;
    b.must("check x 5; free x")?;
    says(&mut a, "check s 7")?;
    a.must("release-segment s; unmap-segment s; free-segment s")?;
    until("all of it is gone", || {
        let place = daemon.residence("a")?;
        Ok((place.mapped_bytes.is_zero() && place.hosted_bytes.is_zero()).then_some(()))
    })
}

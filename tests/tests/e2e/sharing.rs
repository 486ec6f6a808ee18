//! Together while it fits, in turns when it does not.

use gpushare_proto::Bytes;
use gpushare_proto::admin::Mode;
use gpushare_tests::patience::until;
use gpushare_tests::{Program, Sharing, Training, World};
use simgpu_card::stats::Counters;

/// Together half as much again as the card.
const HALF_TOO_MUCH: Bytes = Bytes::mib(48);
const CARD: Bytes = Bytes::mib(64);
/// Managed memory, since without gpushare nothing else exceeds a card.
const LOAD: [&str; 6] = ["--steps", "1000000", "--compute", "2ms", "--door", "managed"];

#[test]
fn what_fits_the_card_runs_side_by_side() -> anyhow::Result<()> {
    let (world, daemon) = World::of(Bytes::mib(256))?.with_daemon(&[])?;
    let mut programs = start_two(&world, &[Sharing::session("a"), Sharing::session("b")], Bytes::mib(64))?;
    daemon.until("both hold the card at once", |status| {
        status
            .gpus
            .iter()
            .any(|gpu| gpu.holders.len() == 2 && gpu.mode == Mode::Parallel)
    })?;
    are_sound(&mut programs)?;
    let gpu = &daemon.status()?.gpus[0];
    assert_eq!((gpu.handoffs, gpu.mode_changes), (0, 0));
    Ok(())
}

#[test]
fn what_does_not_fit_takes_turns_and_does_not_thrash() -> anyhow::Result<()> {
    // Pages of 2 MiB that both programs have together.
    let pages = 2 * HALF_TOO_MUCH.0 / Bytes::mib(2).0;
    let (with, turns) = {
        let (world, daemon) = World::of(CARD)?.with_daemon(&["--quantum", "200ms"])?;
        let managed = ["a", "b"].map(|name| Sharing::session(name).and(&["--backend", "managed"]));
        let mut programs = start_two(&world, &managed, HALF_TOO_MUCH)?;
        daemon.until("they take turns", |status| {
            status.gpus.iter().any(|gpu| gpu.mode == Mode::Serialized && gpu.handoffs >= 6)
        })?;
        are_sound(&mut programs)?;
        let gpu = &daemon.status()?.gpus[0];
        assert!(gpu.moved_bytes > Bytes::ZERO, "what a mover brought in is counted");
        (counters(&world)?, gpu.handoffs)
    };
    // A busy machine may bring memory in too late; then each turn faults at most one program's pages.
    assert!(with.prefetched_in >= with.fault_bytes, "most memory comes in before the turn begins");
    assert!(
        with.faults <= (turns + 2) * pages / 2,
        "{} faults of {pages} pages in {turns} turns",
        with.faults
    );
    // One program's memory in and one's out for each turn, and once more for the fill and the last look.
    let moved = with.fault_bytes + with.prefetched_in + with.evicted_bytes;
    assert!(moved <= (turns + 2) * 2 * HALF_TOO_MUCH.0, "{moved} bytes moved in {turns} turns");

    // Their work is no such that would not thrash.
    let world = World::of(CARD)?;
    let _programs = start_two(&world, &[Sharing::Native, Sharing::Native], HALF_TOO_MUCH)?;
    until("they thrash without gpushare", || Ok((counters(&world)?.faults >= 8 * pages).then_some(())))
}

#[test]
fn a_session_that_ends_its_overload_brings_everybody_back_side_by_side() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut a = Program::hold(&world, &Sharing::session("a"), "a")?;
    let mut b = Program::hold(&world, &Sharing::session("b"), "b")?;
    a.must("alloc x 40MiB")?;
    b.must("alloc x 40MiB")?;
    daemon.until("it is overloaded", |status| status.gpus[0].mode == Mode::Serialized)?;
    b.must("free x")?;
    daemon.until("it is not any more", |status| status.gpus[0].mode == Mode::Parallel)?;
    a.must("fill x 1")?;
    b.must("empty")?;
    Ok(())
}

#[test]
fn every_way_to_look_up_the_driver_meets_the_same_gate_and_books() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    for way in ["dlsym", "proc-address", "proc-address-per-thread"] {
        let mut command = world.workload(&Sharing::limited(way, Bytes::mib(16)));
        command.args(["--resolve", way]);
        let mut program = Program::begin(command, &world, way)?;
        program.ready()?;
        program.must("alloc x 12MiB; fill x 7; check x 7")?;
        let refused = program.ask("alloc y 6MiB")?;
        assert_eq!(refused.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"), "{way}");
        assert_eq!(daemon.session(way)?.gpus[0].allocated_bytes, Bytes::mib(12), "{way}");
        program.quit()?;
    }
    Ok(())
}

fn start_two(world: &World, how: &[Sharing; 2], memory: Bytes) -> anyhow::Result<[Training; 2]> {
    Ok([
        Training::start(world, &how[0], "a", memory, &LOAD)?,
        Training::start(world, &how[1], "b", memory, &LOAD)?,
    ])
}

/// Lets both programs end, and asserts that their memory was right.
fn are_sound(programs: &mut [Training; 2]) -> anyhow::Result<()> {
    for program in programs {
        assert_eq!(program.finish()?.corrupted, 0);
    }
    Ok(())
}

/// Counters of the card so far.
fn counters(world: &World) -> anyhow::Result<Counters> {
    let card = world.card().expect("a simulated world has a card");
    Ok(card.stats()?.total)
}

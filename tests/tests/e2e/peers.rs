//! Programs of which one card uses the memory of another.

use std::process::Command;

use gpushare_proto::GpuId;
use gpushare_tests::patience::until;
use gpushare_tests::{Artifacts, Daemon, Dialogue, Program, Sharing, World, foreign};

/// Block of which one fits a card.
const BLOCK_MIB: u64 = 160;

fn world(flags: &[&str]) -> anyhow::Result<(World, Daemon)> {
    let cards = ["--gpus", "2", "--memory", "256MiB"];
    World::with_card_flags(Artifacts::of_tests()?, &cards)?.with_daemon(flags)
}

/// A program of two cards that has remapped memory, of which the first one uses that of the second one.
fn peers(world: &World, sharing: &Sharing) -> anyhow::Result<Dialogue> {
    let mut command: Command = world.sharing(sharing, &foreign::program(world, "peers")?);
    command.arg(BLOCK_MIB.to_string()).env("CUDA_VISIBLE_DEVICES", "0,1");
    let mut program = Dialogue::start(world, command, "peers")?;
    assert_eq!(program.answer()?, "two blocks");
    assert_eq!(program.ask("enable")?, "peers");
    assert_eq!(program.ask("fill 7")?, "filled");
    assert_eq!(program.ask("read 7")?, "right");
    Ok(program)
}

#[test]
fn memory_is_advised_to_stay_on_its_card_and_to_be_reached_by_peers() -> anyhow::Result<()> {
    let flags = ["--gpus", "2", "--memory", "256MiB"];
    let (world, _daemon) = World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&[])?;
    let mut command = world.sharing(&Sharing::Preload, &foreign::program(&world, "peers")?);
    command.env(gpushare_proto::names::BACKEND, "managed");
    let mut program = Dialogue::start(&world, command, "peers")?;
    let pid = program.process.pid();
    let advice = || -> anyhow::Result<_> {
        let stats = world.card().expect("a simulated card").stats()?;
        let own = stats.processes.into_iter().find(|known| known.pid == pid);
        let counters = own.expect("the program is on the card").counters;
        Ok((counters.advised_location, counters.advised_access))
    };
    assert_eq!(program.answer()?, "two blocks");
    assert_eq!(advice()?, (2, 0));
    assert_eq!(program.ask("enable")?, "peers");
    assert_eq!(advice()?, (2, 1), "the block of the second device");
    assert_eq!(program.ask("allocate")?, "three blocks");
    assert_eq!(advice()?, (3, 2));
    program.end()
}

/// The block of the second card leaves for another program, and each time it comes back the first card reaches it.
#[test]
fn memory_that_a_peer_uses_leaves_its_card_and_comes_back_within_reach() -> anyhow::Result<()> {
    let (world, daemon) = world(&["--host-budget", "2GiB"])?;
    let remaps = |name: &str| Sharing::session(name).and(&["--backend", "remap", "--paranoid"]);
    let mut program = peers(&world, &remaps("peers"))?;
    let mut rival = Program::hold_with(&world, &remaps("rival"), "rival", "CUDA_VISIBLE_DEVICES", "1")?;
    rival.must(&format!("alloc x {BLOCK_MIB}MiB"))?;
    for word in 8..11 {
        rival.must(&format!("fill x {word}; sync; check x {word}"))?;
        until("the block has left the second card", || {
            let place = daemon.residence_on("peers", GpuId(1))?;
            Ok((!place.hosted_bytes.is_zero()).then_some(()))
        })?;
        assert_eq!(program.ask(&format!("read {}", word - 1))?, "right");
        assert_eq!(program.ask(&format!("fill {word}"))?, "filled");
        assert_eq!(program.ask(&format!("read {word}"))?, "right");
    }
    rival.must("check x 10")?;
    let stderr = program.process.stderr();
    assert!(!stderr.contains("paranoid"), "{stderr}");
    program.end()
}

#[test]
fn a_process_with_peers_is_not_frozen() -> anyhow::Result<()> {
    let (world, daemon) = world(&[])?;
    let mut program = peers(&world, &Sharing::session("a").and(&["--backend", "remap"]))?;
    super::freezing_obstacles::is_kept_warm_by(&daemon, "a", "it reaches the memory of another card")?;
    assert_eq!(program.ask("read 7")?, "right");
    program.end()
}

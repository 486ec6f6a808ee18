//! Bug 6: thirty-two processes race for the last block of a quota. Never is more given than the quota has,
//! exactly one wins, and nobody is refused while room exists, also where that room lies unused in the page
//! of somebody who is stopped.

use gpushare_proto::Bytes;
use gpushare_tests::{Artifacts, Daemon, Program, World};
use rustix::process::Signal;

use crate::tenants::session_of;

const OUT_OF_MEMORY: Option<&str> = Some("CUDA_ERROR_OUT_OF_MEMORY");
const RACERS: usize = 32;
const BLOCK: Bytes = Bytes::mib(2);
/// One block more than each racer has of its own.
const QUOTA: Bytes = Bytes::mib(2 * (RACERS as u64 + 1));
/// Every fourth of them is stopped where some are.
const STOPPED_OF: usize = 4;

fn world() -> anyhow::Result<World> {
    World::for_crowds(Artifacts::of_tests()?)
}

fn allocated(daemon: &Daemon) -> anyhow::Result<Bytes> {
    Ok(daemon.session("race")?.gpus[0].allocated_bytes)
}

/// All of them ask at once for one block each; who got it. None is left out of the count.
fn race(racers: &mut [Program], door: &str) -> anyhow::Result<Vec<usize>> {
    let tickets = racers
        .iter_mut()
        .map(|racer| racer.tell(&format!("alloc last {BLOCK} --door {door}")))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let mut winners = Vec::new();
    for (number, ticket) in tickets.into_iter().enumerate() {
        match racers[number].answer(ticket)?.error() {
            None => winners.push(number),
            error => assert_eq!(error, OUT_OF_MEMORY, "racer {number} by {door}"),
        }
    }
    Ok(winners)
}

#[test]
fn exactly_one_of_thirty_two_gets_the_last_block() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let mut racers = session_of(&world, "race", QUOTA, RACERS)?;
    for racer in &mut racers {
        racer.must(&format!("alloc own {BLOCK}"))?;
    }
    for door in ["mem", "managed", "handle", "mem", "array", "pitch", "mem"] {
        let winners = race(&mut racers, door)?;
        assert_eq!(winners.len(), 1, "{winners:?} got the last block by {door}");
        assert_eq!(allocated(&daemon)?, QUOTA, "{door}");
        // From now on it lies unused with the winner, who is in the next race or is stopped before it.
        racers[winners[0]].must("free last")?;
    }
    Ok(())
}

/// The unused last block is in the page of a process that answers nobody.
#[test]
fn the_last_block_is_taken_out_of_the_page_of_a_stopped_sibling() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let mut racers = session_of(&world, "race", QUOTA, RACERS)?;
    for racer in &mut racers {
        racer.must(&format!("alloc own {BLOCK}"))?;
    }
    for round in 0..5 {
        let keeper = round * 7 % RACERS;
        racers[keeper].must(&format!("alloc last {BLOCK}"))?;
        racers[keeper].must("free last")?;
        racers[keeper].process().signal(Signal::STOP)?;
        let mut stopped = racers.remove(keeper);
        let winners = race(&mut racers, "mem")?;
        assert_eq!(winners.len(), 1, "{winners:?} got what racer {keeper} left unused");
        assert_eq!(allocated(&daemon)?, QUOTA);
        stopped.process().signal(Signal::CONT)?;
        // What was taken from it is gone for it too.
        assert_eq!(stopped.ask(&format!("alloc last {BLOCK}"))?.error(), OUT_OF_MEMORY);
        racers[winners[0]].must("free last")?;
        stopped.must(&format!("alloc last {BLOCK}; free last"))?;
        racers.insert(keeper, stopped);
    }
    Ok(())
}

#[test]
fn a_whole_quota_that_lies_unused_with_stopped_and_running_siblings_is_there_for_one() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let mut racers = session_of(&world, "race", QUOTA, RACERS + 1)?;
    let mut asker = racers.remove(0);
    for _ in 0..3 {
        for racer in &mut racers {
            racer.must(&format!("alloc own {BLOCK}"))?;
        }
        for racer in &mut racers {
            racer.must("free own")?;
        }
        for racer in racers.iter().step_by(STOPPED_OF) {
            racer.process().signal(Signal::STOP)?;
        }
        asker.must(&format!("alloc all {QUOTA}"))?;
        assert_eq!(asker.ask("alloc more 4KiB")?.error(), OUT_OF_MEMORY);
        assert_eq!(allocated(&daemon)?, QUOTA);
        for racer in racers.iter().step_by(STOPPED_OF) {
            racer.process().signal(Signal::CONT)?;
        }
        asker.must("free all")?;
    }
    Ok(())
}

/// Processes allocate and free as fast as they can. Whenever the test looks, the quota holds both in the
/// daemon's books and in the bytes that the card has given out.
#[test]
fn a_quota_holds_at_every_moment_of_a_race() -> anyhow::Result<()> {
    let (world, daemon) = world()?.with_daemon(&[])?;
    let mut racers = session_of(&world, "race", QUOTA, RACERS)?;
    let mut tickets = Vec::new();
    for round in 0..10 {
        for (number, racer) in racers.iter_mut().enumerate() {
            // More than a thirty-second of the quota each, so that some are refused all the time.
            let size = Bytes::mib(2 + (number as u64 + round) % 5);
            tickets.push((number, racer.tell(&format!("alloc x{round} {size}"))?));
            tickets.push((number, racer.tell(&format!("free x{round}"))?));
        }
        let session = daemon.session("race")?;
        assert!(session.gpus[0].allocated_bytes <= QUOTA, "{session:?}");
    }
    let mut given = 0;
    for (number, ticket) in tickets {
        given += usize::from(racers[number].answer(ticket)?.error().is_none());
    }
    assert!(given > 0, "nobody was given anything");
    let peak = daemon.session("race")?.gpus[0].peak_bytes;
    assert!(peak <= QUOTA, "{peak} were allocated at once");
    assert_eq!(allocated(&daemon)?, Bytes::ZERO);
    racers[0].must(&format!("alloc all {QUOTA}"))?;
    Ok(())
}

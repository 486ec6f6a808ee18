//! How fast managed memory comes to a full card: two programs without gpushare prefetch their own memory in turn. The
//! other one sends what has no room to the host meanwhile, as gpushare has the leaver of a handoff do.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_tests::program::Program;
use gpushare_tests::world::{Sharing, World};

/// How often each of them does.
const ROUNDS: u32 = 3;

/// Bytes a second that come in where as many go out.
pub(super) fn rate(world: &World, memory: Bytes) -> anyhow::Result<Bytes> {
    let mut programs = ["first", "second"]
        .map(|name| Program::hold(world, &Sharing::Native, name))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let card = world.card().context("there is no simulated card")?;
    let constants = card.stats()?.constants;
    let capacity = Bytes(constants.memory - 2 * constants.context_memory);
    // What came in first leaves first.
    let leaves = (memory + memory - capacity).min(memory);
    let stays = (memory - leaves).max(Bytes(1));
    for program in &mut programs {
        program
            .must(&format!("alloc a {}B --door managed; alloc b {}B --door managed", leaves.0, stays.0))?;
    }
    // Everything is where it is after a round.
    let (mut bytes, mut time) = (0, Duration::ZERO);
    for round in 0..=ROUNDS {
        for entrant in [0, 1] {
            let leaver = 1 - entrant;
            let (before, begun) = (card.stats()?.total.prefetched_in, Instant::now());
            // Both begin at once, as at a grant.
            let comes = ["prefetch a", "prefetch b", "sync"].map(|step| programs[entrant].tell(step));
            let leaves = programs[leaver].tell("prefetch a --to-host")?;
            for step in comes {
                programs[entrant].done(step?)?;
            }
            if round > 0 {
                bytes += card.stats()?.total.prefetched_in - before;
                time += begun.elapsed();
            }
            programs[leaver].done(leaves)?;
            programs[leaver].must("sync")?;
        }
    }
    for program in &mut programs {
        program.quit()?;
    }
    ensure!(bytes > 0, "no memory moved: both programs fit the card");
    Ok(Bytes((bytes as f64 / time.as_secs_f64()) as u64))
}

/// The time that so much takes at this rate.
pub(super) fn time(bytes: Bytes, rate: Bytes) -> Duration {
    Duration::from_secs_f64(bytes.0 as f64 / rate.0 as f64)
}

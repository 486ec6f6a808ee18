//! What contexts take is measured, on a card whose daemon assumes much more of them.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context;
use gpushare_core::Event;
use gpushare_proto::Bytes;
use gpushare_tests::{Daemon, Program, Sharing, World};
use simgpu_card::constants::Constants;

use crate::recordings::{events_of, replay};

const CARD: Bytes = Bytes::mib(64);
const ASSUMED: Bytes = Bytes::mib(6);

fn world() -> anyhow::Result<World> {
    let world = World::of(CARD)?;
    let config = world.scheduler_config().context("no configuration")?;
    fs::write(config, format!("[scheduling]\ncontext_reserve = \"{ASSUMED}\"\n"))?;
    Ok(world)
}

fn context() -> Bytes {
    Bytes(Constants::default().context_memory)
}

#[test]
fn a_small_card_is_usable_with_the_reserve_of_a_large_one() -> anyhow::Result<()> {
    let world = World::of(Bytes::mib(256))?;
    let config = world.scheduler_config().context("no configuration")?;
    fs::write(config, "[scheduling]\ncontext_reserve = \"700MiB\"\n")?;
    let (_world, daemon) = world.clone().with_daemon(&[])?;
    let mut a = Program::hold(&world, &Sharing::session("a"), "a")?;
    a.must("alloc x 128MiB; fill x 1; check x 1")?;
    let page = daemon.ctl(&["status", "--verbose"])?;
    assert!(
        page.contains("gpu0: capacity 256MiB less ") && page.contains("another program can use "),
        "{page}"
    );
    Ok(())
}

#[test]
fn a_context_takes_what_is_measured_of_it_whatever_the_process_allocates() -> anyhow::Result<()> {
    let world = world()?;
    let file = world.folder().join("recording");
    let mut daemon = Daemon::start(&world, &["--record", file.to_str().context("no text")?])?;
    let managed = |name: &str| Sharing::session(name).and(&["--backend", "managed"]);
    let mut a = Program::hold(&world, &managed("a"), "a")?;
    daemon.until("a's context is measured", |status| status.gpus[0].capacity_bytes == CARD - context())?;

    // Managed memory is not in the figure. What cannot move takes room, whether the daemon was told of it yet or measured it.
    a.must("alloc x 16MiB; fill x 1; sync; alloc y 8MiB --door async")?;
    let mut b = Program::hold(&world, &managed("b"), "b")?;
    b.must("alloc x 4MiB")?;
    daemon.until("b's context is measured too", |status| {
        status.gpus[0].capacity_bytes == CARD - Bytes::mib(8) - context() - context()
    })?;

    b.quit()?;
    daemon.until("nothing is left of b's", |status| {
        status.gpus[0].capacity_bytes == CARD - Bytes::mib(8) - context()
    })?;
    a.quit()?;
    daemon.until("nothing is left of a's", |status| status.gpus[0].capacity_bytes == CARD)?;

    assert!(daemon.stop()?.success());
    let (header, events, _) = events_of(&world, "recording")?;
    let mut first = BTreeMap::new();
    for handled in &events {
        if let Event::Overhead { client, bytes, .. } = handled.event {
            first.entry(client).or_insert(bytes);
        }
    }
    assert_eq!(first.into_values().collect::<Vec<_>>(), [Some(context()); 2]);
    replay(&header, &events);
    Ok(())
}

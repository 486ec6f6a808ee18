//! What a daemon records is what it did.

use std::fs;

use anyhow::Context as _;
use gpushare_core::harness::Harness;
use gpushare_core::log::{Chain, Fingerprint, Handled, Header, Line, Link};
use gpushare_core::{Effect, Event, Notice};
use gpushare_proto::Bytes;
use gpushare_tests::{Daemon, Program, Sharing, Training, World, patience};

const CARD: Bytes = Bytes::mib(64);

#[test]
fn a_recorded_run_replays_to_the_same_effects_and_breaks_no_rule() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let file = world.folder().join("recording");
    let flags = ["--quantum", "100ms", "--record", file.to_str().unwrap()];
    let mut daemon = Daemon::start(&world, &flags)?;

    // Turns, a refusal, a death with memory, and a life with the daemon's death in it.
    let load = ["--steps", "30", "--compute", "2ms"];
    let mut runs = Vec::new();
    for name in ["a", "b"] {
        runs.push(Training::start(&world, &Sharing::session(name), name, Bytes::mib(48), &load)?);
    }
    for run in &mut runs {
        assert_eq!(run.report()?.corrupted, 0);
    }
    let limited = Sharing::limited("c", Bytes::mib(16));
    let mut small = Program::hold(&world, &limited, "c")?;
    assert_eq!(small.ask("alloc x 32MiB")?.error(), Some("CUDA_ERROR_OUT_OF_MEMORY"));
    small.must("alloc x 12MiB")?;
    small.kill()?;
    let mut survivor = Program::hold(&world, &Sharing::session("d"), "d")?;
    survivor.must("alloc y 8MiB")?;
    // Who joins is on the disk a moment later. The rows are JSON.
    let row = format!("\"process\":{{\"pid\":{},", survivor.process().pid());
    patience::until("the survivor is in the registry", || {
        let registry = fs::read(world.runtime_dir().registry())?;
        Ok(String::from_utf8_lossy(&registry).contains(&row).then_some(()))
    })?;
    daemon.kill()?;
    daemon.restart()?;
    daemon.until("the survivor is back", |status| {
        status.sessions.iter().any(|session| session.clients.len() == 1)
    })?;
    survivor.must("fill y 7")?;
    survivor.quit()?;
    assert!(daemon.stop()?.success());

    let killed = events_of(&world, "recording.1")?;
    let effects = replay(&killed.0, &killed.1);
    let notices: Vec<&Notice> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Notice(notice) => Some(notice),
            _ => None,
        })
        .collect();
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Granted { .. })));
    assert!(notices.iter().any(|notice| matches!(notice, Notice::Refused { .. })));

    let (header, events, end) = events_of(&world, "recording")?;
    assert_eq!(end.as_deref(), Some("the daemon ended"));
    assert_eq!(header.expected.len(), 1, "it waited for the survivor");
    let effects = replay(&header, &events);
    let recovered = |effect: &Effect| matches!(effect, Effect::Notice(Notice::Recovered { .. }));
    assert!(effects.iter().any(recovered));
    Ok(())
}

#[test]
fn a_recording_holds_no_secret_and_no_name() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let file = world.folder().join("recording");
    let mut daemon = Daemon::start(&world, &["--record", file.to_str().unwrap()])?;
    let mut program = Program::hold(&world, &Sharing::session("very-private"), "p")?;
    // The rows are JSON, and the session was on the disk before its program knew of it.
    let registry = fs::read(world.runtime_dir().registry())?;
    let registry = String::from_utf8_lossy(&registry);
    let (_, rest) = registry.split_once("\"token\":").context("no token")?;
    let token = rest.split_inclusive(']').next().unwrap_or_default();
    assert!(token.len() > 32, "{token}");
    program.quit()?;
    daemon.stop()?;
    let text = fs::read_to_string(&file)?;
    assert!(!text.contains(token) && !text.contains("very-private"), "{text}");
    Ok(())
}

/// A recording's header, its events, and its last words.
pub(crate) fn events_of(world: &World, name: &str) -> anyhow::Result<(Header, Vec<Handled>, Option<String>)> {
    let text = fs::read_to_string(world.folder().join(name))?;
    // A daemon that is killed may leave half a line.
    let whole = &text[..=text.rfind('\n').expect("a line")];
    let (mut header, mut events, mut end) = (None, Vec::new(), None);
    let mut chain = Chain::default();
    for line in whole.lines() {
        let link: Link = serde_json::from_str(line)?;
        chain = chain.with(&link.line);
        assert_eq!(link.chain, chain, "{line}");
        match link.line {
            Line::Header(found) => header = Some(*found),
            Line::Handled(handled) => events.push(handled),
            Line::End { reason } => end = Some(reason),
        }
    }
    let header = header.expect("a header");
    assert!(events.iter().any(|handled| matches!(handled.event, Event::ClientJoined { .. })));
    Ok((header, events, end))
}

/// All effects of a replay that does what the daemon did and breaks no rule.
pub(crate) fn replay(header: &Header, events: &[Handled]) -> Vec<Effect> {
    let mut machine = Harness::new(header.machine(), header.started);
    let mut all = Vec::new();
    for handled in events {
        assert!(machine.now <= handled.now, "{handled:?}");
        machine.now = handled.now;
        let (effects, rules) = machine.step(handled.event);
        assert_eq!(handled.effects, Some(Fingerprint::of(&effects)), "{handled:?}: {effects:?}");
        assert_eq!(rules, Ok(()), "{handled:?}");
        all.extend(effects);
    }
    all
}

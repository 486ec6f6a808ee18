//! Pictures of turns: three programs on the simulated card, and the events that the daemon told meanwhile.
//!
//! ```text
//!   programs ─▶ daemon ─▶ gpushare-ctl watch --json ─▶ turns.jsonl ─▶ turns.svg, handoff.svg
//! ```
//!
//! Two programs fit together on the card. A third one does not fit beside them, so all take turns until it
//! has ended.

use std::path::PathBuf;
use std::time::Duration;
use std::{fs, thread};

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_proto::admin::{Mode, WatchEvent, WatchEventKind as Kind};
use gpushare_tests::daemon::Daemon;
use gpushare_tests::training::Training;
use gpushare_tests::world::{Sharing, World};

use super::docs;
use super::timeline::Timeline;
use crate::output::progress;
use crate::programs;
use crate::scenario::watch::Watch;

const CARD: Bytes = Bytes::mib(256);
/// Length of a turn. It is fixed, so that some seconds show several turns.
const QUANTUM: &str = "400ms";
/// Time for which the first two programs are shown alone, before and after the third.
const ALONE: Duration = Duration::from_millis(1200);

/// Runs the programs, and writes the log and both pictures.
pub(super) fn make() -> anyhow::Result<Vec<PathBuf>> {
    progress("three programs take turns on the simulated card");
    let events = run()?;
    let folder = docs().join("figures");
    let lines = events.iter().map(|event| Ok(serde_json::to_string(event)? + "\n"));
    let log: String = lines.collect::<anyhow::Result<_>>()?;
    let mut files = vec![(folder.join("turns.jsonl"), log)];
    files.extend(pictures(&events)?.map(|(name, svg)| (folder.join(name), svg)));
    for (file, text) in &files {
        fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(files.into_iter().map(|(file, _)| file).collect())
}

/// Draws the events.
fn pictures(events: &[WatchEvent]) -> anyhow::Result<[(&'static str, String); 2]> {
    let timeline = Timeline::of(events);
    let handoff = timeline.longest_handoff().context("the log has no handoff")?;
    Ok([
        ("turns.svg", timeline.draw("Three programs on one card", timeline.whole())),
        ("handoff.svg", timeline.draw("One handoff of the card", handoff)),
    ])
}

/// Runs the programs and returns the events that the pictures show.
fn run() -> anyhow::Result<Vec<WatchEvent>> {
    let world = World::simulated(&programs::debug()?, CARD)?;
    let daemon = Daemon::start(&world, &["--quantum", QUANTUM])?;
    let watch = Watch::start(&world)?;
    let start = |name: &str, mib, flags: &[&str]| {
        let managed = Sharing::session(name).and(&["--backend", "managed"]);
        Training::start(&world, &managed, name, Bytes::mib(mib), flags)
    };
    let steps = "1000000";
    let mut ana = start("ana-notebook", 72, &["--steps", steps, "--compute", "60ms", "--every", "700ms"])?;
    let mut bob = start("bob-train", 136, &["--steps", steps, "--compute", "20ms"])?;
    let both = |mode| {
        daemon.until("two programs side by side", |status| {
            let ready = status.sessions.iter().filter(|session| !session.gpus.is_empty()).count();
            ready == 2 && status.gpus.iter().all(|gpu| gpu.mode == mode)
        })
    };
    both(Mode::Parallel)?;
    thread::sleep(ALONE);
    start("cem-train", 136, &["--steps", "90", "--compute", "20ms"])?.report()?;
    both(Mode::Parallel)?;
    thread::sleep(ALONE);
    ana.kill()?;
    bob.kill()?;
    daemon.until("the end of both sessions", |status| status.sessions.is_empty())?;
    let events = watch.events()?;
    let shown = |event: &WatchEvent| {
        matches!(
            event.what,
            Kind::ModeChanged { .. }
                | Kind::SessionBegan { .. }
                | Kind::SessionEnded { .. }
                | Kind::Turned { .. }
        )
    };
    Ok(events.into_iter().filter(shown).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_pictures_are_those_of_the_committed_log() {
        let folder = docs().join("figures");
        let log = fs::read_to_string(folder.join("turns.jsonl")).unwrap();
        let events: Vec<WatchEvent> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        for (name, svg) in pictures(&events).unwrap() {
            let committed = fs::read_to_string(folder.join(name)).unwrap();
            assert!(
                committed == svg,
                "{name} differs from the log; run `cargo xtask book figures` and commit it"
            );
        }
    }
}

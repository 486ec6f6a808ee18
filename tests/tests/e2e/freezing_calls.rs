//! A call of each family thaws a frozen program, and its result is right.
//!
//! The program makes its context current once, and then no call but that of the line. So the thaw is the work of the
//! first call that a line makes, and not of `cuCtxSetCurrent` before it.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, ensure};
use gpushare_proto::Bytes;
use gpushare_proto::admin::LockView;
use gpushare_tests::patience::until;
use gpushare_tests::{Administrator, Answer, Daemon, Program, World};
use rustix::process::Signal;

use super::freezing::{CARD, freeze, is_running, program, session, world};

const SESSION: &str = "a";

/// A call for which the program is frozen once: the line that makes it, lines that show its effect, and what the last
/// answer says. A line that fails, or finds other memory than it names, is never right.
type Family = (&'static str, &'static str, &'static str);

/// Families that the suite for real cards freezes a program for, too.
const FAMILIES: &str = include_str!("freezing_calls.txt");

/// Returns the families of the file. What has no call has its lines only.
fn families() -> impl Iterator<Item = Family> {
    let lines = FAMILIES.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| {
        let mut columns = line.splitn(3, '|').map(str::trim);
        let mut column = || columns.next().unwrap_or_default();
        (column(), column(), column())
    })
}

/// Whether an answer says what a family wants, and so many bytes of the session were freed: names with their values or
/// bounds, by commas.
fn says(answer: &Answer, freed: Bytes, wanted: &str) -> bool {
    let value = |word: &str| match answer.json().get(word) {
        Some(said) => said.as_f64().or(said.as_bool().map(|is_so| f64::from(u8::from(is_so)))),
        None if word == "card" => Some(CARD.0 as f64),
        None if word == "freed" => Some(freed.0 as f64),
        None if word == "true" => Some(1.0),
        None => word.parse().ok(),
    };
    let holds = |part: &str| {
        let mut words = part.split_ascii_whitespace();
        let (Some(one), Some(sign), Some(other)) = (words.next(), words.next(), words.next()) else {
            return false;
        };
        let (Some(one), Some(other)) = (value(one), value(other)) else { return false };
        match sign {
            "=" => one == other,
            ">" => one > other,
            ">=" => one >= other,
            _ => false,
        }
    };
    wanted.is_empty() || wanted.split(',').all(holds)
}

/// Calls that thaw a native program. For remapped memory gpushare may answer them itself, and then thaws nobody.
const OF_TABLES: &[Family] = &[
    ("segment-properties v", "", "kind = 1"),
    ("release-segment v", "check v 3", ""),
    ("unmap-segment v", "free-segment v", "freed > 0"),
    ("range y", "", "bytes = 1048576"),
];

/// Calls about memory by handle that is mapped nowhere. A remapped program that has such memory is not frozen.
const UNMAPPED: &[Family] =
    &[("make-segment u 2MiB 1", "", ""), ("map-segment u", "fill u 3; check u 3", "")];

/// Calls after most of which the program cannot be frozen any more. Each has a program of its own.
const LAST: &[Family] = &[
    ("ipc x", "", ""),
    ("export-segment v", "", ""),
    ("map-again v u", "fill u 3; check v 3", ""),
    ("alloc a 2MiB --door host-handle", "", "address > 0"),
    ("alloc a 1MiB --door managed", "fill a 3; check a 3", ""),
];

/// Bytes that the session has on the card. The program makes no call for that.
fn allocated(daemon: &Daemon) -> anyhow::Result<Bytes> {
    Ok(daemon.session(SESSION)?.gpus.iter().map(|gpu| gpu.allocated_bytes).sum())
}

/// Makes a call of a frozen program, and asserts that its result is right and the program has its memory. Returns
/// whether the program was thawed right after the call.
fn thaws(
    world: &World,
    daemon: &Daemon,
    program: &mut Program,
    (call, effect, wanted): Family,
) -> anyhow::Result<bool> {
    let pid = program.process().pid();
    let had = allocated(daemon)?;
    freeze(world, daemon, SESSION, pid)?;
    let mut last = program.must(call)?;
    let is_thawed = is_running(world, pid)?;
    if is_thawed {
        let status = Administrator::of(&world.runtime_dir())?.status()?;
        ensure!(status.sessions[0].lock != LockView::Frozen, "the session is shown as frozen");
    }
    if !effect.is_empty() {
        last = program.must(effect)?;
    }
    until("the answer is right, and the memory freed", || {
        Ok(says(&last, had - allocated(daemon)?, wanted).then_some(()))
    })
    .with_context(|| format!("{last:?} does not say {wanted}"))?;
    program.must("check x 7")?;
    Ok(is_thawed)
}

fn a_call_of_each_family_thaws(backend: &str) -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let is_native = backend == "native";
    let mut one = Program::hold(&world, &session(SESSION, backend), SESSION)?;
    for (_, before, _) in families().filter(|family| family.0.is_empty()) {
        one.must(before)?;
    }
    one.must("stay")?;
    let mut is_thawed_by =
        |family: Family| thaws(&world, &daemon, &mut one, family).with_context(|| family.0);
    let unmapped = if is_native { UNMAPPED } else { &[] };
    for family in families().filter(|family| !family.0.is_empty()).chain(unmapped.iter().copied()) {
        ensure!(is_thawed_by(family)?, "{} has thawed nobody", family.0);
    }
    for &family in OF_TABLES {
        ensure!(is_thawed_by(family)? || !is_native, "{} has thawed nobody", family.0);
    }
    let pid = one.process().pid();
    freeze(&world, &daemon, SESSION, pid)?;
    one.must("look y")?;
    ensure!(!is_running(&world, pid)?, "a line without a call of the driver has thawed it");
    one.tell("exit")?;
    let ended = one.quit()?;
    ensure!(ended.success(), "exit while it was frozen: {ended}");
    Ok(())
}

#[test]
fn a_call_of_each_family_thaws_a_frozen_remapped_program() -> anyhow::Result<()> {
    a_call_of_each_family_thaws("remap")
}

#[test]
fn a_call_of_each_family_thaws_a_frozen_native_program() -> anyhow::Result<()> {
    a_call_of_each_family_thaws("native")
}

#[test]
fn calls_that_may_keep_a_program_warm_thaw_it_before() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    for backend in ["remap", "native"] {
        for &family in LAST {
            let mut one = Program::hold(&world, &session(SESSION, backend), SESSION)?;
            one.must("alloc x 4MiB; fill x 7; segment v 2MiB 1; sync; stay")?;
            let is_thawed = thaws(&world, &daemon, &mut one, family).with_context(|| family.0)?;
            ensure!(is_thawed, "{} has thawed nobody", family.0);
            one.kill()?;
            daemon.until("its session ends", |status| status.sessions.is_empty())?;
        }
    }
    Ok(())
}

#[test]
fn a_frozen_program_without_a_handler_ends_at_sigterm() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    for backend in ["remap", "native"] {
        let mut one = program(&world, SESSION, backend)?;
        freeze(&world, &daemon, SESSION, one.process().pid())?;
        one.process().signal(Signal::TERM)?;
        let ended = one.quit()?;
        assert_eq!(ended.signal(), Some(Signal::TERM.as_raw()), "{ended}");
        daemon.until("its session ends", |status| status.sessions.is_empty())?;
    }
    Ok(())
}

//! A call of each family thaws a frozen program, and its result is right.
//!
//! The program makes its context current once, and then no call but that of the line. So the thaw is the work of the
//! first call that a line makes, and not of `cuCtxSetCurrent` before it.

use std::os::unix::process::ExitStatusExt;

use anyhow::{Context, ensure};
use gpushare_proto::admin::LockView;
use gpushare_tests::{Administrator, Answer, Daemon, Program, World};
use rustix::process::Signal;

use super::freezing::{CARD, freeze, is_running, program, session, world};

const SESSION: &str = "a";

/// Calls for which the program is frozen once: the line that makes them, lines that show their effect, and whether the
/// last answer is right. A line that fails, or finds other memory than it names, is never right.
type Family = (&'static str, &'static str, fn(&Answer) -> bool);

/// The lines alone show that the result is right.
const DONE: fn(&Answer) -> bool = |_| true;
const FINISHED: fn(&Answer) -> bool = |said| said.flag("finished");

/// `x` keeps its sevens. `w` is reserved addresses, `e` and `f` are events with 2 ms between them, `g` is a graph, and
/// `t` makes another one.
const BEFORE: &str = "alloc x 4MiB; fill x 7; alloc y 1MiB; alloc z 1MiB; fill y 1; stream s; \
                      segment w 2MiB 1; unmap-segment w; release-segment w; \
                      event e; event f; record e; spin 2ms; record f; \
                      capture s; add y 1 --on s; end-capture s g; \
                      capture s; add y 2 --on s; end-capture s t --template; sync; stay";

/// `CU_DEVICE_ATTRIBUTE_WARP_SIZE` of each card.
const WARP_SIZE: u64 = 32;

/// In this order, since a family uses what those before it made.
const FAMILIES: &[Family] = &[
    // Memory of the card.
    ("alloc a 1MiB", "fill a 3; check a 3", DONE),
    ("free a", "alloc a 1MiB; fill a 4; check a 4; free a", DONE),
    ("alloc a 1MiB --door pitch", "fill a 3; check a 3; free a", DONE),
    ("alloc a 1MiB --door async", "fill a 3; check a 3", DONE),
    ("free-async a", "sync", DONE),
    ("alloc a 1MiB --door pool", "fill a 3; check a 3; free-async a; sync", DONE),
    ("destroy-pool", "alloc a 1MiB --door pool; fill a 3; check a 3; free-async a; sync", DONE),
    ("alloc a 1MiB --door graph", "fill a 3; check a 3; free a", DONE),
    ("trim-graphs", "", DONE),
    ("alloc a 1MiB --door array", "", |said| said.number("address") != 0),
    ("free a", "", DONE),
    ("alloc a 1MiB --door mipmap", "", |said| said.number("address") != 0),
    ("free a", "", DONE),
    // Memory by handle.
    ("alloc a 2MiB --door handle", "fill a 3; check a 3", DONE),
    ("free a", "", DONE),
    ("make-segment v 2MiB 1", "map-segment v; fill v 3; check v 3", DONE),
    ("allow-segment v", "check v 3", DONE),
    ("unmap-segment v", "map-segment v; check v 3", DONE),
    ("free-segment w", "", DONE),
    // Memory of the host.
    ("alloc a 64KiB --door host", "attributes a", |said| said.number("memory_type") == 1),
    ("free a", "", DONE),
    ("alloc a 64KiB --door registered", "attributes a", |said| said.number("memory_type") == 1),
    ("free a", "", DONE),
    // Copies and memset.
    ("put y 2", "check y 2", DONE),
    ("get y", "", |said| (said.number("first"), said.number("last")) == (2, 2)),
    ("copy y z", "check z 2", DONE),
    ("put y 3 --async --on s", "sync s; check y 3", DONE),
    ("fetch y", "sync; look y", |said| (said.number("first"), said.number("last")) == (3, 3)),
    ("set y 4", "check y 4", DONE),
    ("set y 5 --async --on s", "sync s; check y 5", DONE),
    // Launches.
    ("fill y 6", "check y 6", DONE),
    ("fill y 7 --door ex", "check y 7", DONE),
    ("fill y 8 --door cooperative", "check y 8", DONE),
    ("latch l --on s", "open l; sync s", DONE),
    ("load y 9", "check y 9", DONE),
    // Graphs.
    ("replay g --on s", "sync s; check y 10", DONE),
    ("update g t", "replay g --on s; sync s; check y 12", DONE),
    ("instantiate t h", "replay h --on s; sync s; check y 14", DONE),
    ("graph-destroy h", "", DONE),
    ("capture s", "add y 1 --on s; end-capture s h; replay h --on s; sync s; check y 15", DONE),
    // Streams.
    ("stream o", "fill y 2 --on o; sync o; check y 2", DONE),
    ("sync o", "", DONE),
    ("sync", "", DONE),
    ("stream-query o", "", FINISHED),
    ("wait-event f --on o", "sync o", DONE),
    ("write-value y 2 --on o", "sync o; check y 2", DONE),
    ("wait-value y 2 --on o", "sync o", DONE),
    ("stream-destroy o", "", DONE),
    // Events.
    ("elapsed e f", "", |said| said.json()["elapsed_ms"].as_f64().is_some_and(|time| time >= 2.0)),
    ("event n", "record n; event-sync n", DONE),
    ("record n", "event-sync n; event-query n", FINISHED),
    ("event-query n", "", FINISHED),
    ("event-sync n", "", DONE),
    ("event-destroy n", "", DONE),
    // Questions.
    ("mem-info", "", |said| (1..=said.number("total_bytes")).contains(&said.number("free_bytes"))),
    ("attributes y", "", |said| (said.number("memory_type"), said.number("range_bytes")) == (2, 1 << 20)),
    ("buffer-id y", "", |said| said.number("number") != 0),
    ("device-attribute 10", "", |said| said.number("value") == WARP_SIZE),
    ("total-mem", "", |said| said.number("total_bytes") == CARD.0),
    ("facts", "", |said| said.number("total_bytes") == CARD.0),
    // Contexts.
    ("enter", "current", DONE),
    ("make c", "alloc-in c a 1MiB; free a", DONE),
    ("end c", "current", DONE),
    ("current", "", DONE),
];

/// Calls that thaw a native program. For remapped memory gpushare may answer them itself, and then thaws nobody.
const OF_TABLES: &[Family] = &[
    ("segment-properties v", "", |said| said.number("kind") == 1),
    ("release-segment v", "check v 3", DONE),
    ("unmap-segment v", "free-segment v", DONE),
    ("range y", "", |said| said.number("bytes") == 1 << 20),
];

/// Calls about memory by handle that is mapped nowhere. A remapped program that has such memory is not frozen.
const UNMAPPED: &[Family] =
    &[("make-segment u 2MiB 1", "", DONE), ("map-segment u", "fill u 3; check u 3", DONE)];

/// Calls after most of which the program cannot be frozen any more. Each has a program of its own.
const LAST: &[Family] = &[
    ("ipc x", "", |said| said.text("handle").len() == 128),
    ("export-segment v", "", DONE),
    ("map-again v u", "fill u 3; check v 3", DONE),
    ("alloc a 2MiB --door host-handle", "", |said| said.number("address") != 0),
    ("alloc a 1MiB --door managed", "fill a 3; check a 3", DONE),
];

/// Makes a call of a frozen program, and asserts that its result is right and the program has its memory. Returns
/// whether the program was thawed right after the call.
fn thaws(
    world: &World,
    daemon: &Daemon,
    program: &mut Program,
    &(call, effect, is_right): &Family,
) -> anyhow::Result<bool> {
    let pid = program.process().pid();
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
    ensure!(is_right(&last), "{last:?}");
    program.must("check x 7")?;
    Ok(is_thawed)
}

fn a_call_of_each_family_thaws(backend: &str) -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let is_native = backend == "native";
    let mut one = Program::hold(&world, &session(SESSION, backend), SESSION)?;
    one.must(BEFORE)?;
    let mut is_thawed_by =
        |family: &Family| thaws(&world, &daemon, &mut one, family).with_context(|| family.0);
    for family in FAMILIES.iter().chain(if is_native { UNMAPPED } else { &[] }) {
        ensure!(is_thawed_by(family)?, "{} has thawed nobody", family.0);
    }
    for family in OF_TABLES {
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
        for family in LAST {
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

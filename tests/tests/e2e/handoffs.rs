//! Handoffs of remapped memory under the real scheduler: two programs that do not fit the card together take turns.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use gpushare_proto::admin::{WatchEvent, WatchEventKind};
use gpushare_proto::handoff::{Direction, EndedHandoff, Handoff};
use gpushare_proto::{Bytes, Nanos, SessionId};
use gpushare_tests::patience::until;
use gpushare_tests::{Artifacts, Daemon, Part, Process, Program, Sharing, World};

const CARD: Bytes = Bytes::mib(512);
/// Memory of one program: three quarters of the card.
const EACH: Bytes = Bytes::mib(384);
/// Size of the chunks of small moves, by which more may leave than must.
const CHUNK: Bytes = Bytes::mib(32);
/// Bytes beside the capacity, for two chunks that are under way.
const SPARE: Bytes = Bytes::mib(8);
/// Bytes by which programs use less than [`EACH`], and by which goals are rounded.
const SMALL: Bytes = Bytes::mib(20);
/// Longest time for one handoff. The model moves 1 GiB in a fraction of a second, and the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn world() -> anyhow::Result<(World, Daemon)> {
    World::of(CARD)?.with_daemon(&["--host-budget", "2GiB"])
}

/// A card on a slow bus, so that a handoff takes some seconds and can be met half-way.
fn slow_world() -> anyhow::Result<(World, Daemon)> {
    world_at(Bytes::mib(100))
}

/// A card on a bus that moves so many bytes a second.
fn world_at(rate: Bytes) -> anyhow::Result<(World, Daemon)> {
    let mut flags = vec!["--memory".to_owned(), CARD.0.to_string()];
    for way in ["--pinned-in-rate", "--pinned-out-rate", "--pinned-both-rate"] {
        flags.extend([way.to_owned(), rate.0.to_string()]);
    }
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    World::with_card_flags(Artifacts::of_tests()?, &flags)?.with_daemon(&["--host-budget", "2GiB"])
}

/// Begins a program that has [`EACH`] of remapped memory, in three blocks that are filled with `fill` and more.
fn program(world: &World, name: &str, fill: u8) -> anyhow::Result<Program> {
    let sharing = Sharing::session(name).and(&["--backend", "remap", "--paranoid"]);
    let mut program = Program::hold(world, &sharing, name)?;
    program.must("alloc x 128MiB; alloc y 128MiB; alloc z 120MiB; alloc c 1MiB")?;
    rewrite(&mut program, fill)?;
    Ok(program)
}

/// Writes other contents to all blocks, so that they must be copied when they leave.
fn rewrite(program: &mut Program, fill: u8) -> anyhow::Result<()> {
    program.must(&format!("fill x {fill}; fill y {}; fill z {}; sync", fill + 1, fill + 2))?;
    Ok(())
}

/// Checks the contents of all blocks, which needs them on the card.
fn check(program: &mut Program, fill: u8) -> anyhow::Result<()> {
    let lines = format!("check x {fill}; check y {}; check z {}", fill + 1, fill + 2);
    for line in lines.split("; ") {
        let ticket = program.tell(line)?;
        let answer = program.answer_within(ticket, PATIENCE)?;
        anyhow::ensure!(answer.flag("matches"), "{line}: {:?}", answer.json());
    }
    Ok(())
}

/// Bytes of device memory of each process on the card.
fn on_card(world: &World) -> anyhow::Result<BTreeMap<u32, Bytes>> {
    let stats = world.card().context("a simulated card")?.stats()?;
    let living = stats.processes.iter().filter(|process| process.alive);
    Ok(living.map(|process| (process.pid, Bytes(process.device_bytes))).collect())
}

/// Waits until no memory moves, and returns the bytes of each session on the card and in host memory.
fn settled(daemon: &Daemon) -> anyhow::Result<[(Bytes, Bytes); 2]> {
    until("no memory moves", || {
        let places = [daemon.residence("a")?, daemon.residence("b")?];
        let rests = places.iter().all(|place| place.moving_bytes.is_zero());
        Ok(rests.then(|| places.map(|place| (place.resident_bytes, place.hosted_bytes))))
    })
}

#[test]
fn two_programs_that_need_more_than_the_card_take_turns_with_right_contents() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
    for round in 0..3 {
        for (program, fill) in [(&mut a, 10), (&mut b, 20)] {
            check(program, fill).with_context(|| format!("round {round}"))?;
            let bytes = on_card(&world)?;
            let all: Bytes = bytes.values().copied().sum();
            assert!(all <= CARD, "{bytes:?}");
            assert!(bytes[&program.process().pid()] >= EACH - Bytes::mib(16), "{bytes:?}");
        }
        // Only the excess has left: what one has on the card and what the other has fill its capacity.
        let most = daemon.status()?.gpus[0].capacity_bytes + SPARE;
        let [(a_on, a_off), (b_on, b_off)] = settled(&daemon)?;
        assert!(a_on + b_on <= most && a_on + b_on + CHUNK + SMALL > most, "{a_on} and {b_on} of {most}");
        assert_eq!(b_off, Bytes::ZERO);
        assert!(a_on + a_off >= EACH - SMALL && a_on + a_off <= EACH, "{a_on} and {a_off}");
    }
    let status = daemon.ctl(&["status", "--verbose"])?;
    assert!(status.contains("IN HOST MEMORY"), "{status}");
    for program in [&a, &b] {
        let stderr = program.process().stderr();
        assert!(!stderr.contains("paranoid"), "work was found in flight: {stderr}");
    }
    Ok(())
}

/// Its memory comes to the card with its turn.
#[test]
fn a_program_allocates_before_its_first_turn_while_another_one_works() -> anyhow::Result<()> {
    let turns = ["--mode", "serialized", "--quantum", "10min", "--host-budget", "2GiB"];
    let (world, daemon) = World::of(Bytes::mib(64))?.with_daemon(&turns)?;
    let remaps = |name: &str| Sharing::session(name).and(&["--backend", "remap"]);
    let mut a = Program::hold(&world, &remaps("a"), "a")?;
    a.must("alloc x 40MiB; fill x 1; alloc stop 4KiB; set stop 0; stream s; spin 10min --until stop --on s")?;
    let mut b = Program::hold(&world, &remaps("b"), "b")?;
    b.must("alloc y 40MiB; alloc z 4KiB; free z")?;
    let holder = |status: &gpushare_proto::admin::Status| status.gpus[0].holders.clone();
    let b_id = daemon.session("b")?.session;
    assert!(!holder(&daemon.status()?).contains(&b_id), "it had no turn");
    let fill = b.tell("fill y 2")?;
    a.must("write-value stop 1")?;
    b.done(fill)?;
    b.must("check y 2")?;
    a.must("check x 1")?;
    Ok(())
}

/// A program on a card of 64 MiB that asks the daemon for each allocation.
fn program_on_a_small_card() -> anyhow::Result<(Daemon, Program)> {
    let world = World::of(Bytes::mib(64))?;
    world.add_setting("lease_chunk = '0B'")?;
    let (world, daemon) = world.with_daemon(&["--host-budget", "1GiB"])?;
    let a = Program::hold(&world, &Sharing::session("a").and(&["--backend", "remap"]), "a")?;
    Ok((daemon, a))
}

#[test]
fn an_unused_shared_block_makes_way_for_a_larger_one() -> anyhow::Result<()> {
    let (_daemon, mut a) = program_on_a_small_card()?;
    a.must("alloc w 8MiB; alloc x 8MiB; alloc y 8MiB; alloc z 8MiB")?;
    a.must("free w; free x; free y; free z; alloc large 44MiB; fill large 3; check large 3")?;
    Ok(())
}

/// The last of the shared blocks takes all that the card has left, and has room for one piece more.
#[test]
fn a_piece_of_a_shared_block_is_granted_where_the_card_has_no_room_for_another_block() -> anyhow::Result<()> {
    let (daemon, mut a) = program_on_a_small_card()?;
    let mut chunks = Bytes::ZERO;
    for number in 1..=6 {
        a.must(&format!("alloc x{number} 8MiB; fill x{number} {number}; sync"))
            .with_context(|| format!("piece {number}"))?;
        let used = Bytes::mib(8 * number);
        until("the daemon knows the chunks", || {
            chunks = daemon.residence("a")?.resident_bytes;
            Ok((chunks >= used).then_some(()))
        })?;
    }
    assert!(chunks >= Bytes::mib(56), "the card has no room for a block more: {chunks}");
    a.must("check x1 1; check x6 6")?;
    Ok(())
}

/// Each block takes 10 MiB of the card. The program gets them while it is alone, or while its gate is closed and its
/// memory is away.
#[test]
fn blocks_that_are_rounded_up_have_room_while_the_gate_is_open_and_while_it_is_closed() -> anyhow::Result<()>
{
    let block = Bytes::mib(8) + Bytes(4096);
    for (alone, later, theirs) in [(200, 0, 1), (20, 180, 4)] {
        let (world, daemon) = World::of(Bytes::gib(3))?.with_daemon(&["--host-budget", "6GiB"])?;
        let remaps = |name: &str| Sharing::session(name).and(&["--backend", "remap"]);
        let mut a = Program::hold(&world, &remaps("a"), "a")?;
        let mut b = Program::hold(&world, &remaps("b"), "b")?;
        a.must("alloc first 512MiB; fill first 1; sync")?;
        for number in 0..alone {
            a.must(&format!("alloc x{number} {}", block.0))
                .with_context(|| format!("block {number}"))?;
        }
        // What was allocated between two turns has memory from the next one on.
        a.must("fill x0 1; sync")?;
        for number in 0..theirs {
            b.must(&format!("alloc y{number} 600MiB"))?;
        }
        let turn = b.tell("fill y0 1")?;
        b.done_within(turn, PATIENCE)?;
        until("memory is away", || Ok((!daemon.residence("a")?.hosted_bytes.is_zero()).then_some(())))?;
        for number in alone..alone + later {
            a.must(&format!("alloc x{number} {}", block.0))
                .with_context(|| format!("block {number}"))?;
        }
        b.kill()?;
        let ticket = a.tell("check first 1")?;
        assert!(a.answer_within(ticket, PATIENCE)?.flag("matches"));
        a.must("fill x0 3; fill x199 4; check x0 3; check x199 4")?;
        let whole = Bytes::mib(512 + 200 * 10);
        let here = on_card(&world)?[&a.process().pid()];
        assert!(here >= whole && here < whole + SMALL, "{here} of {whole}");
        assert_eq!(daemon.session("a")?.gpus[0].allocated_bytes, Bytes::mib(512) + Bytes(200 * block.0));
    }
    Ok(())
}

#[test]
fn memory_that_did_not_change_leaves_without_a_copy() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let remaps = |name: &str| Sharing::session(name).and(&["--backend", "remap"]);
    let mut weights = Program::hold(&world, &remaps("a"), "a")?;
    weights.must("alloc x 128MiB; alloc y 128MiB; alloc z 120MiB; fill x 1; fill y 2; fill z 3; sync")?;
    let mut other = Program::hold(&world, &remaps("b"), "b")?;
    other.must("alloc x 376MiB; fill x 9; sync")?;
    let copied = |program: &Program| -> anyhow::Result<u64> {
        let stats = world.card().context("a simulated card")?.stats()?;
        let pid = program.process().pid();
        let process = stats.processes.iter().find(|process| process.pid == pid);
        let counters = &process.context("the program")?.counters;
        Ok(counters.downloaded_bytes + counters.copied_bytes)
    };
    settled(&daemon)?;
    let first = copied(&weights)?;
    assert!(first >= Bytes::mib(224).0, "the other program needs its room, and {first} were copied");
    let mut turn = |line: &str| -> anyhow::Result<u64> {
        weights.must(line)?;
        let before = copied(&weights)?;
        other.must("check x 9")?;
        settled(&daemon)?;
        let hosted = daemon.residence("a")?.hosted_bytes;
        assert!(hosted >= Bytes::mib(224), "only {hosted} had to leave");
        Ok(copied(&weights)? - before)
    };
    // What stayed until now may have to leave for the first time.
    turn("check x 1")?;
    for _ in 0..3 {
        assert_eq!(turn("check x 1; check y 2; check z 3")?, 0, "the host has the same bytes");
    }
    let again = turn("fill x 4; fill y 5; fill z 6; sync")?;
    assert!(again >= Bytes::mib(192).0, "all has changed, and {again} were copied");
    weights.must("check x 4; check y 5; check z 6")?;
    Ok(())
}

/// A program that shares nothing takes all that the card has left.
#[test]
fn another_program_gives_what_the_card_lacks_although_no_account_shows_it() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let remaps = |name: &str| Sharing::session(name).and(&["--backend", "remap"]);
    let mut idle = Program::hold(&world, &remaps("b"), "b")?;
    idle.must("alloc y 224MiB; fill y 2; sync")?;
    let mut a = Program::hold(&world, &remaps("a"), "a")?;
    a.must("alloc x 160MiB; fill x 1; sync")?;
    let mut unseen = Program::hold(&world, &Sharing::Native, "unseen")?;
    let mut blocks = 0;
    while unseen.ask(&format!("alloc u{blocks} 4MiB"))?.error().is_none() {
        blocks += 1;
    }
    assert!((16..32).contains(&blocks), "{blocks} blocks, and a card of this size may lack 32");
    let capacity = daemon.status()?.gpus[0].capacity_bytes;
    assert!(capacity >= Bytes::mib(224 + 160 + 64), "the accounts have room: {capacity}");
    a.must("alloc z 64MiB; fill z 3; check x 1; check z 3")?;
    let hosted = daemon.residence("b")?.hosted_bytes;
    assert!(hosted >= Bytes::mib(32), "{hosted} of the idle program are away");
    for (name, line) in [("b", "check y 2"), ("a", "check z 3"), ("b", "check y 2")] {
        let program = if name == "a" { &mut a } else { &mut idle };
        let ticket = program.tell(line)?;
        assert!(program.answer_within(ticket, PATIENCE)?.flag("matches"), "{line}");
    }
    Ok(())
}

/// Touching and registering host memory takes longer than a copy, so a program that rests does it before its
/// memory must leave.
#[test]
fn a_program_that_rests_prepares_host_memory_ahead() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut a = program(&world, "a", 10)?;
    let mut b = Program::hold(&world, &Sharing::session("b").and(&["--backend", "remap"]), "b")?;
    b.must("alloc x 64MiB; fill x 20; sync")?;
    let regions = || -> anyhow::Result<u64> {
        Ok(world.card().context("a simulated card")?.stats()?.host_bytes / Bytes::mib(128).0)
    };
    assert_eq!(regions()?, 0, "both run");
    daemon.ctl(&["session", "pause", "a"])?;
    until("the paused one has prepared", || Ok((regions()? == 1).then_some(())))?;
    assert_eq!(daemon.residence("a")?.hosted_bytes, Bytes::ZERO, "nothing had to leave");
    b.must("check x 20")?;
    daemon.ctl(&["session", "resume", "a"])?;
    check(&mut a, 10)
}

#[test]
fn a_program_that_is_killed_while_memory_moves_leaves_the_other_running() -> anyhow::Result<()> {
    for victim in ["the leaver", "the entrant"] {
        let (world, daemon) = slow_world()?;
        let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
        check(&mut a, 10)?;
        rewrite(&mut a, 30)?;
        let ticket = b.tell("check x 20")?;
        moves(&daemon, "b")?;
        let (dead, left, fill) = match victim {
            "the leaver" => (&mut a, &mut b, 20),
            _ => (&mut b, &mut a, 30),
        };
        dead.kill()?;
        if fill == 20 {
            assert!(left.answer_within(ticket, PATIENCE)?.flag("matches"), "{victim} was killed");
        }
        check(left, fill).with_context(|| format!("{victim} was killed"))?;
        // Another one gets the room of the dead.
        let mut c = program(&world, "c", 40)?;
        check(&mut c, 40)?;
    }
    Ok(())
}

#[test]
fn a_daemon_that_is_killed_while_memory_moves_loses_nothing() -> anyhow::Result<()> {
    let (world, mut daemon) = slow_world()?;
    let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
    check(&mut a, 10)?;
    rewrite(&mut a, 11)?;
    for (name, fill) in [("b", 20), ("a", 11), ("b", 21)] {
        let program = if name == "a" { &mut a } else { &mut b };
        let ticket = program.tell(&format!("check x {fill}"))?;
        moves(&daemon, name)?;
        daemon.kill()?;
        daemon.restart()?;
        assert!(program.answer_within(ticket, PATIENCE)?.flag("matches"), "{name}");
        check(program, fill)?;
        rewrite(program, fill + 1)?;
    }
    check(&mut a, 12)?;
    check(&mut b, 22)
}

/// The gate of a new daemon's page is closed under a word that was never granted.
#[test]
fn memory_of_an_idle_program_leaves_after_the_daemon_came_back() -> anyhow::Result<()> {
    let flags = ["--host-budget", "2GiB", "--mode", "time-sliced"];
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&flags)?;
    let mut a = program(&world, "a", 10)?;
    let mut small = Program::hold(&world, &Sharing::session("small"), "small")?;
    small.must("alloc x 1MiB; fill x 1; sync")?;
    let bytes = on_card(&world)?;
    assert!(bytes[&a.process().pid()] >= EACH - Bytes::mib(16), "a let go with all its memory: {bytes:?}");
    daemon.kill()?;
    daemon.restart()?;
    daemon.until("both are back", |status| status.daemon.recovering == 0 && status.sessions.len() == 2)?;
    let mut b = program(&world, "b", 20)?;
    check(&mut b, 20)?;
    check(&mut a, 10)
}

/// Waits until memory of a session comes in: some of it is on the card, and not all.
fn moves(daemon: &Daemon, name: &str) -> anyhow::Result<()> {
    until("memory moves", || {
        let place = daemon.residence(name)?;
        Ok((!place.moving_bytes.is_zero()).then_some(()))
    })
}

/// A `gpushare-ctl watch --json` that writes into a file.
struct Watcher {
    said: PathBuf,
    _process: Process,
}

impl Watcher {
    fn start(world: &World) -> anyhow::Result<Self> {
        let said = world.folder().join("watch.out");
        let mut command = world.part(Part::Ctl);
        command
            .args(["watch", "--json"])
            .stdin(Stdio::null())
            .stdout(fs::File::create(&said)?);
        let watcher = Self { _process: Process::start(command, world.folder(), "watch")?, said };
        until("the watch begins", || Ok((!watcher.events()?.is_empty()).then_some(())))?;
        Ok(watcher)
    }

    /// Events so far; a line that is not whole yet is none.
    fn events(&self) -> anyhow::Result<Vec<WatchEventKind>> {
        let text = fs::read_to_string(&self.said)?;
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let read = |line| Ok(serde_json::from_str::<WatchEvent>(line)?.what);
        whole.lines().map(read).collect()
    }

    fn handed_over(&self) -> anyhow::Result<Vec<Handoff>> {
        let ended = |event| match event {
            WatchEventKind::HandedOver(handoff) => Some(handoff),
            _ => None,
        };
        Ok(self.events()?.into_iter().filter_map(ended).collect())
    }
}

/// Bytes of a session that handoffs moved in one direction.
fn moved(handoffs: &[Handoff], way: fn(&Handoff) -> &Direction, session: SessionId) -> Bytes {
    let moves = handoffs.iter().flat_map(|handoff| &way(handoff).sessions);
    moves.filter(|of| of.session == session).map(|of| of.bytes).sum()
}

#[test]
fn the_events_of_a_handoff_tell_exactly_what_left_and_what_came_in() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
    let watcher = Watcher::start(&world)?;
    let [a_id, b_id] = [daemon.session("a")?.session, daemon.session("b")?.session];
    let mut known = 0;
    for round in 0..3 {
        check(&mut a, 10)?;
        let [(a_before, _), (b_before, b_lacks)] = settled(&daemon)?;
        // The handoffs so far, of which one after the first `known` brought memory of this session in.
        let told = |known: usize, id: SessionId| {
            until("the handoff is told", || {
                let all = watcher.handed_over()?;
                let mut into = all.iter().skip(known).flat_map(|handoff| &handoff.into.sessions);
                Ok(into.any(|of| of.session == id).then_some(all))
            })
        };
        if round > 0 {
            known = told(known, a_id)?.len();
        }
        check(&mut b, 20)?;
        let [(a_after, _), (b_after, b_off)] = settled(&daemon)?;
        let all = told(known, b_id)?;
        let handoffs = &all[known..];
        known = all.len();
        let said = || format!("round {round}: {handoffs:?}");
        assert_eq!(moved(handoffs, |handoff| &handoff.out, a_id), a_before - a_after, "{}", said());
        assert_eq!(moved(handoffs, |handoff| &handoff.into, b_id), b_after - b_before, "{}", said());
        assert_eq!((b_after - b_before, b_off), (b_lacks, Bytes::ZERO), "{}", said());
        let both = handoffs.iter().find(|handoff| handoff.into.bytes == b_lacks);
        let handoff = both.with_context(|| format!("one handoff brought all of it in: {}", said()))?;
        for way in [&handoff.out, &handoff.into] {
            assert!(!way.bytes_per_second.is_zero() && way.rest_bytes.is_zero(), "{}", said());
            assert!(way.took_ns <= handoff.took_ns && handoff.both_ns <= way.took_ns, "{}", said());
        }
        assert!(handoff.overlap.0 > 0 && handoff.overlap.0 <= 10_000, "{}", said());
    }
    let page = daemon.ctl(&["status"])?;
    assert!(page.contains("in host memory; last handoff: "), "{page}");
    let top: serde_json::Value = serde_json::from_str(&daemon.ctl(&["top", "--json"])?)?;
    let places = top["sessions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|session| &session["residences"][0]);
    let hosted: u64 = places.filter_map(|place| place["hosted_bytes"].as_u64()).sum();
    assert!(hosted > 0 && top["gpus"][0]["residence"]["hosted_bytes"] == hosted, "{top}");
    Ok(())
}

#[test]
fn a_session_is_told_its_last_handoff_after_later_ones_of_others() -> anyhow::Result<()> {
    let (world, daemon) = world()?;
    let mut programs = [program(&world, "a", 10)?, program(&world, "b", 20)?, program(&world, "c", 30)?];
    let a_id = daemon.session("a")?.session;
    let last = |words: &[&str]| -> anyhow::Result<Option<EndedHandoff>> {
        let said: serde_json::Value = serde_json::from_str(&daemon.ctl(words)?)?;
        Ok(serde_json::from_value(said["handoffs"][0]["last"].clone())?)
    };
    let is_of_a = |ended: &EndedHandoff| {
        let ways = [&ended.handoff.out, &ended.handoff.into];
        ways.iter().any(|way| way.sessions.iter().any(|of| of.session == a_id))
    };
    check(&mut programs[0], 10)?;
    until("a handoff that a has no part in is the card's last one", || {
        check(&mut programs[1], 20)?;
        check(&mut programs[2], 30)?;
        Ok(last(&["status", "--json"])?.filter(|ended| !is_of_a(ended)))
    })?;
    let own = last(&["explain", "a", "--json"])?.context("a is told none")?;
    assert!(is_of_a(&own), "{own:?}");
    let said = daemon.ctl(&["explain", "a"])?;
    assert!(said.contains("its last handoff on gpu0 ended "), "{said}");
    check(&mut programs[0], 10)
}

#[test]
fn a_handoff_that_lasts_longer_than_a_second_shows_its_progress() -> anyhow::Result<()> {
    let (world, daemon) = world_at(Bytes::mib(50))?;
    let (mut a, mut b) = (program(&world, "a", 10)?, program(&world, "b", 20)?);
    check(&mut a, 10)?;
    rewrite(&mut a, 30)?;
    settled(&daemon)?;
    let watcher = Watcher::start(&world)?;
    check(&mut b, 20)?;
    settled(&daemon)?;
    let events = until("the handoff is told", || {
        let events = watcher.events()?;
        let is_told = events.iter().any(|event| matches!(event, WatchEventKind::HandedOver(_)));
        Ok(is_told.then_some(events))
    })?;
    let running = events.iter().filter_map(|event| match event {
        WatchEventKind::HandingOver(handoff) => Some(handoff),
        _ => None,
    });
    let running: Vec<&Handoff> = running.collect();
    let all = events.iter().find_map(|event| match event {
        WatchEventKind::HandedOver(handoff) => Some(handoff),
        _ => None,
    });
    let all = all.context("it has ended")?;
    assert!(all.took_ns >= Nanos::from_secs(2), "the bus is slow: {all:?}");
    let seconds = all.took_ns.0 / 1_000_000_000;
    assert!((1..=seconds).contains(&(running.len() as u64)), "{running:?} of {all:?}");
    for (number, progress) in (1..).zip(&running) {
        assert!(progress.took_ns >= Nanos::from_secs(number), "{progress:?}");
        assert_eq!(progress.into.bytes + progress.into.rest_bytes, all.into.bytes, "{progress:?}");
    }
    // Later ones may find all memory created, while the last of it is copied.
    assert!(!running[0].into.rest_bytes.is_zero(), "{running:?}");
    assert!(running.is_sorted_by_key(|progress| progress.into.bytes), "{running:?}");
    Ok(())
}

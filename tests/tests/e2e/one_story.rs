//! One story about memory, whoever asks: CUDA or NVML, before the first context or after it, in a process
//! that computes or in one that only looks.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use gpushare_proto::{Bytes, names};
use gpushare_tests::process::Process;
use gpushare_tests::{Daemon, Dialogue, Part, Program, Sharing, World, foreign, output_of};

const CARD: Bytes = Bytes::mib(64);
const LIMIT: Bytes = Bytes::mib(16);

fn limited() -> Sharing {
    Sharing::limited("smi", LIMIT)
}

/// NVML found by `dlopen` and `dlsym`, and NVML linked.
fn both_ways(world: &World) -> anyhow::Result<[PathBuf; 2]> {
    let library = world.folder().join("lib/libnvidia-ml.so.1");
    let library = library.to_str().context("no text")?;
    Ok([
        foreign::program(world, "smi")?,
        foreign::compile(world, "smi.c", "smi-linked", &["-DLINKED", library, "-ldl"])?,
    ])
}

/// The program's lines without its own pid, and that pid.
fn said(text: &str) -> (Vec<String>, String) {
    let pid = text.lines().find_map(|line| line.strip_prefix("pid ")).unwrap_or_default();
    // Other numbers may hold the same digits: a pid is a word, or comes before what it has.
    let own = [format!(" {pid}="), format!(" {pid}")];
    let named = |line: &str| match line.strip_suffix(&own[1]) {
        Some(rest) => format!("{rest} PID"),
        None => line.replace(&own[0], " PID="),
    };
    let lines = text.lines().map(named).collect();
    (lines, pid.to_owned())
}

/// NVML's figures inside a session that has `used` on the card, and `own` processes.
fn picture(used: Bytes, own: &str) -> Vec<String> {
    let (total, free) = (LIMIT.0, (LIMIT - used).0);
    let count = usize::from(!own.is_empty());
    let used = used.0;
    let mut lines = vec![
        "GPU-73696d75-6c61-7465-6420-636172642000".to_owned(),
        format!(" memory total={total} used={used} free={free}"),
        format!(" memory_v2 total={total} used={used} free={free} sum=1 version=1 wrong=25"),
        format!(" processes={count} code={}", if count == 0 { 0 } else { 7 }),
    ];
    lines.extend(["v1", "v2", "v3"].map(|form| format!(" {form}{own}")));
    if count > 0 {
        lines.push(" instance -1 -1".to_owned());
    }
    lines.extend([" graphics".to_owned(), format!(" details{own}")]);
    lines
}

#[test]
fn nvml_and_cuda_show_a_session_its_limit_use_and_processes() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut neighbour = Program::hold(&world, &Sharing::session("neighbour"), "neighbour")?;
    neighbour.must("alloc x 8MiB; fill x 1; sync")?;
    for smi in both_ways(&world)? {
        let steps = ["pid", "nvml", "init", "total", "context", "total", "info", "alloc=4", "info", "nvml"];
        let (lines, _) = said(&foreign::run(&world, &limited(), &smi, &steps)?);
        let at = |line: &str| lines.iter().position(|said| said == line);
        let nvml: Vec<usize> = lines
            .iter()
            .enumerate()
            .filter(|(_, line)| line.starts_with("GPU-"))
            .map(|(at, _)| at)
            .collect();
        let [before, after] = nvml[..] else { panic!("{lines:?}") };
        let expected = picture(Bytes::ZERO, "");
        assert_eq!(lines[before..before + expected.len()], expected, "before CUDA");
        let totals = lines.iter().filter(|line| line.starts_with("device 0 ")).collect::<Vec<_>>();
        assert_eq!(totals.len(), 2);
        assert_eq!(totals[0], totals[1], "before and after the first context");
        assert!(totals[0].ends_with(&format!(" total={}", LIMIT.0)), "{totals:?}");
        assert!(at(&format!("info total={} free={}", LIMIT.0, LIMIT.0)).is_some(), "{lines:?}");
        assert!(
            at(&format!("info total={} free={}", LIMIT.0, (LIMIT - Bytes::mib(4)).0)).is_some(),
            "{lines:?}"
        );
        let expected = picture(Bytes::mib(4), &format!(" PID={}", Bytes::mib(4).0));
        assert_eq!(lines[after..after + expected.len()], expected, "with a context and memory");
        assert!(at(" accounting PID").is_some(), "{lines:?}");
    }
    Ok(())
}

#[test]
fn an_observing_process_sees_its_session_without_joining_it() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut neighbour = Program::hold(&world, &Sharing::session("neighbour"), "neighbour")?;
    neighbour.must("alloc x 8MiB")?;
    let mut holder = Program::hold(&world, &limited(), "holder")?;
    holder.must("alloc x 6MiB")?;
    for smi in both_ways(&world)? {
        let mut command = beside(&world, holder.process(), &smi)?;
        command.args(["nvml", "threads", "wait"]);
        let mut looking = Dialogue::start(&world, command, "looking")?;
        let lines = looking.answers_until("waits")?;
        let own = format!(" {}={}", holder.process().pid(), Bytes::mib(6).0);
        let expected = picture(Bytes::mib(6), &own);
        assert_eq!(lines[..expected.len()], expected);
        assert!(lines.contains(&"threads 1".to_owned()), "{lines:?}");
        assert_eq!(daemon.session("smi")?.clients.len(), 1, "the holder alone");
    }
    Ok(())
}

#[test]
fn outside_a_session_everything_is_as_without_gpushare() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut neighbour = Program::hold(&world, &Sharing::limited("neighbour", LIMIT), "neighbour")?;
    neighbour.must("alloc x 8MiB")?;
    for smi in both_ways(&world)? {
        let native = foreign::run(&world, &Sharing::Native, &smi, &["nvml", "threads"])?;
        assert!(native.contains(&format!(" {}=", neighbour.process().pid())), "{native}");
        assert_eq!(foreign::run(&world, &Sharing::Preload, &smi, &["nvml", "threads"])?, native);
    }
    Ok(())
}

#[test]
fn a_client_without_a_token_is_told_of_the_session_that_it_fell_into() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut neighbour = Program::hold(&world, &Sharing::session("neighbour"), "neighbour")?;
    neighbour.must("alloc x 8MiB")?;
    let smi = foreign::program(&world, "smi")?;
    let steps = ["pid", "context", "alloc=4", "nvml"];
    let (lines, _) = said(&foreign::run(&world, &Sharing::Preload, &smi, &steps)?);
    let (total, used) = (CARD.0, Bytes::mib(4).0);
    assert!(lines[2].starts_with(&format!(" memory total={total} used={used} ")), "{lines:?}");
    assert!(lines.contains(&format!(" v3 PID={used}")), "{lines:?}");
    Ok(())
}

#[test]
fn a_session_without_daemon_sees_the_whole_card() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let smi = foreign::program(&world, "smi")?;
    let steps = ["nvml", "init", "total", "threads"];
    let native = foreign::run(&world, &Sharing::Native, &smi, &steps)?;
    let token = world.folder().join("token");
    fs::write(&token, "ab".repeat(32))?;
    let asks = || {
        let mut command = world.sharing(&Sharing::Preload, &smi);
        command.args(steps).env(names::TOKEN_FILE, &token);
        let output = command.output()?;
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        anyhow::Ok(String::from_utf8(output.stdout)?)
    };
    assert_eq!(asks()?, native, "no daemon");
    let _daemon = Daemon::start(&world, &[])?;
    assert_eq!(asks()?, native, "a token that the daemon does not know");
    Ok(())
}

#[test]
fn figures_stay_the_same_while_the_daemon_is_away() -> anyhow::Result<()> {
    let (world, mut daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut holder = Program::hold(&world, &limited(), "holder")?;
    holder.must("alloc x 6MiB")?;
    let smi = foreign::program(&world, "smi")?;
    let mut command = beside(&world, holder.process(), &smi)?;
    command.args(["nvml", "wait", "nvml", "wait", "nvml", "wait"]);
    let mut looking = Dialogue::start(&world, command, "looking")?;
    let first = looking.answers_until("waits")?;
    daemon.kill()?;
    looking.tell("on")?;
    assert_eq!(looking.answers_until("waits")?, first);
    daemon.restart()?;
    daemon.until("the holder is back", |status| {
        status.sessions.iter().any(|session| session.clients.len() == 1)
    })?;
    looking.tell("on")?;
    let last = looking.answers_until("waits")?;
    assert_eq!(last[..2], first[..2]);
    Ok(())
}

#[test]
fn a_child_asks_for_itself_after_a_fork_before_cuda() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let smi = foreign::program(&world, "smi")?;
    let steps = ["nvml", "fork", "pid", "init", "total", "context", "alloc=4", "nvml"];
    let (lines, _) = said(&foreign::run(&world, &limited(), &smi, &steps)?);
    let after = lines.iter().rposition(|line| line.starts_with("GPU-")).context("no picture")?;
    let expected = picture(Bytes::mib(4), &format!(" PID={}", Bytes::mib(4).0));
    assert_eq!(lines[after..after + expected.len()], expected);
    daemon.until("nothing is left of it", |status| status.sessions.is_empty())?;
    Ok(())
}

#[test]
fn without_a_limit_the_card_keeps_its_size_and_free_is_what_it_can_back() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&["--capacity", "0=24MiB"])?;
    let smi = foreign::program(&world, "smi")?;
    let steps = ["init", "total", "context", "total", "alloc=4", "info", "nvml"];
    let text = foreign::run(&world, &Sharing::session("smi"), &smi, &steps)?;
    assert_eq!(text.matches(&format!("total={}\n", CARD.0)).count(), 2, "{text}");
    let free = (Bytes::mib(24) - Bytes::mib(4)).0;
    assert!(text.contains(&format!("info total={} free={free}\n", CARD.0)), "{text}");
    let used = Bytes::mib(4).0;
    assert!(text.contains(&format!(" memory total={} used={used} free={free}\n", CARD.0)), "{text}");
    assert!(text.contains(&format!(" memory_v2 total={} used={used} free={free} sum=1", CARD.0)), "{text}");
    Ok(())
}

#[test]
fn free_memory_stays_right_and_errors_stay_the_drivers() -> anyhow::Result<()> {
    let world = World::of(CARD)?;
    let program = foreign::program(&world, "figures")?;
    let native = foreign::run(&world, &Sharing::Native, &program, &[])?;
    let _daemon = Daemon::start(&world, &[])?;
    let shared = foreign::run(&world, &limited(), &program, &[])?;
    let (moments, code) = (|line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" "), 201);
    assert!(native.lines().map(moments).eq(shared.lines().map(moments)), "{native}\n{shared}");
    assert_eq!(shared.matches(&format!("a-context {code}\n")).count(), 2, "{shared}");
    let total = LIMIT.0 >> 10;
    let free: Vec<(&str, String)> = shared
        .lines()
        .filter_map(|line| {
            let (moment, figures) = line.split_once(" 0 ")?;
            Some((moment, figures.to_owned()))
        })
        .collect();
    let is = |less: u64| format!("{} {total}", total - less);
    let (all, some) = (is(0), is(4 << 10));
    let expected = [
        ("empty", &all),
        ("again", &all),
        ("allocated", &some),
        ("freed", &all),
        ("in-a-pool", &some),
        ("kept", &some),
        ("given-back", &all),
        ("in-a-pool", &some),
        ("kept", &some),
        ("given-back", &all),
        ("back", &all),
    ];
    assert_eq!(free, expected.map(|(moment, figures)| (moment, figures.clone())));
    Ok(())
}

#[test]
fn memory_of_other_sessions_is_not_reported_free() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--managed-limit", "40MiB"])?;
    let managed = |sharing: Sharing| sharing.and(&["--backend", "managed"]);
    let mut other = Program::hold(&world, &managed(Sharing::session("other")), "other")?;
    let mut own = Program::hold(&world, &managed(Sharing::limited("own", Bytes::mib(32))), "own")?;
    other.must("alloc x 24MiB")?;
    daemon.until("it is booked", |status| status.gpus[0].allocated_bytes == Bytes::mib(24))?;
    let told = own.must("mem-info")?;
    let told = ["total_bytes", "free_bytes"].map(|name| Bytes(told.number(name)));
    assert_eq!(told, [Bytes::mib(32), Bytes::mib(16)]);
    let smi = foreign::program(&world, "smi")?;
    let (limit, free) = (Bytes::mib(32).0, Bytes::mib(16).0);
    let inside = foreign::run(&world, &Sharing::limited("third", Bytes::mib(32)), &smi, &["nvml"])?;
    assert!(inside.contains(&format!(" memory total={limit} used=0 free={free}\n")), "{inside}");
    Ok(())
}

#[test]
fn the_driver_lists_only_processes_of_the_own_session_to_nvidia_smi() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let neighbour = Program::hold(&world, &Sharing::session("neighbour"), "neighbour")?;
    let holder = Program::hold(&world, &limited(), "holder")?;
    let driver = foreign::compile(&world, "control_answer.c", "control.so", &["-shared", "-fPIC"])?;
    let program = foreign::compile(&world, "control.c", "control", &[])?;
    let [neighbour, own] = [&neighbour, &holder].map(|program| program.process().pid().to_string());
    let everybody = format!("1 {neighbour} {own} 999999");
    let answer = |mut command: Command, ours: &str| {
        let preload = format!("{ours}:{}", driver.display());
        command.env("LD_PRELOAD", preload).env("ON_THE_CARD", &everybody);
        output_of(command)
    };
    let library = world.path(Part::Library).display().to_string();
    let expected = |list: &str| {
        format!(
            "list: 0, errno 77, status 0: {list}\n\
             another size: 0, errno 77, status 0: {everybody}\n\
             another question: 0, errno 77, status 0: {everybody}\n\
             a pipe: 0, errno 77, 3 bytes\n\
             no terminal: -1, errno 25\n\
             no file: -1, errno 9\n\
             without an argument: 0\n"
        )
    };
    assert_eq!(answer(world.program(&program), "")?, expected(&everybody), "native");
    assert_eq!(answer(world.program(&program), &library)?, expected(&everybody), "outside a session");
    assert_eq!(
        answer(beside(&world, holder.process(), &program)?, &library)?,
        expected(&own),
        "beside the holder"
    );
    Ok(())
}

/// The program as one more process of a member's session.
pub(super) fn beside(world: &World, member: &Process, program: &Path) -> anyhow::Result<Command> {
    let mut command = world.sharing(&Sharing::Preload, program);
    command.env(names::TOKEN_FILE, token_file(member)?);
    Ok(command)
}

/// The file with the token of a process's session.
pub(super) fn token_file(process: &Process) -> anyhow::Result<String> {
    let environment = fs::read(format!("/proc/{}/environ", process.pid()))?;
    let environment = String::from_utf8(environment)?;
    let token = environment
        .split('\0')
        .find_map(|variable| variable.strip_prefix(names::TOKEN_FILE)?.strip_prefix('='));
    token.map(str::to_owned).context("the process has no token")
}

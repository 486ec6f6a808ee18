//! `cargo xtask chaos`: a daemon with sessions and programs on the simulated card, in which things break at
//! random.
//!
//! ```text
//!   seed ─▶ schedule ─▶ kill, stop, cut, fill, jump ... ─┐
//!   seed ─▶ crew: programs that allocate and compute ────┼─▶ daemon ─▶ status ─▶ books against what the living have
//!                                                        │                    ─▶ from a death to lock and bytes free
//!   peers that speak half, nonsense, or never read ──────┘
//! ```
//!
//! Promises: every byte that the daemon counts belongs to a living program, and the other way round; every
//! program answers; what a dead program had is free within 50 ms of the kernel's word, while the daemon
//! lives. The same seed gives the same schedule of faults and the same lines for each program; when each of
//! them is answered is the machine's affair.
//!
//! The machine's clock is left alone. A restarted daemon may find itself in a time namespace whose
//! monotonic clock is off by up to eleven days, forwards or, at the next restart, backwards.

use std::collections::VecDeque;
use std::process::{Command, ExitCode, Output};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use anyhow::{Context, bail, ensure};
use clap::Args;
use gpushare_proto::admin::{LockView, Status};
use gpushare_proto::names::RuntimeDir;
use gpushare_proto::{Bytes, Token};
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::dice::Dice;
use gpushare_tests::hangup::hang_up;
use gpushare_tests::peer::{Administrator, Tenant};
use gpushare_tests::world::World;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::Signal;
use serde_json::Value;

use crate::output::{progress, result};
use crate::programs;
use crate::promise::{Bound, Check, Effort};

mod crew;
mod disk;
mod report;
mod schedule;
mod strangers;

use crew::Crew;
use disk::Disk;
use report::Report;
use schedule::{Fault, Schedule};
use strangers::Lingering;

const CARD: Bytes = Bytes::mib(192);
const QUOTA: Bytes = Bytes::mib(96);
const SESSIONS: usize = 3;
const PROGRAMS_EACH: usize = 2;
/// How long books may take to be right when nothing happens any more: a program that lost its daemon comes
/// back at once, but a stopped one was continued only now.
const SETTLED: Duration = Duration::from_secs(10);

/// How long, and which run.
#[derive(Args)]
pub(crate) struct Options {
    /// How long things break
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Which run: the same seed breaks the same things at the same times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Break the debug build, as `cargo test` does, not a release build
    #[arg(long)]
    dev: bool,
    /// Be a peer that stops in the middle of a message: SEED:CARD:LINGERS
    #[arg(long, hide = true)]
    stranger: Option<String>,
}

pub(crate) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    if let Some(what) = &options.stranger {
        strangers::be_one(what)?;
        return Ok(ExitCode::SUCCESS);
    }
    disk::enter()?;
    let artifacts = match options.dev {
        true => Artifacts::of_tests()?.clone(),
        false => programs::release()?,
    };
    let mut report = break_things(&artifacts, options.seed, options.seconds)?;
    if !options.dev {
        report.judge_time();
    }
    result(&report, json)?;
    for sentence in &report.broken {
        progress(format_args!("BROKEN: {sentence}"));
    }
    Ok(if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Eight seconds of it on debug builds, for `ci-extra`.
pub(crate) fn check() -> anyhow::Result<()> {
    let output = apart(&["--dev", "--seconds", "8"])?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// Runs it as a command of its own, since it moves into a namespace.
fn apart(arguments: &[&str]) -> anyhow::Result<Output> {
    let mut command = Command::new(env::current_exe()?);
    Ok(command.args(["chaos", "--seed", "1", "--json"]).args(arguments).output()?)
}

pub(crate) const CHECK: Check = Check {
    name: "chaos",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("chaos: bytes lost", 0.0, "bytes"),
        Bound::at_most("chaos: programs that hung", 0.0, "programs"),
        Bound::at_most("chaos: corrupted buffers", 0.0, "buffers"),
        Bound::at_most("chaos: broken rules", 0.0, ""),
        Bound::at_least("chaos: recoveries from the death of a program", 50.0, ""),
        Bound::at_least("chaos: restarts of the daemon", 5.0, ""),
        Bound::at_most("chaos: p99 of a recovery / the quantum of 50 ms", 1.0, "×"),
    ],
    measure: || {
        let output = apart(&["--seconds", "60"])?;
        let report: Value = serde_json::from_slice(&output.stdout)
            .with_context(|| String::from_utf8_lossy(&output.stderr).trim().to_owned())?;
        let sentences = report["broken"].as_array().map_or(&[][..], Vec::as_slice);
        sentences
            .iter()
            .for_each(|sentence| progress(format_args!("BROKEN: {sentence}")));
        let value = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        Ok(vec![
            value("bytes_lost"),
            value("hung"),
            value("corrupted"),
            sentences.len() as f64,
            value("recoveries"),
            value("restarts"),
            value("recovery_p99_ms") / 50.0,
        ])
    },
};

/// The whole run on these programs.
fn break_things(artifacts: &Artifacts, seed: u64, seconds: u64) -> anyhow::Result<Report> {
    let world = World::simulated(artifacts, CARD)?;
    let disk = Disk::on(world.runtime_dir().root());
    let daemon = Daemon::start(&world, &["--quantum", "50ms"])?;
    let runtime = world.runtime_dir();
    let mut tool = Tenant::tool(&runtime)?;
    let tokens = (0..SESSIONS)
        .map(|number| Ok(tool.register(&name(number), QUOTA)?.1))
        .collect::<anyhow::Result<Vec<Token>>>()?;
    let crew = Crew::new(&world, &tokens, PROGRAMS_EACH)?;
    let schedule = Schedule::of(seed, crew.places.len(), Duration::from_secs(seconds));
    let jumps = disk::works("unshare", &["--time", "--monotonic", "5", "true"]);
    if !jumps {
        progress("no time namespace can be made here: clocks do not jump, their restarts are plain ones");
    }
    let mut chaos = Chaos {
        report: Report { disk: disk.kind(), seed, ..Report::default() },
        disk: &disk,
        crew: &crew,
        world: &world,
        runtime,
        jumps,
        daemon,
        desk: None,
        lingering: VecDeque::new(),
        recoveries: Vec::new(),
        restarts: Vec::new(),
        restarting: None,
    };
    thread::scope(|scope| {
        for number in 0..crew.places.len() {
            let dice = Dice::for_part(seed, 1 + number as u64);
            let (crew, world) = (&crew, &world);
            scope.spawn(move || crew.keep(world, number, dice));
        }
        let outcome = chaos.all(schedule);
        crew.over.store(true, Ordering::Relaxed);
        for place in &crew.places {
            place.signal(Signal::CONT);
        }
        outcome
    })?;
    chaos.end(&world)
}

fn name(session: usize) -> String {
    format!("chaos-{session}")
}

/// Thread that injects the faults, and all that it needs.
struct Chaos<'w> {
    report: Report,
    disk: &'w Disk,
    crew: &'w Crew,
    world: &'w World,
    runtime: RuntimeDir,
    jumps: bool,
    daemon: Daemon,
    /// Where status is asked for.
    desk: Option<Administrator>,
    lingering: VecDeque<Lingering>,
    recoveries: Vec<Duration>,
    restarts: Vec<Duration>,
    /// When the daemon died whose clients are not all back.
    restarting: Option<Instant>,
}

impl Chaos<'_> {
    fn all(&mut self, Schedule(schedule): Schedule) -> anyhow::Result<()> {
        let start = Instant::now();
        for (when, fault) in schedule {
            while start.elapsed() < when {
                self.look_for_return()?;
                let left = when.saturating_sub(start.elapsed());
                thread::sleep(left.min(Duration::from_millis(5)));
            }
            if let Some(kind) = fault.kind() {
                *self.report.faults.entry(kind).or_default() += 1;
            }
            let what = format!("{fault:?}");
            self.happen(fault).with_context(|| format!("{what} at {when:?}"))?;
            if self.daemon.ended()? {
                self.report
                    .broken
                    .push(format!("the daemon ended by itself after {what} at {when:?}"));
                self.desk = None;
                self.daemon.restart()?;
            }
        }
        self.checkpoint()
    }

    fn happen(&mut self, fault: Fault) -> anyhow::Result<()> {
        match fault {
            Fault::KillProgram(who) => self.kill(who)?,
            Fault::StopProgram(who) => self.crew.places[who].signal(Signal::STOP),
            Fault::ContinueProgram(who) => self.crew.places[who].signal(Signal::CONT),
            Fault::HangUpProgram(who, stops) => {
                let place = &self.crew.places[who];
                if stops {
                    place.signal(Signal::STOP);
                }
                if let Some((pid, _)) = place.process() {
                    // The program may be dead by now, or not connected yet.
                    let _ = hang_up(pid, &self.runtime);
                }
            }
            Fault::KillDaemon => self.restart(&[])?,
            Fault::JumpClock(_) if !self.jumps => self.restart(&[])?,
            Fault::JumpClock(seconds) => {
                self.restart(&["unshare", "--time", "--monotonic", &seconds.to_string()])?;
            }
            Fault::CutFrame(seed) => drop(self.half_a_frame(seed, false)?),
            Fault::LoseFrame(seed) => {
                let half = self.half_a_frame(seed, true)?;
                self.lingering.push_back(half);
            }
            Fault::Garbage(seed) => {
                // A peer that is hung up on in the middle of its noise is one that was dealt with.
                let _ = strangers::noise(&self.runtime, seed);
            }
            Fault::FillDisk => self.disk.fill()?,
            Fault::FreeDisk => self.disk.free(),
            Fault::SlowReader(seed) => {
                let slow = strangers::asks_and_never_reads(&self.runtime, seed)?;
                self.lingering.push_back(slow);
            }
            Fault::HangUp => drop(self.lingering.pop_front()),
            Fault::Checkpoint => self.checkpoint()?,
        }
        Ok(())
    }

    fn half_a_frame(&mut self, seed: u64, lingers: bool) -> anyhow::Result<Lingering> {
        let status = self.status()?;
        let card = status
            .gpus
            .first()
            .map_or(gpushare_proto::GpuUuid::gpu([7; 16]), |gpu| gpu.uuid);
        let token = &self.crew.tokens[Dice::new(seed).index(SESSIONS)];
        strangers::half_a_frame(self.world, token, card, seed, lingers)
    }

    /// How things are. A daemon that was restarted is asked on a new connection.
    fn status(&mut self) -> anyhow::Result<Status> {
        if let Some(desk) = &mut self.desk
            && let Ok(status) = desk.status()
        {
            return Ok(status);
        }
        let mut desk = Administrator::of(&self.runtime)?;
        let status = desk.status()?;
        self.desk = Some(desk);
        Ok(status)
    }

    /// Kills a program, and measures how long its lock and its bytes outlive it.
    fn kill(&mut self, who: usize) -> anyhow::Result<()> {
        let place = &self.crew.places[who];
        let before = self.status()?;
        let Some((pid, pidfd)) = place.kill() else {
            return Ok(());
        };
        let mut waited = [PollFd::new(&pidfd, PollFlags::IN)];
        poll(&mut waited, None)?;
        let died = Instant::now();
        let name = name(place.session);
        let is_there = |status: &Status| {
            let mut clients = status.sessions.iter().flat_map(|session| &session.clients);
            clients.any(|client| client.pid == pid)
        };
        if !is_there(&before) {
            return Ok(());
        }
        loop {
            let status = self.status()?;
            let session = status.sessions.iter().find(|session| session.name == name);
            // The last of a session leaves neither lock nor bytes.
            let is_clean = session.is_none_or(|session| {
                !session.clients.is_empty()
                    || (matches!(session.lock, LockView::Idle) && allocated(session) == Bytes::ZERO)
            });
            if !is_there(&status) && is_clean {
                self.recoveries.push(died.elapsed());
                return Ok(());
            }
            if died.elapsed() > SETTLED {
                self.report
                    .broken
                    .push(format!("pid {pid} is dead and still in the books after {SETTLED:?}"));
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn restart(&mut self, launcher: &[&str]) -> anyhow::Result<()> {
        self.desk = None;
        // A daemon that comes back waits for every client that lives: one that never says who it was holds up the rest,
        // by design, until it ends.
        self.lingering.retain(|peer| !matches!(peer, Lingering::Process(_)));
        self.restarting = Some(Instant::now());
        self.daemon.kill()?;
        self.daemon.restart_under(launcher)
    }

    /// Notes when all clients of the last daemon are back.
    fn look_for_return(&mut self) -> anyhow::Result<()> {
        if let Some(since) = self.restarting
            && self.status()?.daemon.recovering == 0
        {
            self.restarts.push(since.elapsed());
            self.restarting = None;
        }
        Ok(())
    }

    /// Pauses all programs, and compares the daemon's count with their memory.
    fn checkpoint(&mut self) -> anyhow::Result<()> {
        for place in &self.crew.places {
            place.signal(Signal::CONT);
        }
        let crew = self.crew;
        let pause = crew.gate.write().unwrap_or_else(PoisonError::into_inner);
        let (lost, found) = self.compare()?;
        drop(pause);
        self.report.checkpoints += 1;
        if lost > 0 {
            self.report.bytes_lost += lost;
            self.report.broken.push(found);
        }
        Ok(())
    }

    /// By how much the books are off, when they had time to be right, and a sentence that says where.
    fn compare(&mut self) -> anyhow::Result<(u64, String)> {
        let start = Instant::now();
        loop {
            let mut has = [Bytes::ZERO; SESSIONS];
            for place in &self.crew.places {
                has[place.session] += place.held();
            }
            let status = self.status()?;
            let said: Vec<Bytes> = (0..SESSIONS)
                .map(|number| {
                    let named = |session: &&gpushare_proto::admin::SessionView| session.name == name(number);
                    status.sessions.iter().find(named).map_or(Bytes::ZERO, allocated)
                })
                .collect();
            let off = |(a, b): (&Bytes, &Bytes)| a.0.abs_diff(b.0);
            let all: Bytes = status.gpus.iter().map(|gpu| gpu.allocated_bytes).sum();
            let strangers = all.0.abs_diff(said.iter().copied().sum::<Bytes>().0);
            let lost = said.iter().zip(&has).map(off).sum::<u64>() + strangers;
            let over: Vec<_> = has.iter().filter(|has| **has > QUOTA).collect();
            if !over.is_empty() {
                let sentence = format!("sessions with a quota of {QUOTA} have {over:?}");
                if !self.report.broken.contains(&sentence) {
                    self.report.broken.push(sentence);
                }
            }
            if lost == 0 || start.elapsed() > SETTLED {
                let clients: Vec<u32> = status
                    .sessions
                    .iter()
                    .flat_map(|session| session.clients.iter().map(|client| client.pid))
                    .collect();
                let places: Vec<_> = self
                    .crew
                    .places
                    .iter()
                    .map(|place| (place.session, place.process().map(|(pid, _)| pid), place.held()))
                    .collect();
                let sentence = format!(
                    "at checkpoint {} the books say {said:?}, {all} in all, and the programs have {has:?}: {places:?}; the \
                     daemon's clients are {clients:?}",
                    self.report.checkpoints + 1
                );
                return Ok((lost, sentence));
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// All programs are gone: the books are empty, the card too, and a whole quota is to be had in each
    /// session.
    fn end(mut self, world: &World) -> anyhow::Result<Report> {
        self.disk.free();
        self.lingering.clear();
        let (lost, found) = self.compare()?;
        if lost > 0 {
            self.report.bytes_lost += lost;
            self.report.broken.push(format!("when all were gone, {found}"));
        }
        let start = Instant::now();
        let card = world.card().context("there is no card")?;
        while card.stats()?.gpus.iter().any(|gpu| gpu.free != gpu.total) {
            if start.elapsed() > SETTLED {
                bail!("the card is not empty although all programs are gone");
            }
            thread::sleep(Duration::from_millis(5));
        }
        for session in 0..SESSIONS {
            let mut program = self.crew.begin(world, session, "last")?;
            let whole = program.ready().and_then(|()| program.must(&format!("alloc all {}", QUOTA.0)));
            if let Err(error) = whole {
                self.report
                    .broken
                    .push(format!("session {session} has not its whole quota in the end: {error:#}"));
            }
            program.kill()?;
        }
        let log = self.daemon.process().stderr();
        if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
            self.report.broken.push(format!("the daemon said: {line}"));
        }
        let said = &self.crew.said;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        self.report.answers = read(&said.answers);
        self.report.refusals = read(&said.refusals);
        self.report.corrupted = read(&said.corrupted);
        self.report.hung = read(&said.hung);
        let broken = said.broken.lock().unwrap_or_else(PoisonError::into_inner);
        self.report.broken.extend(broken.iter().cloned());
        self.report.recovered(std::mem::take(&mut self.recoveries));
        self.report.restarted(std::mem::take(&mut self.restarts));
        self.report.judge();
        if !self.report.broken.is_empty() {
            keep_logs(world);
        }
        Ok(self.report)
    }
}

fn allocated(session: &gpushare_proto::admin::SessionView) -> Bytes {
    session.gpus.iter().map(|gpu| gpu.allocated_bytes).sum()
}

/// Prints the logs of all processes, for the search of a reason.
fn keep_logs(world: &World) {
    let Ok(folder) = programs::results_folder().map(|folder| folder.join("chaos")) else {
        return;
    };
    let _ = fs::create_dir_all(&folder);
    for entry in fs::read_dir(world.folder()).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "err") {
            let _ = fs::copy(entry.path(), folder.join(entry.file_name()));
        }
    }
    progress(format_args!("logs are in {}", folder.display()));
}

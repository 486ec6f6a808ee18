//! Programs that are frozen and thawed again and again, while programs, the daemon and its helpers are killed at any
//! moment. After each cycle the program's memory is checked.
//!
//! ```text
//!   choose a program ─▶ session freeze ─▶ a call of some family ─▶ right?   and write new contents now and then
//!                            │                  │
//!                            │                  ├─ a program without gpushare takes all free memory for a moment
//!                            └──────────────────┴─ kill -9 of the program, the daemon or a helper
//! ```

use std::fs;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use gpushare_proto::Bytes;
use gpushare_tests::{Artifacts, Daemon, Dice, Program, Sharing, World};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::output::{progress, result};
use crate::programs;
use crate::promise::{Bound, Check, Effort};

const CARD: Bytes = Bytes::mib(128);
const PROGRAMS: usize = 3;
/// Memory of one program, in mebibytes.
const MEMORY: u64 = 24;
/// Longest time for one call. A program that takes longer hangs, and counts as lost.
const PATIENCE: Duration = Duration::from_secs(60);
/// One of so many freezes, and of so many thaws, meets a kill.
const KILLS: u64 = 6;
/// In one of so many thaws the card has no free memory for a moment.
const SHORTAGES: u64 = 10;
/// Longest time for which the card has none, in milliseconds. It is shorter than the time after which a process maps
/// memory from the host, as it could not be frozen from then on.
const LONGEST_SHORTAGE: u64 = 500;
const FLAGS: [&str; 4] = ["--quantum", "20ms", "--context-reserve", "2MiB"];
/// Calls of each family that bring a program back: through the gate, hooked otherwise, not hooked.
const CALLS: [&str; 5] =
    ["check x FILL", "alloc y 1MiB; free y", "event-query e", "sync", "stream s; stream-destroy s"];
/// Number of cycles after which the state is printed.
const LOOK: u64 = 50;

/// Cycles of the check.
const CHECKED: u64 = 200;

pub(super) const CHECK: Check = Check {
    name: "freeze",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most("programs that 200 freezes and thaws lose or corrupt", 0.0, "programs"),
        Bound::at_least("part of those cycles in which the program was frozen", 0.7, ""),
    ],
    measure: || {
        let outcome = freezes(&Options { cycles: CHECKED, seed: 1 })?;
        progress(&outcome);
        let lost = outcome.lost + outcome.corrupted;
        Ok(vec![lost as f64, outcome.frozen as f64 / outcome.cycles as f64])
    },
};

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Number of cycles of a freeze and a thaw
    #[arg(long, default_value_t = 100)]
    cycles: u64,
    /// Seed of the choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Result of all cycles.
#[derive(Clone, Debug, Default, Serialize)]
struct Outcome {
    seed: u64,
    /// Cycles in which a program was frozen, or was to be, and its memory was checked afterwards.
    cycles: u64,
    /// Cycles in which it was frozen.
    frozen: u64,
    /// Programs, daemons and helpers that were killed.
    kills: u64,
    program_kills: u64,
    daemon_kills: u64,
    helper_kills: u64,
    /// Frozen programs that were to come back while their card had no free memory.
    shortages: u64,
    /// Programs that ended, failed or hung although nobody killed them.
    lost: u64,
    /// Programs whose memory was wrong.
    corrupted: u64,
    seconds: f64,
}

/// Process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Program,
    Daemon,
    Helper,
}

struct Worker {
    name: String,
    program: Program,
    fill: u8,
}

struct Run {
    world: World,
    daemon: Daemon,
    workers: Vec<Worker>,
    /// A program without gpushare.
    stranger: Program,
    begun: u64,
    dice: Dice,
    outcome: Outcome,
}

pub(super) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let outcome = freezes(options)?;
    result(&outcome, json)?;
    // A run in which every freeze was refused shows nothing.
    Ok(if outcome.lost + outcome.corrupted == 0 && outcome.frozen > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn freezes(options: &Options) -> anyhow::Result<Outcome> {
    let artifacts = programs::release()?;
    Run::new(&artifacts, options.seed)?.all(options.cycles)
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cycles, frozen, lost, corrupted, seconds, .. } = self;
        let Self { program_kills, daemon_kills, helper_kills, shortages, .. } = self;
        write!(
            f,
            "{cycles} cycles, frozen in {frozen}; {program_kills} programs, {daemon_kills} daemons and \
             {helper_kills} helpers killed; {shortages} thaws without memory; {lost} lost, {corrupted} corrupted; \
             {seconds:.0} s"
        )
    }
}

impl Outcome {
    fn count_kill(&mut self, victim: Victim) {
        self.kills += 1;
        *match victim {
            Victim::Program => &mut self.program_kills,
            Victim::Daemon => &mut self.daemon_kills,
            Victim::Helper => &mut self.helper_kills,
        } += 1;
    }
}

impl Run {
    fn new(artifacts: &Artifacts, seed: u64) -> anyhow::Result<Self> {
        let (world, daemon) = World::simulated(artifacts, CARD)?.with_daemon(&FLAGS)?;
        let (dice, outcome) = (Dice::new(seed), Outcome { seed, ..Outcome::default() });
        let mut stranger = Program::hold(&world, &Sharing::Native, "stranger")?;
        stranger.must("mem-info")?;
        let mut run = Self { world, daemon, workers: Vec::new(), stranger, begun: 0, dice, outcome };
        for _ in 0..PROGRAMS {
            let worker = run.begin()?;
            run.workers.push(worker);
        }
        Ok(run)
    }

    fn begin(&mut self) -> anyhow::Result<Worker> {
        self.begun += 1;
        let name = format!("p{}", self.begun);
        let backend = if self.begun.is_multiple_of(2) { "native" } else { "remap" };
        let sharing = Sharing::session(&name).and(&["--backend", backend]);
        let mut program = Program::hold(&self.world, &sharing, &name)?;
        let fill = self.fill();
        program.must(&format!("alloc x {MEMORY}MiB; fill x {fill}; event e; sync"))?;
        Ok(Worker { name, program, fill })
    }

    fn fill(&mut self) -> u8 {
        1 + u8::try_from(self.dice.index(200)).unwrap_or(0)
    }

    fn all(mut self, cycles: u64) -> anyhow::Result<Outcome> {
        let began = Instant::now();
        while self.outcome.cycles < cycles {
            let at = self.dice.index(PROGRAMS);
            self.cycle(at)?;
            self.outcome.cycles += 1;
            self.outcome.seconds = began.elapsed().as_secs_f64();
            if self.outcome.cycles.is_multiple_of(LOOK) {
                progress(&self.outcome);
            }
        }
        Ok(self.outcome)
    }

    fn cycle(&mut self, at: usize) -> anyhow::Result<()> {
        let name = self.workers[at].name.clone();
        let victim = self.victim();
        let delay = self.dice.millis(0, 120);
        let (frozen, killed) = thread::scope(|scope| {
            let daemon = &self.daemon;
            let freezing = scope.spawn(move || daemon.ctl(&["session", "freeze", &name]).is_ok());
            let killed = victim.filter(|victim| {
                thread::sleep(delay);
                match victim {
                    Victim::Program => kill(self.workers[at].program.process().pid()),
                    Victim::Daemon => kill(daemon.process().pid()),
                    Victim::Helper => kill_helper(daemon.process().pid()),
                }
            });
            (freezing.join().unwrap_or(false), killed)
        });
        killed.into_iter().for_each(|victim| self.outcome.count_kill(victim));
        self.outcome.frozen += u64::from(frozen);
        match victim {
            Some(Victim::Program) => return self.replace(at),
            Some(Victim::Daemon) => {
                self.daemon.kill()?;
                self.daemon.restart()?;
            }
            Some(Victim::Helper) | None => {}
        }
        self.wake(at, frozen)
    }

    /// Takes all memory that the card has free. Returns whether it was still there.
    fn take_free_memory(&mut self) -> anyhow::Result<bool> {
        let free = self.stranger.must("mem-info")?.number("free_bytes") >> 20;
        Ok(self.stranger.must(&format!("alloc s {free}MiB")).is_ok())
    }

    fn victim(&mut self) -> Option<Victim> {
        let chosen = [Victim::Program, Victim::Daemon, Victim::Helper][self.dice.index(3)];
        self.dice.one_in(KILLS).then_some(chosen)
    }

    /// Brings a program back by a call, and checks its memory.
    fn wake(&mut self, at: usize, frozen: bool) -> anyhow::Result<()> {
        let call = CALLS[self.dice.index(CALLS.len())];
        let (victim, delay) = (self.victim(), self.dice.millis(0, 120));
        let lacks_memory = frozen && self.dice.one_in(SHORTAGES) && self.take_free_memory()?;
        self.outcome.shortages += u64::from(lacks_memory);
        let worker = &mut self.workers[at];
        let fill = worker.fill.to_string();
        let mut tickets = Vec::new();
        for line in call.replace("FILL", &fill).split("; ") {
            tickets.extend(worker.program.tell(line));
        }
        let check = worker.program.tell(&format!("check x {fill}"));
        if victim.is_some() {
            thread::sleep(delay);
        }
        match victim {
            Some(victim @ Victim::Program) => {
                self.outcome.count_kill(victim);
                if lacks_memory {
                    self.stranger.must("free s")?;
                }
                return self.replace(at);
            }
            Some(victim @ Victim::Daemon) => {
                self.outcome.count_kill(victim);
                self.daemon.kill()?;
                self.daemon.restart()?;
            }
            Some(victim @ Victim::Helper) if kill_helper(self.daemon.process().pid()) => {
                self.outcome.count_kill(victim);
            }
            Some(Victim::Helper) | None => {}
        }
        if lacks_memory {
            thread::sleep(self.dice.millis(0, LONGEST_SHORTAGE));
            self.stranger.must("free s")?;
        }
        let worker = &self.workers[at];
        for ticket in tickets {
            if let Err(cause) = worker.program.done_within(ticket, PATIENCE) {
                return self.lose(at, &cause);
            }
        }
        match check.and_then(|ticket| worker.program.answer_within(ticket, PATIENCE)) {
            Ok(answer) if answer.error().is_some() => {
                let cause = anyhow::anyhow!("{}", answer.json());
                return self.lose(at, &cause);
            }
            Ok(answer) => self.outcome.corrupted += u64::from(!answer.flag("matches")),
            Err(cause) => return self.lose(at, &cause),
        }
        if self.dice.one_in(3) {
            let fill = self.fill();
            let worker = &mut self.workers[at];
            worker.fill = fill;
            if let Err(cause) = worker.program.must(&format!("fill x {fill}; sync")) {
                return self.lose(at, &cause);
            }
        }
        Ok(())
    }

    fn lose(&mut self, at: usize, cause: &anyhow::Error) -> anyhow::Result<()> {
        let Worker { name, program, .. } = &self.workers[at];
        let state = self.daemon.ctl(&["explain", name]).unwrap_or_default();
        let stderr = program.process().stderr();
        progress(format_args!(
            "{name} (pid {}) is lost: {cause:#}\n{state}\n{stderr}",
            program.process().pid()
        ));
        self.outcome.lost += 1;
        self.replace(at)
    }

    /// Kills a program if it lives, and starts another one in its place.
    fn replace(&mut self, at: usize) -> anyhow::Result<()> {
        self.workers[at].program.kill()?;
        self.workers[at] = self.begin()?;
        Ok(())
    }
}

/// Kills a helper of the daemon, if one runs. Returns whether one did.
fn kill_helper(daemon: u32) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok());
    let is_helper = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        line.starts_with(b"gpushare-checkpoint\0") && status.contains(&format!("\nPPid:\t{daemon}\n"))
    };
    numbers
        .filter(is_helper)
        .find_map(|helper| u32::try_from(helper).ok())
        .is_some_and(kill)
}

/// Kills a process that this one started, or a helper of such a one. Returns whether it was there.
fn kill(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
}

//! Four programs with remapped memory of 0.75 of the card each, which is checked after each handoff, while some of
//! them and the daemon are killed half-way.
//!
//! ```text
//!   choose another program ─▶ ask for its contents ─▶ memory moves ─▶ right?   and write new ones
//!                                       │
//!                                       └─ now and then: kill -9 of the leaver, the entrant or the daemon
//!   now and then: wait until nothing moves, and compare the daemon's figures with the card's
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use gpushare_proto::Bytes;
use gpushare_tests::patience::until;
use gpushare_tests::{Artifacts, Daemon, Dice, Program, Sharing, World};
use serde::Serialize;

use crate::output::{progress, result};
use crate::programs;

const CARD: Bytes = Bytes::mib(256);
/// Blocks of one program: together three quarters of the card.
const BLOCKS: [(&str, u64); 3] = [("x", 64), ("y", 64), ("z", 62)];
const PROGRAMS: usize = 4;
/// Longest time for one handoff. A program that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// One of so many handoffs is broken off by a kill.
const KILLS: u64 = 8;
/// Number of handoffs after which the figures are compared.
const LOOK: u64 = 10;

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Number of handoffs
    #[arg(long, default_value_t = 100)]
    swaps: u64,
    /// Seed of the choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Result of the handoffs.
#[derive(Clone, Debug, Default, Serialize)]
struct Outcome {
    /// Handoffs after which the entrant's contents were checked.
    swaps: u64,
    /// Programs killed while memory moved.
    kills: u64,
    /// Daemons killed while memory moved.
    daemon_kills: u64,
    /// Blocks with wrong contents.
    corrupted: u64,
    /// Calls that failed.
    failed: u64,
    /// Handoffs that did not end.
    hung: u64,
    /// Largest difference between the card's bytes of living programs and what the daemon says is resident, and
    /// bytes that are neither resident nor hosted.
    bytes_unaccounted: u64,
    seconds: f64,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { swaps, kills, daemon_kills, corrupted, failed, hung, bytes_unaccounted, seconds } = self;
        write!(
            f,
            "{swaps} handoffs in {seconds:.0} s, {kills} programs and {daemon_kills} daemons killed half-way: \
             {corrupted} wrong blocks, {failed} failed calls, {hung} hung, {bytes_unaccounted} bytes unaccounted"
        )
    }
}

/// Program with the byte that fills its blocks.
struct Worker {
    name: String,
    program: Program,
    fill: u8,
}

pub(super) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    let artifacts = programs::debug()?;
    let began = Instant::now();
    let mut outcome = Run::new(&artifacts, options)?.all(options.swaps)?;
    outcome.seconds = began.elapsed().as_secs_f64();
    result(&outcome, json)?;
    let Outcome { corrupted, failed, hung, bytes_unaccounted, .. } = outcome;
    Ok(match corrupted + failed + hung + bytes_unaccounted {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}

struct Run {
    world: World,
    daemon: Daemon,
    workers: Vec<Worker>,
    /// Programs begun so far, for their names.
    begun: u64,
    dice: Dice,
    outcome: Outcome,
}

impl Run {
    fn new(artifacts: &Artifacts, options: &Options) -> anyhow::Result<Self> {
        // Contexts that are not measured yet would take half of the card.
        let flags = ["--host-budget", "4GiB", "--quantum", "20ms", "--context-reserve", "4MiB"];
        let (world, daemon) = World::simulated(artifacts, CARD)?.with_daemon(&flags)?;
        let (workers, dice) = (Vec::new(), Dice::new(options.seed));
        let mut run = Self { world, daemon, workers, begun: 0, dice, outcome: Outcome::default() };
        for _ in 0..PROGRAMS {
            let worker = run.begin()?;
            run.workers.push(worker);
        }
        Ok(run)
    }

    /// Starts a program with memory that is filled.
    fn begin(&mut self) -> anyhow::Result<Worker> {
        self.begun += 1;
        let name = format!("p{}", self.begun);
        let fill = self.fill();
        let sharing = Sharing::session(&name).and(&["--backend", "remap"]);
        let mut program = Program::hold(&self.world, &sharing, &name)?;
        for (block, size) in BLOCKS {
            let filled = program.must(&format!("alloc {block} {size}MiB; fill {block} {fill}"));
            let state = || self.daemon.ctl(&["status", "--verbose"]).unwrap_or_default();
            filled.with_context(|| format!("{name} got no memory\n{}", state()))?;
        }
        program.must("sync")?;
        Ok(Worker { name, program, fill })
    }

    fn fill(&mut self) -> u8 {
        1 + u8::try_from(self.dice.index(200)).unwrap_or(0)
    }

    fn all(mut self, swaps: u64) -> anyhow::Result<Outcome> {
        let mut last = PROGRAMS - 1;
        while self.outcome.swaps < swaps && self.outcome.hung == 0 {
            let next = (last + 1 + self.dice.index(PROGRAMS - 1)) % PROGRAMS;
            self.swap(last, next)?;
            last = next;
            if self.outcome.swaps.is_multiple_of(LOOK) {
                self.compare()?;
                progress(&self.outcome);
            }
        }
        Ok(self.outcome)
    }

    /// Lets a program use its memory, which the last one has to make room for.
    fn swap(&mut self, last: usize, next: usize) -> anyhow::Result<()> {
        let fill = self.workers[next].fill;
        let mut tickets = Vec::new();
        for (block, _) in BLOCKS {
            tickets.push(self.workers[next].program.tell(&format!("check {block} {fill}"))?);
        }
        let victim = self.dice.one_in(KILLS).then(|| self.dice.index(3));
        if victim.is_some() {
            thread::sleep(self.dice.millis(0, 150));
        }
        match victim {
            Some(0) => self.replace(last)?,
            Some(1) => return self.replace(next),
            Some(_) => {
                self.outcome.daemon_kills += 1;
                self.daemon.kill()?;
                self.daemon.restart()?;
            }
            None => {}
        }
        for ticket in tickets {
            match self.workers[next].program.answer_within(ticket, PATIENCE) {
                Ok(answer) if answer.error().is_some() => {
                    progress(format_args!("{} failed: {}", self.workers[next].name, answer.json()));
                    self.outcome.failed += 1;
                }
                Ok(answer) => self.outcome.corrupted += u64::from(!answer.flag("matches")),
                Err(cause) => {
                    progress(format_args!("{} hangs: {cause}", self.workers[next].name));
                    self.outcome.hung += 1;
                    return Ok(());
                }
            }
        }
        self.outcome.swaps += 1;
        // Half of the memory that leaves next was written since.
        if self.dice.one_in(2) {
            let fill = self.fill();
            let worker = &mut self.workers[next];
            for (block, _) in BLOCKS {
                worker.program.must(&format!("fill {block} {fill}"))?;
            }
            worker.program.must("sync")?;
            worker.fill = fill;
        }
        Ok(())
    }

    /// Kills a program, and starts another one in its place.
    fn replace(&mut self, at: usize) -> anyhow::Result<()> {
        self.outcome.kills += 1;
        self.workers[at].program.kill()?;
        self.workers[at] = self.begin()?;
        Ok(())
    }

    /// Compares what the daemon says with what the card has, once nothing moves.
    fn compare(&mut self) -> anyhow::Result<()> {
        let mut last = None;
        let found = until("the figures rest", || {
            let now = self.unaccounted()?;
            let rests = last.replace(now) == Some(now);
            Ok((rests && now.is_some_and(|now| now == 0)).then_some(0))
        });
        // What does not come to rest is counted as it is.
        let found = found.or_else(|cause| last.flatten().context(cause))?;
        self.outcome.bytes_unaccounted = self.outcome.bytes_unaccounted.max(found);
        Ok(())
    }

    /// Bytes that are not accounted for; `None` while memory moves.
    fn unaccounted(&self) -> anyhow::Result<Option<u64>> {
        let stats = self.world.card().context("a simulated card")?.stats()?;
        let living = stats.processes.iter().filter(|process| process.alive);
        let on_card: BTreeMap<u32, u64> = living.map(|process| (process.pid, process.device_bytes)).collect();
        let mut sum = 0;
        for Worker { name, program, .. } in &self.workers {
            let place = self.daemon.residence(name)?;
            if !place.moving_bytes.is_zero() {
                return Ok(None);
            }
            let resident = place.resident_bytes.0;
            let card = on_card.get(&program.process().pid()).copied().unwrap_or(0);
            let used = self.daemon.session(name)?.gpus[0].allocated_bytes;
            let lost = used - (place.resident_bytes + place.hosted_bytes);
            sum += resident.abs_diff(card) + lost.0;
        }
        Ok(Some(sum))
    }
}

//! Four programs with memory of more than half of the card each, which is checked after each handoff, while much goes wrong.
//!
//! ```text
//!   choose another program ─▶ ask for its contents ─▶ memory moves ─▶ right?   and write new ones
//!                                       │
//!                                       ├─ kill -9 of the leaver, the entrant or the daemon while memory moves
//!                                       ├─ kill -9 in a copy, an unmap or a map of the program (harm.rs)
//!                                       ├─ a call that creates, maps, registers or prefetches memory fails (harm.rs)
//!                                       └─ the budget for host memory runs out for a while
//!   now and then: wait until nothing moves, and compare the daemon's figures with the card's
//! ```
//!
//! A kill counts as one while memory moves if the card says so. Memory of `--backend remap` is checked before each copy
//! and unmap, too (`--paranoid`).

mod accounts;
mod harm;
mod moments;
mod outcome;

use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use gpushare_proto::{Backend, Bytes};
use gpushare_tests::card::Card;
use gpushare_tests::patience::until;
use gpushare_tests::{Answer, Artifacts, Daemon, Dice, Program, Sharing, Ticket, World};

use self::outcome::Outcome;
use crate::output::{progress, result};
use crate::programs;
use crate::promise::{Bound, Check, Effort};

const CARD: Bytes = Bytes::mib(96);
/// Blocks of one program: together more than half of the card. After a refused call the daemon takes the card for a
/// quarter smaller.
const BLOCKS: [(&str, u64); 3] = [("x", 20), ("y", 20), ("z", 14)];
const PROGRAMS: usize = 4;
/// Longest time for one handoff. A program that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);
/// One of so many handoffs is broken off by a kill.
const KILLS: u64 = 16;
/// One of so many handoffs finds a call that fails.
const REFUSALS: u64 = 10;
/// One of so many programs finds that a first call fails.
const REFUSED_AT_FIRST: u64 = 4;
/// One of so many handoffs begins without a budget for host memory.
const SHORTAGES: u64 = 20;
const CARD_MISSING: &str = "a simulated card";
/// Flags of the daemon. Contexts that are not measured yet would take most of the card.
const FLAGS: [&str; 4] = ["--quantum", "20ms", "--context-reserve", "2MiB"];
const BUDGET: [&str; 2] = ["--host-budget", "4GiB"];
/// With the card it holds what all programs use. But three of them fill it, so that the fourth cannot leave the card.
const SMALL_BUDGET: [&str; 2] = ["--host-budget", "160MiB"];
/// Number of handoffs after which the figures are compared.
const LOOK: u64 = 10;

/// Handoffs of the check, for each kind of memory.
const CHECKED: u64 = 300;

pub(super) const CHECK: Check = Check {
    name: "swap",
    effort: Effort::Timed,
    bounds: &[
        Bound::at_most(
            "wrong blocks, failed calls, hangs and lost bytes of 300 handoffs of remapped memory",
            0.0,
            "",
        ),
        Bound::at_most(
            "wrong blocks, failed calls, hangs and lost bytes of 300 handoffs of managed memory",
            0.0,
            "",
        ),
    ],
    measure: || {
        let faults = |backend| -> anyhow::Result<f64> {
            let outcome = swaps(&Options { swaps: CHECKED, backend, cards: 1, seed: 1 })?;
            progress(&outcome);
            Ok(outcome.faults() as f64)
        };
        Ok(vec![faults(Backend::Remap)?, faults(Backend::Managed)?])
    },
};

#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Number of handoffs
    #[arg(long, default_value_t = 100)]
    swaps: u64,
    /// Memory of the programs: `remap` or `managed`
    #[arg(long, default_value_t = Backend::Remap)]
    backend: Backend,
    /// Number of cards with four programs each, between which the handoffs are divided; two of them run at once
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    cards: u64,
    /// Seed of the choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Program with the byte that fills its blocks.
struct Worker {
    name: String,
    program: Program,
    fill: u8,
    /// Call in which it is to be killed.
    death: Option<&'static str>,
}

pub(super) fn run(options: &Options, json: bool) -> anyhow::Result<ExitCode> {
    ensure!(options.backend != Backend::Native, "native memory does not move; choose remap or managed");
    let outcome = swaps(options)?;
    result(&outcome, json)?;
    Ok(if outcome.faults() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn swaps(options: &Options) -> anyhow::Result<Outcome> {
    let artifacts = programs::release()?;
    let began = Instant::now();
    let of_card = |card: u64| {
        let seed = options.seed + card;
        let swaps = options.swaps / options.cards + u64::from(card < options.swaps % options.cards);
        Run::new(&artifacts, options.backend, seed)?.all(swaps)
    };
    let mut all = Outcome { backend: options.backend.to_string(), seed: options.seed, ..Outcome::default() };
    thread::scope(|scope| -> anyhow::Result<()> {
        let of_card = &of_card;
        let cards: Vec<_> = (0..options.cards).map(|card| scope.spawn(move || of_card(card))).collect();
        for card in cards {
            all.add(&card.join().map_err(|_| anyhow!("a card's thread panicked"))??);
        }
        Ok(())
    })?;
    all.seconds = began.elapsed().as_secs_f64();
    Ok(all)
}

struct Run {
    world: World,
    daemon: Daemon,
    backend: Backend,
    workers: Vec<Worker>,
    /// Programs begun so far, for their names.
    begun: u64,
    dice: Dice,
    outcome: Outcome,
}

impl Run {
    fn new(artifacts: &Artifacts, backend: Backend, seed: u64) -> anyhow::Result<Self> {
        let flags = [&FLAGS[..], &BUDGET].concat();
        let (world, daemon) = World::simulated(artifacts, CARD)?.with_daemon(&flags)?;
        let mut run = Self {
            world,
            daemon,
            backend,
            workers: Vec::new(),
            begun: 0,
            dice: Dice::new(seed),
            outcome: Outcome { backend: backend.to_string(), seed, ..Outcome::default() },
        };
        for _ in 0..PROGRAMS {
            let worker = run.begin()?;
            run.workers.push(worker);
        }
        Ok(run)
    }

    /// Starts a program with memory that is filled. One that is killed meanwhile is replaced.
    fn begin(&mut self) -> anyhow::Result<Worker> {
        loop {
            if let Some(worker) = self.try_to_begin()? {
                return Ok(worker);
            }
        }
    }

    fn try_to_begin(&mut self) -> anyhow::Result<Option<Worker>> {
        self.begun += 1;
        let name = format!("p{}", self.begun);
        let (fill, (death, orders)) = (self.fill(), harm::orders(&mut self.dice, self.backend));
        let backend = self.backend.to_string();
        let paranoid: &[&str] = if self.backend == Backend::Remap { &["--paranoid"] } else { &[] };
        let sharing = Sharing::session(&name).and(&["--backend", &backend]).and(paranoid);
        let mut command = self.world.workload(&sharing);
        command.env("SIMGPU_FAULTS", orders);
        let mut program = Program::begin(command, &self.world, &name)?;
        if let Err(cause) = program.ready() {
            let state = self.daemon.ctl(&["status", "--verbose"]).unwrap_or_default();
            let stderr = program.process().stderr();
            let stats = self.card()?.stats()?;
            let living: Vec<_> = stats.processes.iter().filter(|process| process.alive).collect();
            return Err(cause.context(format!("{name} did not start\n{state}\n{living:#?}\n{stderr}")));
        }
        if self.dice.one_in(REFUSED_AT_FIRST) {
            harm::refuse_first(self.card()?, self.backend, program.process().pid());
        }
        let filled = self.fill_blocks(&mut program, fill);
        if let Err(cause) = filled {
            if self.is_dead(&mut program, death)? {
                return Ok(None);
            }
            let state = self.daemon.ctl(&["status", "--verbose"]).unwrap_or_default();
            return Err(cause.context(format!("{name} got no memory\n{state}")));
        }
        Ok(Some(Worker { name, program, fill, death }))
    }

    fn card(&self) -> anyhow::Result<&Card> {
        self.world.card().context(CARD_MISSING)
    }

    fn fill_blocks(&self, program: &mut Program, fill: u8) -> anyhow::Result<()> {
        for (block, size) in BLOCKS {
            let line = format!("alloc {block} {size}MiB");
            // A refused allocation may be made anew.
            if self.backend == Backend::Remap || program.must(&line).is_err() {
                program.must(&line)?;
            }
            program.must(&format!("fill {block} {fill}"))?;
        }
        program.must("sync").map(drop)
    }

    /// Whether a program was killed in the call that was chosen for it. That is counted.
    fn is_dead(&mut self, program: &mut Program, death: Option<&'static str>) -> anyhow::Result<bool> {
        let Some(moment) = death else { return Ok(false) };
        let is_dead = until("a failed program ends", || Ok(program.ended()?.then_some(()))).is_ok();
        if is_dead {
            *self.outcome.killed_in.entry(moment).or_default() += 1;
        }
        Ok(is_dead)
    }

    fn fill(&mut self) -> u8 {
        1 + u8::try_from(self.dice.index(200)).unwrap_or(0)
    }

    fn all(mut self, swaps: u64) -> anyhow::Result<Outcome> {
        let mut last = PROGRAMS - 1;
        let began = Instant::now();
        while self.outcome.swaps < swaps && self.outcome.hung == 0 {
            let next = (last + 1 + self.dice.index(PROGRAMS - 1)) % PROGRAMS;
            self.swap(last, next)?;
            last = next;
            if self.outcome.swaps.is_multiple_of(LOOK) {
                self.compare()?;
                self.outcome.seconds = began.elapsed().as_secs_f64();
                progress(&self.outcome);
            }
        }
        (0..PROGRAMS).for_each(|at| self.note_missed_work(at));
        Ok(self.outcome)
    }

    /// Lets a program use its memory, which the last one has to make room for.
    fn swap(&mut self, last: usize, next: usize) -> anyhow::Result<()> {
        if self.backend == Backend::Remap && self.dice.one_in(REFUSALS) {
            let who = if self.dice.one_in(2) { last } else { next };
            let card = self.world.card().context(CARD_MISSING)?;
            harm::refuse(card, &self.workers[who], &mut self.dice);
        }
        if self.backend == Backend::Remap && self.dice.one_in(SHORTAGES) {
            return self.swap_after_a_shortage(last, next);
        }
        let victim = self.dice.one_in(KILLS).then(|| self.dice.index(3));
        let begin = self.on_card([last, next])?;
        let tickets = self.ask_for_contents(next);
        let Some(victim) = victim else { return self.judge(next, &tickets) };
        let moves = self.wait_for_a_move([last, next], begin, &tickets)?;
        thread::sleep(self.dice.millis(0, 5));
        // Once the entrant has all its memory, nothing moves any more.
        let moves = moves && !self.is_whole(next)?;
        let count = if victim < 2 {
            &mut self.outcome.kills
        } else {
            &mut self.outcome.daemon_kills
        };
        *count += u64::from(moves);
        self.outcome.kills_at_rest += u64::from(!moves);
        match victim {
            0 => self.kill(last)?,
            1 => return self.kill(next),
            _ => {
                self.daemon.kill()?;
                self.daemon.restart()?;
            }
        }
        self.judge(next, &tickets)
    }

    /// Asks a program for the contents of its blocks. A dead one is noticed by its missing answer.
    fn ask_for_contents(&mut self, at: usize) -> Vec<Ticket> {
        let Worker { program, fill, .. } = &mut self.workers[at];
        BLOCKS
            .iter()
            .filter_map(|(block, _)| program.tell(&format!("check {block} {fill}")).ok())
            .collect()
    }

    /// Lets a program wait for memory that cannot move, since there is no host memory, and then get it. The leaver is a
    /// new program: one that has left before has host memory.
    fn swap_after_a_shortage(&mut self, last: usize, next: usize) -> anyhow::Result<()> {
        self.workers[last].program.kill()?;
        self.replace(last)?;
        self.daemon.kill()?;
        self.daemon.restart_with(&[&FLAGS[..], &SMALL_BUDGET].concat())?;
        let fill = self.workers[next].fill;
        let mut tickets = self.ask_for_contents(next);
        self.outcome.shortages += u64::from(self.waits_for_host_memory(next, &tickets)?);
        self.daemon.kill()?;
        self.daemon.restart_with(&[&FLAGS[..], &BUDGET].concat())?;
        for ((block, _), ticket) in BLOCKS.iter().zip(&mut tickets) {
            let program = &mut self.workers[next].program;
            // A check allocates a little, which is refused while there is no host memory.
            let is_refused = |answer: &Answer| answer.error() == Some("CUDA_ERROR_OUT_OF_MEMORY");
            if program.answer_within(*ticket, PATIENCE).is_ok_and(|answer| is_refused(&answer)) {
                *ticket = program.tell(&format!("check {block} {fill}")).unwrap_or(*ticket);
            }
        }
        self.judge(next, &tickets)
    }

    /// Compares the contents of a program with what it wrote, and lets it write new ones.
    fn judge(&mut self, next: usize, tickets: &[Ticket]) -> anyhow::Result<()> {
        for &ticket in tickets {
            match self.workers[next].program.answer_within(ticket, PATIENCE) {
                Ok(answer) if answer.error().is_some() => {
                    progress(format_args!("{} failed: {}", self.workers[next].name, answer.json()));
                    self.outcome.failed += 1;
                }
                Ok(answer) => self.outcome.corrupted += u64::from(!answer.flag("matches")),
                Err(_) if self.has_died(next)? => return self.bury(next),
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
            let lines: Vec<_> = BLOCKS.iter().map(|(block, _)| format!("fill {block} {fill}")).collect();
            let written = worker.program.must(&(lines.join("; ") + "; sync"));
            worker.fill = fill;
            if let Err(cause) = written {
                if !self.has_died(next)? {
                    return Err(cause);
                }
                return self.bury(next);
            }
        }
        Ok(())
    }

    /// Whether a program that did not answer is one that was killed in a call of its own.
    fn has_died(&mut self, at: usize) -> anyhow::Result<bool> {
        let Worker { program, death, .. } = &mut self.workers[at];
        let has_ended = || Ok(program.ended()?.then_some(()));
        Ok(death.is_some() && until("a program that does not answer ends", has_ended).is_ok())
    }

    /// Starts another program in place of one that was killed in a call of its own.
    fn bury(&mut self, at: usize) -> anyhow::Result<()> {
        let Worker { name, death, .. } = &self.workers[at];
        let moment = death.with_context(|| format!("{name} ended by itself"))?;
        *self.outcome.killed_in.entry(moment).or_default() += 1;
        self.replace(at)
    }

    /// Kills a program, and starts another one in its place.
    fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        self.outcome.kills += 1;
        self.workers[at].program.kill()?;
        self.replace(at)
    }

    fn replace(&mut self, at: usize) -> anyhow::Result<()> {
        self.note_missed_work(at);
        self.workers[at] = self.begin()?;
        Ok(())
    }

    /// Counts a program whose work was in flight while its memory moved.
    fn note_missed_work(&mut self, at: usize) {
        let Worker { name, program, .. } = &self.workers[at];
        let stderr = program.process().stderr();
        if stderr.contains("gpushare: paranoid: ") {
            progress(format_args!("{name}: {stderr}"));
            self.outcome.missed += 1;
        }
    }
}

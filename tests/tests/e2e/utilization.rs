//! Utilization of a card as NVML shows it inside a session: the card's own figure for a session that is
//! alone, and the session's part of it beside others.
//!
//! The simulated card's own figure is that since the last question, and its samples reach back a second.

use std::fs;

use anyhow::{Context, bail};
use gpushare_proto::tenant::{TenantReply, TenantRequest};
use gpushare_proto::{Bytes, Token, UtilizationPart};
use gpushare_tests::patience::until;
use gpushare_tests::peer::Tenant;
use gpushare_tests::process::Process;
use gpushare_tests::{Dialogue, Program, Sharing, Training, World, foreign};
use rustix::process::Signal;

use crate::one_story::{beside, token_file};

const CARD: Bytes = Bytes::mib(64);
const ONE: u32 = UtilizationPart::ONE;

#[test]
fn a_session_that_is_not_on_the_card_reads_nothing_of_others() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut stranger = Program::hold(&world, &Sharing::session("stranger"), "stranger")?;
    stranger.must("alloc x 32MiB; fill x 1; sync")?;
    let smi = foreign::program(&world, "smi")?;
    let inside = foreign::run(&world, &Sharing::limited("smi", Bytes::mib(16)), &smi, &["nvml"])?;
    assert!(inside.contains(" samples code=6\n infos code=6\n utilization code=0 idle\n"), "{inside}");
    Ok(())
}

#[test]
fn a_tool_reads_the_cards_own_figure_for_one_session_and_a_part_for_two() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let holder = busy(&world, "holder")?;
    let mut tool = Asker::start(&world, holder.process(), "tool")?;
    tool.percent()?;
    assert!(tool.percent()? >= 95, "alone");
    let other = busy(&world, "other")?;
    until("the session reads its part", || Ok((20..80).contains(&tool.percent()?).then_some(())))?;
    drop(other);
    until("the session reads all again", || Ok((tool.percent()? >= 95).then_some(())))
}

#[test]
fn an_idle_session_reads_nothing_until_the_work_is_its_own() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&[])?;
    let mut first = busy(&world, "first")?;
    let mut second = Program::hold(&world, &Sharing::session("second"), "second")?;
    let mut of_first = Asker::on_card(&world, first.process(), "of-first")?;
    let mut of_second = Asker::on_card(&world, second.process(), "of-second")?;
    let mut all_is = |what: &str, first: bool| {
        until(what, || {
            let [busy, idle] = match first {
                true => [of_first.percent()?, of_second.percent()?],
                false => [of_second.percent()?, of_first.percent()?],
            };
            Ok((busy >= 90 && idle == 0).then_some(()))
        })
    };
    all_is("the first one works alone", true)?;
    first.must("set flag 1; sync")?;
    compute(&world, &mut second)?;
    all_is("the second one works alone", false)?;

    let mut late = Asker::on_card(&world, second.process(), "late")?;
    daemon.process().signal(Signal::STOP)?;
    until("its first questions need no daemon", || Ok((late.percent()? >= 90).then_some(())))?;
    daemon.process().signal(Signal::CONT)
}

#[test]
fn parts_follow_the_weights_and_are_together_the_whole() -> anyhow::Result<()> {
    let (world, daemon) = World::of(CARD)?.with_daemon(&["--quantum", "20ms"])?;
    let work = ["--steps", "1000000", "--compute", "4ms", "--async-ahead", "4"];
    let hog = |name: &str, weight: &str| {
        let sharing = Sharing::session(name).and(&["--weight", weight]);
        Training::start(&world, &sharing, name, Bytes::mib(8), &work)
    };
    let programs = [hog("light", "100")?, hog("heavy", "300")?];
    daemon.until("both use the card", |status| {
        status.sessions.iter().filter(|session| session.clients.len() == 1).count() == 2
    })?;
    until("the parts are as the weights", || {
        let [light, heavy] = [part(&world, programs[0].process())?, part(&world, programs[1].process())?];
        let is_whole = light.gpu + heavy.gpu == ONE && light.memory + heavy.memory == ONE;
        Ok((is_whole && (ONE / 100 * 60..ONE / 100 * 90).contains(&heavy.gpu)).then_some(()))
    })
}

#[test]
fn a_process_outside_gpushare_takes_its_part() -> anyhow::Result<()> {
    let (world, _daemon) = World::of(CARD)?.with_daemon(&[])?;
    let idle = Program::hold(&world, &Sharing::session("idle"), "idle")?;
    let worker = busy(&world, "worker")?;
    let mut native = Program::hold(&world, &Sharing::Native, "native")?;
    compute(&world, &mut native)?;
    until("both workers have their parts", || {
        let [idle, worker] = [part(&world, idle.process())?, part(&world, worker.process())?];
        Ok((idle.gpu == 0 && (ONE / 5..ONE / 5 * 4).contains(&worker.gpu)).then_some(()))
    })
}

/// Starts a program of a session of its own that computes until its flag is set.
fn busy(world: &World, name: &str) -> anyhow::Result<Program> {
    let mut program = Program::hold(world, &Sharing::session(name), name)?;
    compute(world, &mut program)?;
    Ok(program)
}

fn compute(world: &World, program: &mut Program) -> anyhow::Result<()> {
    let card = world.card().context("no simulated card")?;
    let pid = program.process().pid();
    program.must("alloc flag 4KiB; set flag 0; stream s; sync; spin 600s --until flag --on s")?;
    until("it computes", || Ok((card.stats()?.gpus[0].running == Some(pid)).then_some(())))
}

/// Part of a process's session in the utilization of the only card, as the daemon tells it.
fn part(world: &World, process: &Process) -> anyhow::Result<UtilizationPart> {
    let text = fs::read_to_string(token_file(process)?)?;
    let token = Token::from_hex(text.trim()).context("no token")?;
    let mut tool = Tenant::tool(&world.runtime_dir())?;
    tool.say(&TenantRequest::UtilizationParts(Some(token)))?;
    match tool.hear()? {
        TenantReply::UtilizationParts(Some(cards)) => Ok(cards[0].part),
        other => bail!("the daemon answered {other:?}"),
    }
}

/// A process of a session that asks NVML for the utilization of the card.
struct Asker(Dialogue);

impl Asker {
    /// Starts a process that does not use the card.
    fn start(world: &World, member: &Process, name: &str) -> anyhow::Result<Self> {
        let program = foreign::program(world, "utilization")?;
        Ok(Self(Dialogue::start(world, beside(world, member, &program)?, name)?))
    }

    /// Starts a process with a context, which has a shared page and need not ask the daemon.
    fn on_card(world: &World, member: &Process, name: &str) -> anyhow::Result<Self> {
        let program = foreign::program(world, "utilization")?;
        let mut command = beside(world, member, &program)?;
        command.arg("context");
        let mut asker = Dialogue::start(world, command, name)?;
        asker.answers_until("ready")?;
        Ok(Self(asker))
    }

    fn percent(&mut self) -> anyhow::Result<u32> {
        Ok(self.0.ask("ask")?.parse()?)
    }
}

//! Two processes of one session under one compute limit: they share it equally while both have work, and
//! one has all of it while the other has none.
//!
//! A limit is time with an open gate, and the gates of a session open and close together. So it is the card
//! that divides that time, and the work must be such that takes longer when another has it too. The card loses
//! a part of that time by its own slices, limited or not. So rates are compared with those of the same
//! processes without a limit.

use anyhow::Context;
use gpushare_proto::Bytes;
use gpushare_tests::artifacts::Artifacts;
use gpushare_tests::daemon::Daemon;
use gpushare_tests::program::Program;
use gpushare_tests::world::{Sharing, World};

use crate::output::progress;

use super::fairness::{SHARED_MEMORY, SHARED_WORK, SLOW_CARD, STEP, WINDOW};
use super::load::{self, Load};

/// In percent.
const LIMIT: f64 = 40.0;

/// Returns what both together, each of them, and one beside an idle one get, in percent of the rate that the same
/// processes have together without a limit.
pub(super) fn percents(artifacts: &Artifacts) -> anyhow::Result<[f64; 4]> {
    let percents = |names: &[&str]| -> anyhow::Result<Vec<f64>> {
        let unlimited = rates(artifacts, None, names)?.iter().sum::<f64>();
        let limited = rates(artifacts, Some(LIMIT), names)?;
        progress(format_args!(
            "{names:?} of a session limited to {LIMIT}%: {limited:.1?} steps a second, {unlimited:.1} without a limit"
        ));
        Ok(limited.iter().map(|rate| 100.0 * rate / unlimited).collect())
    };
    let (both, one) = (percents(&["one", "two"])?, percents(&["one"])?);
    let [first, second] = both[..] else {
        anyhow::bail!("two programs have {} rates", both.len())
    };
    let only = *one.first().context("a program has no rate")?;
    Ok([first + second, first, second, only])
}

/// Steps a second of programs of one session, beside a process of it that has memory there and no work.
fn rates(artifacts: &Artifacts, limit: Option<f64>, names: &[&str]) -> anyhow::Result<Vec<f64>> {
    let world = World::with_card_flags(artifacts, &SLOW_CARD)?;
    let daemon = Daemon::start(&world, &[])?;
    daemon.ctl(&["session", "create", "team"])?;
    if let Some(limit) = limit {
        daemon.ctl(&["set", "compute", &format!("{limit}%"), "--session", "team"])?;
    }
    let member = Sharing::Run(["--session", "team"].map(str::to_owned).to_vec());
    let mut idle = Program::holding(&world, &member, "idle", Bytes::mib(2))?;
    idle.must("sync")?;
    let share = limit.unwrap_or(100.0) / 100.0 / names.len() as f64;
    let loads = names.iter().map(|name| Load {
        name,
        compute_limit: None,
        memory: SHARED_MEMORY,
        steps: load::lasting(WINDOW, STEP, share),
        work: &SHARED_WORK,
    });
    let steps = load::run_as(&world, &loads.collect::<Vec<_>>(), |_| member.clone())?;
    let window = load::together(&steps, WINDOW)?;
    idle.quit()?;
    Ok(steps.iter().map(|steps| steps.rate(&window)).collect())
}

//! Faults of the handoffs in [`super`], chosen by the dice: programs that are killed in a certain call of the driver,
//! and calls that find no memory.

use std::collections::BTreeMap;

use gpushare_proto::Backend;
use gpushare_tests::Dice;
use gpushare_tests::card::Card;
use simgpu_card::wire::Refusable;

use super::Worker;

/// One of so many programs is killed by a call of its own.
const MORTALS: u64 = 2;
/// Numbers of that call, from and to. A program maps seven times before its memory moves, and each move takes three
/// to six calls of a kind.
const CALLS: (u64, u64) = (8, 30);
/// Calls that a driver without memory refuses, with their names in the result.
const REFUSED: [(&str, Refusable); 3] =
    [("create", Refusable::CreateOnGpu), ("map", Refusable::Map), ("register", Refusable::Register)];

/// Calls in which programs are killed, with the names of the moments in the result.
fn deadly_calls(backend: Backend) -> &'static [(&'static str, &'static str)] {
    match backend {
        Backend::Remap => &[
            ("copy out", "cuMemcpyDtoHAsync"),
            ("copy in", "cuMemcpyHtoDAsync"),
            ("unmap", "cuMemUnmap"),
            ("map", "cuMemMap"),
        ],
        _ => &[("prefetch", "cuMemPrefetchAsync")],
    }
}

/// Moment at which a program is to be killed, and the order for its driver.
pub(super) fn death(dice: &mut Dice, backend: Backend) -> Option<(&'static str, String)> {
    let calls = deadly_calls(backend);
    let (moment, call) = dice.one_in(MORTALS).then(|| calls[dice.index(calls.len())])?;
    let number = CALLS.0 + dice.below(CALLS.1 - CALLS.0);
    Some((moment, format!("{call}@{number}=dies")))
}

/// Calls that found no memory, one at a time.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Kind of the call that fails next, and the process that makes it.
    armed: Option<(&'static str, u32)>,
    /// Failed calls on the card so far.
    seen: u64,
    /// Failed calls by their kinds.
    pub(super) by_kind: BTreeMap<&'static str, u64>,
}

impl Refusals {
    /// Counts the call that has failed since, and lets another one of `worker` fail.
    pub(super) fn next(&mut self, card: &Card, worker: &Worker, dice: &mut Dice) -> anyhow::Result<()> {
        let stats = card.stats()?;
        let new = stats.total.refused - self.seen;
        self.seen = stats.total.refused;
        if let Some((kind, pid)) = self.armed {
            *self.by_kind.entry(kind).or_default() += new;
            let lives = stats.processes.iter().any(|process| process.pid == pid && process.alive);
            if new == 0 && lives {
                return Ok(());
            }
        }
        let (kind, call) = REFUSED[dice.index(REFUSED.len())];
        let pid = worker.program.process().pid();
        // A process that was just killed has no more calls to fail.
        self.armed = card.refuse(pid, call, 1).is_ok().then_some((kind, pid));
        Ok(())
    }
}

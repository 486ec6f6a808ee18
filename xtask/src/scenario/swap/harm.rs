//! Faults of the handoffs in [`super`], chosen by the dice: programs that are killed in a certain call of the driver,
//! and calls that find no memory.

use std::collections::BTreeMap;

use gpushare_proto::Backend;
use gpushare_tests::Dice;
use gpushare_tests::card::Card;
use simgpu_card::stats::Refused;
use simgpu_card::wire::Refusable;

use super::Worker;

/// One of so many programs is not killed by a call of its own. Many others end before that call, so few may be spared.
const SURVIVORS: u64 = 10;
/// Numbers of that call, from and to. A program maps five times before its memory moves, and each move takes two to
/// five calls of a kind.
const CALLS: (u64, u64) = (6, 30);
/// Calls that a driver without memory refuses.
const REFUSED: [Refusable; 3] = [Refusable::CreateOnGpu, Refusable::Map, Refusable::Register];
/// Prefetches of a program with managed memory that fail for want of memory: every ninth one from the fifth on.
const FAILED_PREFETCHES: &str = "cuMemPrefetchAsync@5/9=2";

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

/// Moment at which a program is to be killed, if it is, and orders for its driver.
pub(super) fn orders(dice: &mut Dice, backend: Backend) -> (Option<&'static str>, String) {
    let usual = if backend == Backend::Remap { "" } else { FAILED_PREFETCHES };
    if dice.one_in(SURVIVORS) {
        return (None, usual.to_owned());
    }
    let calls = deadly_calls(backend);
    let (moment, call) = calls[dice.index(calls.len())];
    let number = CALLS.0 + dice.below(CALLS.1 - CALLS.0);
    (Some(moment), format!("{usual},{call}@{number}=dies"))
}

/// Lets the next call of some kind fail in a program.
pub(super) fn refuse(card: &Card, worker: &Worker, dice: &mut Dice) {
    refuse_call(card, worker.program.process().pid(), REFUSED[dice.index(REFUSED.len())]);
}

/// Lets a first call of a new program fail: the registration that it makes when its memory leaves for the first time, or
/// its first allocation of managed memory.
pub(super) fn refuse_first(card: &Card, backend: Backend, pid: u32) {
    let is_remapped = backend == Backend::Remap;
    refuse_call(card, pid, if is_remapped { Refusable::Register } else { Refusable::AllocateManaged });
}

fn refuse_call(card: &Card, pid: u32, call: Refusable) {
    // A process that was just killed has no more calls to fail.
    let _ = card.refuse(pid, call, 1);
}

/// Calls that have failed so far, by their kinds.
pub(super) fn refused(card: &Card) -> anyhow::Result<BTreeMap<&'static str, u64>> {
    let Refused { create_on_gpu, map, register, allocate_managed, .. } = card.stats()?.total.refused;
    Ok(BTreeMap::from([("create", create_on_gpu + allocate_managed), ("map", map), ("register", register)]))
}

//! Invariants of the decision machine, checked after every event by its tests and by `cargo xtask replay`.
//!
//! ```text
//!   handle(now, event) ─▶ effects ─▶ Invariants::after(core, event, effects) ─▶ Ok, or the first Broken
//! ```
//!
//! No daemon runs these checks. Rules about one moment examine the decision machine alone. Rules about values
//! that may only change in one direction remember the moment before.

mod admission;
mod frost;
mod residency;
mod turns;

use std::collections::BTreeMap;
use std::fmt;

use gpushare_proto::{Bytes, ClientId, Epoch, GpuId, SessionId};

use crate::card::index::CardIndex;
use crate::events::{Effect, Event};
use crate::machine::Core;
use crate::memory::sums::{Sums, Total};
use crate::session::Session;
use crate::session::gate::Passage;
use crate::session::lock::Lock;
use crate::session::on_card::{Listing, Presence};
use crate::values::gpu_set::GpuSet;
use crate::view::updates::FEW;
use admission::Admission;
use residency::Residency;
use turns::Turns;

/// Invariant of the decision machine that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The violated invariant, as a sentence.
    pub rule: &'static str,
    /// Values that violate the invariant, in words.
    pub found: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.found)
    }
}

impl std::error::Error for Broken {}

/// Checks the invariants about one moment, between two events.
///
/// # Errors
/// Returns the first invariant that does not hold.
pub fn check(core: &Core) -> Result<(), Broken> {
    dead_processes_hold_nothing(core)?;
    if core.recalls.is_waiting() {
        // The machine settles when it has the answers that the shell owes.
        return Ok(());
    }
    counts_agree(core)?;
    first_waiters_are_found(core)?;
    holders_fit(core)?;
    fixed_memory_takes_room(core)?;
    waits_are_bounded(core)?;
    for (id, session) in core.view.sessions.iter() {
        gates_agree_with_the_lock(core, id, session)?;
    }
    nothing_was_overlooked(core)?;
    frost::check(core)?;
    deadlines_lie_ahead(core)
}

/// Checker of a decision machine's invariants, event by event.
#[derive(Clone, Debug, Default)]
pub struct Invariants {
    epoch: Epoch,
    /// Leased bytes of each session on each card, without and with the rounding of its chunks.
    leased: BTreeMap<(SessionId, GpuId), (Bytes, Bytes)>,
    managed: BTreeMap<GpuId, Bytes>,
    admission: Admission,
    turns: Turns,
    residency: Residency,
}

impl Invariants {
    /// Checks all invariants after the decision machine handled `event` and gave `effects`.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    pub fn after(&mut self, core: &Core, event: Event, effects: &[Effect]) -> Result<(), Broken> {
        check(core)?;
        effects_reach_somebody(core, effects)?;
        frost::steps_begin_one_by_one(core, effects)?;
        frost::nobody_is_killed_who_is_spared(core, effects)?;
        self.epochs_rise(core, effects)?;
        self.turns.after(core, event, effects)?;
        self.leases_grow_within_limits(core, event)?;
        self.managed_memory_grows_within_its_limit(core, event)?;
        self.admission.after(core, effects)?;
        self.residency.after(core, event, effects)
    }

    fn epochs_rise(&mut self, core: &Core, effects: &[Effect]) -> Result<(), Broken> {
        let rule = "epochs rise, and no two sessions have the same";
        hold(rule, core.last_epoch >= self.epoch, || format!("{} after {}", core.last_epoch, self.epoch))?;
        let grants = core.view.sessions.values().filter_map(|session| session.lock.grant());
        let mut epochs: Vec<Epoch> = grants.map(|grant| grant.epoch).collect();
        epochs.sort_unstable();
        let twice = epochs.windows(2).find(|pair| pair[0] == pair[1]);
        hold(rule, twice.is_none(), || format!("two of {twice:?}"))?;
        for effect in effects {
            if let Effect::Gate { word, epoch, .. } = effect {
                let known = *epoch <= core.last_epoch && word.change() > 0;
                hold(rule, known, || format!("{effect:?} at {}", core.last_epoch))?;
            }
        }
        self.epoch = core.last_epoch;
        Ok(())
    }

    /// Checks that memory beyond the quota is booked only for bytes that a returning process reports as used.
    fn leases_grow_within_limits(&mut self, core: &Core, event: Event) -> Result<(), Broken> {
        let before = std::mem::take(&mut self.leased);
        for (id, session) in core.view.sessions.iter() {
            for (gpu, card) in core.view.cards.iter() {
                let sums = session.sums(gpu);
                let (leased, whole) = (sums.leased.get(), sums.leased.get() + sums.rounding.get());
                let (leased_before, whole_before) = before.get(&(id, gpu)).copied().unwrap_or_default();
                let grew = leased > leased_before;
                if grew && !matches!(event, Event::Attached { .. } | Event::StillUses { .. }) {
                    let charged = sums.beside_leases();
                    let ceiling = card.ceiling(&sums, session.quota.may_oversubscribe());
                    // A piece of a block that the process has takes no more of the card.
                    let may_be_piece = matches!(event, Event::ReservePiece { .. } | Event::Recalled { .. });
                    let most = Sums { rounding: Total::default(), ..sums };
                    let most = card.ceiling(&most, session.quota.may_oversubscribe());
                    let is_housed = may_be_piece && whole <= whole_before && leased <= most;
                    let fits = leased <= ceiling || is_housed;
                    let within = session.may_grow() && leased + charged <= session.quota.on(gpu) && fits;
                    hold("granted quota never grows beyond a limit", within, || {
                        format!(
                            "{id} grew to {leased} on {gpu}, beside {charged} that are charged; its quota is {}, its ceiling {ceiling}",
                            session.quota.on(gpu),
                        )
                    })?;
                }
                self.leased.insert((id, gpu), (leased, whole));
            }
        }
        Ok(())
    }

    /// Checks that managed memory grows only within its limit. A process that reports less fixed memory than
    /// before is exempt: the difference is booked, though an honest process gives it back.
    fn managed_memory_grows_within_its_limit(&mut self, core: &Core, event: Event) -> Result<(), Broken> {
        let told = matches!(
            event,
            Event::Attached { .. }
                | Event::Fixed { .. }
                | Event::ClientReturned { .. }
                | Event::StillUses { .. }
        );
        for (gpu, card) in core.view.cards.iter() {
            let managed = card.index.sums.managed.get();
            let before = self.managed.insert(gpu, managed).unwrap_or_default();
            let within = told || managed <= before || managed <= card.managed_limit();
            hold("managed memory never grows beyond its limit", within, || {
                format!("{before} grew to {managed} on {gpu} of {}", card.managed_limit())
            })?;
        }
        Ok(())
    }
}

fn hold(rule: &'static str, holds: bool, found: impl FnOnce() -> String) -> Result<(), Broken> {
    match holds {
        true => Ok(()),
        false => Err(Broken { rule, found: found() }),
    }
}

/// Checks that sums and indexes that each change updates equal those that are computed anew.
fn counts_agree(core: &Core) -> Result<(), Broken> {
    let rule = "what is counted as it changes is what there is";
    for (gpu, card) in core.view.cards.iter() {
        let (mut index, mut groups) = (CardIndex::default(), card.groups.emptied());
        for (id, session) in core.view.sessions.iter() {
            let mut sums = Sums::default();
            for (client, book) in session.books(gpu) {
                sums += Sums::of(book, core.view.assumed(gpu));
                index.lend(client, Bytes::ZERO, book.free);
            }
            for orphan in core.view.orphans.values().filter(|orphan| orphan.session == id) {
                let here = orphan.sums(|gpu| core.view.assumed(gpu)).filter(|(on, _)| *on == gpu);
                here.for_each(|(_, part)| sums += part);
            }
            hold(rule, sums == session.sums(gpu), || {
                format!("{id} has {sums:?} on {gpu}, and counts {:?}", session.sums(gpu))
            })?;
            index.sums += sums;
            if let Some(on) = session.cards.get(gpu) {
                let turns = core.view.turn_cards(id).contains(gpu);
                let bounds = (card.assumed(), session.quota.on(gpu));
                let listing = session.stance().listing(on, turns, bounds);
                index.list(id, &Listing::default(), &listing);
                groups.read(listing.branch, listing.presence == Presence::Stuck, on.entered, true);
                groups.list(id, &Listing::default(), &listing);
            }
        }
        let owed = core
            .view
            .sessions
            .values()
            .filter_map(|session| session.cards.get(gpu)?.entered);
        let owed = owed.map(|entered| u128::from(card.charge.owed(core.view.now, entered).0)).sum();
        let mut charge = card.charge;
        charge.advance(core.view.now);
        hold("charged time is conserved", charge.is_conserved(owed), || {
            format!("{owed} ns are owed on {gpu}: {charge:?}")
        })?;
        hold(rule, card.index.is_like(&index), || {
            format!("on {gpu} are {index:?}, counted are {:?}", card.index)
        })?;
        hold(rule, card.groups == groups, || {
            format!("on {gpu} are {groups:?}, counted are {:?}", card.groups)
        })?;
    }
    Ok(())
}

/// Checks the way to the first waiter that merges no line, whichever waiters are left out.
fn first_waiters_are_found(core: &Core) -> Result<(), Broken> {
    for (gpu, card) in core.view.cards.iter() {
        for left_out in 0..=3 {
            let keeps = |id: SessionId| id.0 % 3 != left_out;
            let (found, first) = (card.groups.first(keeps), card.groups.in_order(keeps).next());
            hold("the first waiter of a card is the first one in its line", found == first, || {
                format!("{found:?} was found on {gpu} in place of {first:?}")
            })?;
        }
    }
    Ok(())
}

fn holders_fit(core: &Core) -> Result<(), Broken> {
    for (gpu, card) in core.view.cards.iter() {
        hold("holders in turns fit the card, or it is one alone", card.holders_fit(), || {
            format!("{:?} in {:?}", card.index, card.mode)
        })?;
        if !card.moves_memory() {
            continue;
        }
        let holding = core
            .view
            .sessions
            .values()
            .filter(|session| matches!(session.lock, Lock::Holding(_)));
        let sets: Vec<Bytes> = holding
            .flat_map(Session::needs)
            .filter(|(card, _)| *card == gpu)
            .map(|(_, bytes)| bytes)
            .collect();
        let total: Bytes = sets.iter().copied().sum();
        let fit = sets.len() <= 1 || total <= card.capacity();
        hold("holders in turns fit the card, or it is one alone", fit, || {
            format!("{sets:?} hold {gpu} of {}", card.capacity())
        })?;
    }
    Ok(())
}

/// Checks that fixed bytes reduce the capacity, and are never more than the leased bytes, rounded up.
fn fixed_memory_takes_room(core: &Core) -> Result<(), Broken> {
    for (gpu, card) in core.view.cards.iter() {
        let sums = &card.index.sums;
        let (fixed, leased) = (card.fixed(), sums.leased.get() + sums.rounding.get());
        let agree = fixed <= leased && card.capacity() <= card.capacity_beside(fixed);
        hold("a card's capacity is without what never moves", agree, || {
            format!("{fixed} of {leased} leased are fixed on {gpu}")
        })?;
    }
    Ok(())
}

fn dead_processes_hold_nothing(core: &Core) -> Result<(), Broken> {
    let rule = "a dead client holds nothing";
    let living = core
        .view
        .sessions
        .iter()
        .flat_map(|(id, session)| session.clients.keys().map(move |client| (client, id)));
    let living: BTreeMap<ClientId, SessionId> = living.collect();
    hold(
        rule,
        living
            .iter()
            .map(|(&client, &home)| (client, home))
            .eq(core.view.sessions.clients()),
        || {
            format!(
                "{living:?} are in sessions, {:?} are alive",
                core.view.sessions.clients().collect::<Vec<_>>()
            )
        },
    )?;
    let undead = core
        .view
        .orphans
        .keys()
        .find(|client| core.view.sessions.of(**client).is_some());
    hold(rule, undead.is_none(), || format!("{undead:?} is alive and left memory behind"))?;
    let homeless = core
        .view
        .orphans
        .values()
        .find(|orphan| core.view.sessions.get(orphan.session).is_none());
    hold("memory that a dead client left is a session's", homeless.is_none(), || {
        format!("{homeless:?} is nobody's")
    })?;
    let ghost = core.recalls.clients().find(|client| core.view.sessions.of(*client).is_none());
    hold(rule, ghost.is_none(), || format!("memory is asked back from {ghost:?}"))
}

fn gates_agree_with_the_lock(core: &Core, id: SessionId, session: &Session) -> Result<(), Broken> {
    let passages: Vec<Passage> = session.attached().map(|(_, client)| client.gate.passage()).collect();
    let on_demand = session.runs_on_demand(core.view.on_demand);
    let may_close = on_demand || !session.may_run() || core.view.is_held_up(id);
    let all = |allowed: fn(&Passage) -> bool| passages.iter().all(allowed);
    // Those of processes that wait for room stay shut.
    let those_let = |allowed: fn(Passage) -> bool| {
        let mut clients = session.attached().map(|(_, client)| client);
        clients.all(|client| client.frost.is_queued() || allowed(client.gate.passage()))
    };
    let agree = match &session.lock {
        Lock::Idle | Lock::Waiting(_) => {
            let held_back = may_close || passages.is_empty();
            held_back && all(|passage| *passage == Passage::Shut)
        }
        Lock::Holding(_) if !session.may_run() => false,
        Lock::Holding(_) if on_demand => {
            those_let(|p| matches!(p, Passage::Open | Passage::Moving | Passage::Idle))
        }
        Lock::Holding(_) => those_let(|p| matches!(p, Passage::Open | Passage::Moving)),
        Lock::Dropping(_, drop) if drop.is_reopened() => may_close && all(|p| *p != Passage::Closing),
        Lock::Dropping(..) => may_close && all(|p| !matches!(p, Passage::Open | Passage::Moving)),
    };
    let rule = "the gates of a session agree with its lock";
    hold(rule, agree, || format!("{id}: {:?} with gates {passages:?}", session.lock))?;
    let has_any = !passages.is_empty() || matches!(session.lock, Lock::Idle);
    hold(rule, has_any, || format!("{id} has no processes: {:?}", session.lock))?;
    let strangers = session.clients.iter().filter(|(_, client)| !client.is_attached());
    let open = strangers
        .map(|(client, process)| (client, process.gate.passage()))
        .find(|(_, passage)| *passage != Passage::Shut);
    hold(rule, open.is_none(), || format!("{open:?} of {id} uses no card"))
}

/// Checks that the first waiter waits for holders whose quantum ends or whose drop goes on, or has a stated
/// reason.
fn waits_are_bounded(core: &Core) -> Result<(), Broken> {
    for gpu in core.view.cards.keys() {
        waits_are_bounded_on(core, core.view.tied(gpu.into()))?;
    }
    Ok(())
}

fn waits_are_bounded_on(core: &Core, tied: GpuSet) -> Result<(), Broken> {
    let rule = "every waiter has a bound on its wait or a stated reason";
    let Some(head) = core.view.admissible(tied).next() else {
        let wanted = tied.into_iter().find(|gpu| core.view.is_wanted(*gpu));
        return hold(rule, wanted.is_none(), || format!("{wanted:?} is wanted by nobody"));
    };
    let wanted = core.view.turn_cards(head).and(core.view.wanted);
    hold(rule, !wanted.is_empty(), || {
        let place = core.view.place(head).unwrap_or_default();
        format!("{head} waits for nothing: {}", place.reason)
    })?;
    for (id, session) in core.view.sessions.iter() {
        if core.view.turn_cards(id).overlaps(wanted) {
            let bounded = match &session.lock {
                Lock::Idle | Lock::Waiting(_) => true,
                Lock::Holding(_) => core.view.lock_deadline(session).is_some(),
                Lock::Dropping(_, drop) => {
                    core.view.lock_deadline(session).is_some() || drop.stuck().is_some()
                }
            };
            hold(rule, bounded, || format!("{head} waits for {id} without bound: {:?}", session.lock))?;
        }
    }
    Ok(())
}

/// Checks that examining every session and card finds no change that the agenda missed. Updates that many
/// processes may be sent late are left out.
fn nothing_was_overlooked(core: &Core) -> Result<(), Broken> {
    let mut again = core.clone();
    again.effects.clear();
    again.touch_all();
    again.settle();
    let crowd = core.view.sessions.len() > FEW;
    let news = |effect: &Effect| matches!(effect, Effect::Figures { .. } | Effect::Queued { .. });
    let found = again.effects.iter().find(|effect| !(crowd && news(effect)));
    hold("nothing that changed was overlooked", found.is_none(), || format!("{found:?}"))?;
    let (before, after) = (core.next_deadline(), again.next_deadline());
    hold("nothing that changed was overlooked", before == after || crowd, || {
        format!("the next deadline was {before:?} and is {after:?}")
    })
}

fn deadlines_lie_ahead(core: &Core) -> Result<(), Broken> {
    let deadline = core.next_deadline();
    let ahead = deadline.is_none_or(|at| at > core.view.now);
    hold("no deadline stays in the past", ahead, || format!("{deadline:?} at {:?}", core.view.now))
}

fn effects_reach_somebody(core: &Core, effects: &[Effect]) -> Result<(), Broken> {
    for effect in effects {
        let target = match effect {
            Effect::Kill { client } if core.view.recovery.is_awaited(*client) => continue,
            Effect::Gate { client, .. }
            | Effect::Flags { client, .. }
            | Effect::DrainTarget { client, .. }
            | Effect::Figures { client, .. }
            | Effect::Lease { client, .. }
            | Effect::Refuse { client, .. }
            | Effect::Recall { client, .. }
            | Effect::Queued { client, .. }
            | Effect::Extend { client, .. }
            | Effect::Room { client, .. }
            | Effect::Goal { client, .. }
            | Effect::HostTarget { client, .. }
            | Effect::Freeze { client }
            | Effect::Thaw { client }
            | Effect::Kill { client } => client,
            Effect::Notice(_) => continue,
        };
        hold("nobody is told anything but the living", core.view.sessions.of(*target).is_some(), || {
            format!("{effect:?}")
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use gpushare_proto::Nanos;

    use super::*;
    use crate::Config;

    const GPU: GpuId = GpuId(0);

    #[test]
    fn a_broken_rule_is_named_with_what_was_found() {
        let mut core = Core::new(Config::default(), 1, [].into(), Nanos(1));
        let mut invariants = Invariants::default();
        let event = Event::GpuFound { gpu: GPU, total: Bytes::gib(1) };
        core.handle(Nanos(2), event);
        assert_eq!(invariants.after(&core, event, &[]), Ok(()));

        let ghost = Effect::Kill { client: ClientId(9) };
        let broken = invariants.after(&core, event, &[ghost]).unwrap_err();
        assert_eq!(
            broken.to_string(),
            "nobody is told anything but the living: Kill { client: ClientId(9) }"
        );
        core.recalls.ask(ClientId(9), GPU, Bytes::ZERO);
        let broken = invariants.after(&core, event, &[]).unwrap_err();
        assert_eq!(broken.rule, "a dead client holds nothing");
    }
}

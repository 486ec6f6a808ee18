//! Invariants of remapped memory (`docs/design/residency.md`), checked after every event.
//!
//! The checker keeps its own list of the goals that each process was given and has acknowledged. So an error in
//! the claims of `residency/facts.rs` is found too.
//!
//! A limit can shrink below what processes have, and a process can report anything. So the sums are compared
//! with what they would be without the goals of this event: a goal makes none of them too large.

use std::collections::BTreeMap;

use gpushare_proto::page::GoalNumber;
use gpushare_proto::{Bytes, ClientId, GpuId};

use super::{Broken, hold};
use crate::events::{Effect, Event, Lack};
use crate::machine::Core;
use crate::memory::book::Book;
use crate::memory::sums::Total;
use crate::residency::CHUNK;
use crate::residency::plan::{self, Rank, Row};
use crate::session::Session;

/// Goals of one process on one card.
#[derive(Clone, Debug, Default)]
struct Given {
    goals: Vec<(GoalNumber, Bytes)>,
    seen: GoalNumber,
}

impl Given {
    fn last(&self) -> GoalNumber {
        self.goals.last().map_or(GoalNumber::NONE, |&(number, _)| number)
    }

    fn latest(&self) -> Option<Bytes> {
        self.goals.last().map(|&(_, bytes)| bytes)
    }

    fn claim(&self, resident: Bytes) -> Bytes {
        let open = self.goals.iter().filter(|&&(number, _)| number >= self.seen);
        open.map(|&(_, bytes)| bytes).max().unwrap_or_default().max(resident)
    }
}

/// Checker of the invariants of remapped memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Residency {
    given: BTreeMap<(GpuId, ClientId), Given>,
}

/// Sums over the processes of all cards, once with and once without the goals of an event.
#[derive(Clone, Debug, Default)]
struct Sums {
    claims: BTreeMap<GpuId, Total>,
    hosted: Total,
}

impl Residency {
    /// Checks the invariants after the decision machine handled `event` and gave `effects`.
    pub(super) fn after(&mut self, core: &Core, event: Event, effects: &[Effect]) -> Result<(), Broken> {
        let lives = |gpu, client| core.view.book(client, gpu).is_some();
        self.given.retain(|&(gpu, client), _| lives(gpu, client));
        if let Event::Resides { client, gpu, seen, .. } = event
            && let Some(given) = self.given.get_mut(&(gpu, client))
        {
            given.seen = given.seen.max(seen.min(given.last()));
        }
        let before = self.sums(core);
        for effect in effects {
            if let Effect::Goal { client, gpu, number, bytes } = *effect {
                self.goal(core, client, gpu, number, bytes)?;
            }
            if let Effect::HostTarget { client, gpu, bytes } = *effect {
                let most = core.view.figures(client, gpu).map(|figures| figures.whole + CHUNK);
                hold("nobody prepares more host memory than it uses", most >= Some(bytes), || {
                    format!("{client} got {bytes} on {gpu}, and needs {most:?}")
                })?;
            }
        }
        let after = self.sums(core);
        for (&gpu, &claims) in &after.claims {
            let most = Total::from(core.view.for_remapped(gpu)).max(before.claims[&gpu]);
            hold("no goal lets more onto a card than it has", claims <= most, || {
                format!(
                    "{claims:?} may be on {gpu} of {:?}, before {:?}",
                    core.view.for_remapped(gpu),
                    before
                )
            })?;
        }
        only_excess_is_asked_to_leave(core, effects)?;
        let most = Total::from(core.view.host.budget()).max(before.hosted);
        hold("no goal lets more into host memory than its budget", after.hosted <= most, || {
            format!("{:?} of {}, before {:?}", after.hosted, core.view.host.budget(), before.hosted)
        })?;
        if core.recalls.is_waiting() {
            return Ok(());
        }
        self.hints_are_lifted(core)?;
        for (gpu, card) in core.view.cards.iter() {
            let listed = core.view.remapped.contains(gpu);
            hold("cards with remapped memory are listed", listed != card.residents.is_empty(), || {
                format!("{gpu} among {:?}: {:?}", core.view.remapped, card.residents)
            })?;
            let rows = core.view.rows(gpu);
            hints_end_with_the_way_in(core, gpu)?;
            bytes_have_a_place(gpu, &rows)?;
            only_the_excess_leaves(core, gpu, &rows)?;
            waits_for_memory_end(core, gpu, &rows)?;
            only_the_rest_overflows(core, gpu, &rows)?;
            handoffs_last_as_long_as_moves(core, gpu, &rows)?;
        }
        Ok(())
    }

    fn sums(&self, core: &Core) -> Sums {
        let mut sums = Sums::default();
        for gpu in core.view.cards.keys() {
            let mut claims = Total::default();
            for row in core.view.rows(gpu) {
                let given = self.given.get(&(gpu, row.client)).cloned().unwrap_or_default();
                claims += given.claim(row.figures.resident).into();
                sums.hosted += row.figures.host_claim(given.latest()).into();
            }
            sums.claims.insert(gpu, claims);
        }
        sums
    }

    /// Checks one goal against the one before, and notes it.
    fn goal(
        &mut self,
        core: &Core,
        client: ClientId,
        gpu: GpuId,
        number: GoalNumber,
        bytes: Bytes,
    ) -> Result<(), Broken> {
        if !core.view.remaps(client) {
            return self.hint(core, client, gpu, number, bytes);
        }
        hold("no goal is given while processes are about to return", !core.view.awaits_reports(gpu), || {
            format!("{client} got {bytes} on {gpu}")
        })?;
        let given = self.given.entry((gpu, client)).or_default();
        hold("the numbers of goals rise", number > given.last(), || {
            format!("{client} got {number:?} after {:?}", given.last())
        })?;
        let (before, resident) =
            (given.latest(), core.view.figures(client, gpu).map(|figures| figures.resident));
        let resident = resident.unwrap_or_default();
        let session = core.view.session_of(client).and_then(|id| core.view.sessions.get(id));
        let has_lock = session.is_some_and(|session| session.lock.grant().is_some());
        let drained =
            session.is_some_and(|session| session.attached().all(|(_, client)| client.gate.let_go()));
        let rule = "memory leaves only after a session let go, and comes in only with its lock";
        let allowed = match has_lock {
            true => bytes >= resident || before.is_some_and(|before| before <= bytes),
            false => bytes <= resident.max(before.unwrap_or_default()) && (bytes >= resident || drained),
        };
        hold(rule, allowed, || {
            format!("{client} has {resident} on {gpu} and got {bytes} after {before:?}; lock: {has_lock}")
        })?;
        let seen = given.seen;
        given.goals.retain(|&(number, _)| number >= seen);
        given.goals.push((number, bytes));
        Ok(())
    }

    /// Checks one goal for managed memory, and notes it.
    fn hint(
        &mut self,
        core: &Core,
        client: ClientId,
        gpu: GpuId,
        number: GoalNumber,
        bytes: Bytes,
    ) -> Result<(), Broken> {
        let given = self.given.entry((gpu, client)).or_default();
        hold("the numbers of goals rise", number > given.last(), || {
            format!("{client} got {number:?} after {:?}", given.last())
        })?;
        given.goals = vec![(number, bytes)];
        let movable = core.view.book(client, gpu).map_or(Bytes::ZERO, Book::movable);
        hold(
            "a goal for managed memory asks for some of it, or is lifted",
            bytes < movable || bytes == Bytes::MAX,
            || format!("{client} has {movable} on {gpu} and got {bytes}"),
        )
    }

    /// Checks that goals for managed memory are lifted, apart from those in force.
    fn hints_are_lifted(&self, core: &Core) -> Result<(), Broken> {
        let is_over = |&(gpu, client): &(GpuId, ClientId)| {
            let card = core.view.cards.get(gpu);
            let hinted = card.map(|card| card.hints.hinted()).unwrap_or_default();
            let session = core.view.session_of(client);
            !core.view.remaps(client) && session.is_none_or(|session| !hinted.contains(&session))
        };
        let bound = self.given.iter().filter(|(_, given)| given.latest() != Some(Bytes::MAX));
        let over = bound.map(|(key, _)| key).find(|&key| is_over(key));
        hold("no goal for managed memory outlives the way in", over.is_none(), || format!("{over:?}"))
    }
}

/// Checks that new goals for managed memory leave what fits beside the holders, and are given only if not all fits.
fn only_excess_is_asked_to_leave(core: &Core, effects: &[Effect]) -> Result<(), Broken> {
    let mut stays: BTreeMap<GpuId, Total> = BTreeMap::new();
    for effect in effects {
        if let Effect::Goal { client, gpu, bytes, .. } = *effect
            && bytes != Bytes::MAX
            && !core.view.remaps(client)
        {
            *stays.entry(gpu).or_default() += bytes.into();
        }
    }
    for (gpu, stays) in stays {
        let room = Total::from(core.view.room_for_leavers(gpu));
        // Added up here, since the sums of the card end at the largest number, which one liar may reach.
        let leavers = core.view.sessions.values().filter(|session| session.lock.grant().is_none());
        let mut others = Total::default();
        leavers
            .flat_map(|session| session.managed(gpu))
            .for_each(|(_, bytes)| others += bytes.into());
        let is_excess = stays <= room && others > room;
        hold("only the excess of managed memory is asked to leave", is_excess, || {
            format!("{stays:?} of {others:?} may stay on {gpu} in {room:?}: {effects:?}")
        })?;
    }
    Ok(())
}

/// Checks that managed memory is asked to leave only while a session comes in, and never that of a process whose gate
/// may be open.
fn hints_end_with_the_way_in(core: &Core, gpu: GpuId) -> Result<(), Broken> {
    let Some(card) = core.view.cards.get(gpu) else { return Ok(()) };
    let holders = card.index.holders.iter().filter_map(|&id| core.view.sessions.get(id));
    let comes_in = holders.clone().any(Session::is_moving);
    hold("goals for managed memory end with the way in", comes_in || card.hints.hinted().is_empty(), || {
        format!("{:?} on {gpu}: {:?}", card.hints, holders.collect::<Vec<_>>())
    })?;
    let lets_go = |session: &Session| {
        let let_go =
            session.lock.grant().is_none() && session.clients.values().all(|client| client.gate.let_go());
        let_go || session.managed(gpu).next().is_none()
    };
    let mut hinted = card.hints.hinted().iter().filter_map(|&id| core.view.sessions.get(id));
    let holder = hinted.find(|session| !lets_go(session));
    hold("managed memory leaves only after its session let go", holder.is_none(), || {
        format!("{:?} on {gpu}: {holder:?}", card.hints)
    })
}

/// Checks that used bytes are resident or hosted, and that pinned bytes are resident.
fn bytes_have_a_place(gpu: GpuId, rows: &[Row]) -> Result<(), Broken> {
    let lost = rows.iter().find(|row| {
        let figures = row.figures;
        figures.used > figures.resident + figures.hosted + figures.unbacked
            || figures.pinned > figures.resident
            || figures.resident > figures.claim
            || figures.goal > Some(figures.claim)
    });
    hold("all used bytes have a place", lost.is_none(), || format!("{lost:?} on {gpu}"))
}

fn handoffs_last_as_long_as_moves(core: &Core, gpu: GpuId, rows: &[Row]) -> Result<(), Broken> {
    let Some(card) = core.view.cards.get(gpu) else { return Ok(()) };
    let moves = |row: &Row| {
        let process = card.residents.get(row.client);
        process.is_some_and(|process| !process.transfer.rest(row.figures.resident).is_zero())
    };
    let moves = rows.iter().any(moves);
    let is_running = card.residents.handoffs.began().is_some();
    let said = || format!("{gpu}: {:?}", card.residents);
    hold("memory moves only in a handoff", is_running || !moves, said)?;
    let goes_on = moves || rows.iter().any(|row| core.view.enters(row));
    hold("a handoff ends with its last move", goes_on || !is_running, said)
}

fn only_the_excess_leaves(core: &Core, gpu: GpuId, rows: &[Row]) -> Result<(), Broken> {
    let mut leaving = Total::default();
    for row in rows.iter().filter(|row| row.gives() && !row.leaves) {
        leaving += row.figures.goal.map_or(Bytes::ZERO, |goal| row.figures.resident - goal).into();
    }
    let most = plan::excess(rows, core.view.for_remapped(gpu)) + CHUNK;
    let fits = leaving <= most.into() || core.view.awaits_reports(gpu);
    hold("only the excess leaves a card", fits, || format!("{leaving:?} of {most} leave {gpu}: {rows:?}"))
}

/// Checks that each move has a deadline, and that holders which lack memory wait for a move or have a stated
/// reason.
fn waits_for_memory_end(core: &Core, gpu: GpuId, rows: &[Row]) -> Result<(), Broken> {
    let rule = "every holder that lacks memory has a move to wait for or a stated reason";
    let Some(card) = core.view.cards.get(gpu) else { return Ok(()) };
    let waiting = rows.iter().find(|row| {
        let gets = matches!(row.rank, Rank::Holds(_)) && row.gets();
        gets && row.figures.goal < Some(row.figures.whole) && !card.residents.overflows(row.client)
    });
    let Some(row) = waiting.filter(|_| !core.view.awaits_reports(gpu)) else {
        return Ok(());
    };
    let bounded = match card.residents.wait_reason {
        Some(Lack::Moves) => card.residents.deadline().is_some_and(|at| core.next_deadline() <= Some(at)),
        Some(Lack::HostMemory | Lack::Kept) => true,
        None => false,
    };
    hold(rule, bounded, || format!("{row:?} lacks memory on {gpu}: {:?}", card.residents))
}

/// Checks that processes map from the host only what the card has no room for, once nobody gives any more.
fn only_the_rest_overflows(core: &Core, gpu: GpuId, rows: &[Row]) -> Result<(), Broken> {
    let rule = "only what the card has no room for is mapped from the host";
    let Some(card) = core.view.cards.get(gpu).filter(|_| !core.view.awaits_reports(gpu)) else {
        return Ok(());
    };
    let is_final = !card.awaits_room() && !plan::rest_moves(rows);
    let mut overflows = rows.iter().filter(|row| card.residents.overflows(row.client));
    let wrong = overflows.find(|row| !row.needs_higher_goal() || !row.may_overflow || !is_final);
    hold(rule, wrong.is_none(), || format!("{wrong:?} overflows {gpu}: {rows:?}"))
}

#[cfg(test)]
mod tests {
    use gpushare_proto::{Nanos, SessionId};

    use gpushare_proto::tenant::Residence;

    use super::*;
    use crate::Config;

    const GPU: GpuId = GpuId(0);
    const REMAPS: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);

    /// A machine with a card of 10 GiB, a process that remaps and has 4 GiB there, and one that does not.
    fn machine() -> Core {
        let mut core = Core::new(Config::default(), 1, [].into(), Nanos(1));
        let session = SessionId(1);
        let (seen, resident) = (GoalNumber(0), Bytes::gib(4));
        for event in [
            Event::GpuFound { gpu: GPU, total: Bytes::gib(10) },
            Event::SessionOpened { session, limit: None, oversubscribe: false },
            Event::ClientJoined { client: REMAPS, session, holding: None },
            Event::ClientJoined { client: OTHER, session, holding: None },
            Event::Remaps { client: REMAPS },
            Event::Attached { client: REMAPS, gpu: GPU, used: resident },
            Event::Attached { client: OTHER, gpu: GPU, used: Bytes::ZERO },
            Event::Resides {
                client: REMAPS,
                gpu: GPU,
                seen,
                residence: Residence { resident, ..Residence::default() },
            },
        ] {
            core.handle(Nanos(2), event);
        }
        core
    }

    /// Rule that goals break, one after the other, of the process that the goals are for.
    fn broken(client: ClientId, goals: &[u64]) -> &'static str {
        let core = machine();
        let goals = goals.iter().zip(1..).map(|(&gibs, number)| Effect::Goal {
            client,
            gpu: GPU,
            number: GoalNumber(number),
            bytes: Bytes::gib(gibs),
        });
        let goals: Vec<Effect> = goals.collect();
        let broken = Residency::default().after(&core, Event::Tick, &goals);
        broken.map_or_else(|broken| broken.rule, |()| "none")
    }

    #[test]
    fn each_broken_rule_is_named() {
        assert_eq!(broken(REMAPS, &[5]), "none");
        assert_eq!(broken(OTHER, &[5]), "a goal for managed memory asks for some of it, or is lifted");
        assert_eq!(broken(REMAPS, &[11]), "no goal lets more onto a card than it has");
        assert_eq!(
            broken(REMAPS, &[11, 5]),
            "no goal lets more onto a card than it has",
            "the first may be seen"
        );
        let leaves = "memory leaves only after a session let go, and comes in only with its lock";
        assert_eq!(broken(REMAPS, &[3]), leaves);
        let core = machine();
        let again = Effect::Goal { client: REMAPS, gpu: GPU, number: GoalNumber(1), bytes: Bytes::gib(5) };
        let mut rules = Residency::default();
        assert_eq!(rules.after(&core, Event::Tick, std::slice::from_ref(&again)), Ok(()));
        let rule = rules.after(&core, Event::Tick, &[again]).unwrap_err().rule;
        assert_eq!(rule, "the numbers of goals rise");
    }
}

//! Plan for one card: who gives up how much for whom. It is a pure function of rows, one for each process.
//!
//! ```text
//!   excess = Σ what holders need + Σ what is resident of the others − what the card has
//!
//!   furthest next turn ──▶ gives ─┐                    ┌─▶ first holder
//!   …                      gives ─┴─▶ acknowledged ────┼─▶ second holder
//!   next turn              keeps      as gone          └─▶ …
//! ```
//!
//! The excess falls as memory leaves, and the targets of those who give stay the same meanwhile. So the plan
//! can be made again after each event. Room is handed out only once it is acknowledged as gone: the sum of all
//! claims never grows beyond what the card has.
//!
//! A process *overflows* the card if it still lacks memory when nobody gives any more. Then it maps the rest from the
//! host: at once if its session may be larger than the card, else after it has waited in vain. Others may have taken its
//! room with memory that cannot leave, or one of them does not answer.

use std::cmp::Reverse;

use gpushare_proto::{Bytes, ClientId, Nanos};
use smallvec::SmallVec;

use crate::events::Lack;
use crate::memory::sums::Total;
use crate::residency::facts::Figures;
use crate::residency::transfer::Way;
use crate::residency::{CHUNK, GRAIN};

/// Right of a process to be on the card. The order is that of keeping memory: holders first, by their grants,
/// then the others by their next turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// Its session has the lock, by a grant of this number.
    Holds(u64),
    /// Its session was asked for the lock, and its work in flight has not ended.
    Drains,
    /// Its session waits for its turn, behind so many others.
    Waits(u32),
    /// Its session has no work, or its compute limit is used up. It last had the lock at this time, if ever.
    Idles(Reverse<Option<Nanos>>),
    /// Its session may not run.
    Barred,
}

impl Rank {
    /// Whether the session has the lock.
    pub(crate) const fn has_lock(self) -> bool {
        matches!(self, Self::Holds(_) | Self::Drains)
    }
}

/// Process with remapped memory on the card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) client: ClientId,
    pub(crate) rank: Rank,
    pub(crate) figures: Figures,
    /// Whether it is to let go and may be at work until then.
    pub(crate) ends_work: bool,
    /// Direction of a move that the process did not carry out in time.
    pub(crate) late: Option<Way>,
    /// Whether the process may map from the host what the card has no room for.
    pub(crate) may_overflow: bool,
    /// Whether all its memory is to leave, since its session is to be frozen.
    pub(crate) leaves: bool,
    /// Whether the driver is to bring the process back before its memory comes in.
    pub(crate) returns: bool,
}

/// Memory that a card and the node have for the processes of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply {
    /// Bytes of the card, without fixed and absent memory.
    pub(crate) card: Bytes,
    /// Bytes of host memory that evictions may still bring.
    pub(crate) host: Bytes,
    /// Whether the card is about to have more, before any process of the plan moves memory.
    pub(crate) grows: bool,
}

/// Goals that differ from the present ones, who overflows, and the reason why another holder waits for memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) goals: SmallVec<[(ClientId, Bytes); 4]>,
    /// Reason why a holder that does not overflow the card has less memory than it needs.
    pub(crate) wait_reason: Option<Lack>,
    /// Processes that lack memory which nobody gives.
    pub(crate) lacks: SmallVec<[ClientId; 1]>,
    /// Processes of `lacks` that overflow the card.
    pub(crate) overflows: SmallVec<[ClientId; 1]>,
    /// Whether the host memory is too small for all that must leave.
    pub(crate) host_is_full: bool,
}

impl Row {
    /// Bytes that must be on the card for the process's turn, or count there meanwhile.
    fn needs(&self) -> Bytes {
        match self.late {
            // Nobody takes its credit back.
            Some(_) => self.figures.claim.max(self.figures.resident),
            // It keeps its credit until it has let go.
            None if self.rank == Rank::Drains => {
                let whole = if self.gets() { self.figures.whole } else { Bytes::ZERO };
                claim_after_move(self).max(whole)
            }
            None if self.gets() => self.figures.whole,
            None => self.figures.resident,
        }
    }

    /// Whether the process may be given more. One that ends its work gets what it allocates for that, as for a capture.
    pub(crate) fn gets(&self) -> bool {
        let may_grow = matches!(self.rank, Rank::Holds(_)) || (self.rank == Rank::Drains && self.ends_work);
        may_grow && self.late != Some(Way::In) && !self.returns
    }

    /// Whether the process needs more than its goal allows.
    pub(crate) fn needs_higher_goal(&self) -> bool {
        self.gets() && self.figures.goal < Some(self.figures.whole)
    }

    /// Whether all memory of the process is on the card.
    pub(crate) fn is_whole(&self) -> bool {
        self.figures.resident >= self.figures.whole
    }

    /// Whether the process may be asked for its memory.
    pub(crate) fn gives(&self) -> bool {
        !self.rank.has_lock() && self.late != Some(Way::Out)
    }

    /// Bytes of host memory that the plan cannot take back: a process that is asked now counts without its goal.
    pub(crate) fn host_claim(&self) -> Bytes {
        self.figures.host_claim(self.figures.goal.filter(|_| !self.gives()))
    }
}

/// Bytes that must leave the card: what all need, less what the card has.
pub(crate) fn excess(rows: &[Row], card: Bytes) -> Bytes {
    let mut needed = Total::default();
    rows.iter().for_each(|row| needed += row.needs().into());
    needed -= card.into();
    needed.get()
}

/// Sum of what the processes may have on the card by now.
pub(crate) fn claims(rows: &[Row]) -> Total {
    let mut sum = Total::default();
    rows.iter().for_each(|row| sum += row.figures.claim.into());
    sum
}

/// Plans the goals on a card. `rows` are sorted by rank.
pub(crate) fn plan(rows: &mut [Row], supply: Supply) -> Plan {
    let mut plan = Plan::default();
    let short = is_short(rows, supply.card);
    plan.host_is_full = give(rows, supply, short, &mut plan);
    get(rows, supply.card, short, &mut plan);
    let moves = rest_moves(rows);
    let is_final = !moves && !supply.grows;
    let waiting = || rows.iter().filter(|row| row.needs_higher_goal());
    if is_final {
        plan.lacks = waiting().map(|row| row.client).collect();
        plan.overflows = waiting().filter(|row| row.may_overflow).map(|row| row.client).collect();
    }
    if waiting().any(|row| !is_final || !row.may_overflow) {
        plan.wait_reason = Some(match (moves, plan.host_is_full) {
            (true, _) => Lack::Moves,
            (false, true) => Lack::HostMemory,
            (false, false) => Lack::Kept,
        });
    }
    plan
}

/// Whether room on the card is about to become free, since processes give up memory or credit.
pub(crate) fn rest_moves(rows: &[Row]) -> bool {
    rows.iter()
        .any(|row| row.late.is_none() && row.figures.claim > claim_after_move(row))
}

/// Claim of a process once it has followed its latest goal. With the lock it keeps what is resident, and gives up only
/// credit.
fn claim_after_move(row: &Row) -> Bytes {
    match row.rank.has_lock() {
        true => row.figures.goal.unwrap_or_default().max(row.figures.resident),
        false => row.figures.goal.unwrap_or(row.figures.resident),
    }
}

/// Whether holders cannot get what they lack without somebody who gives.
fn is_short(rows: &[Row], card: Bytes) -> bool {
    let mut wanted = claims(rows);
    for row in rows.iter().filter(|row| row.needs_higher_goal()) {
        wanted += (row.figures.whole - row.figures.claim).into();
    }
    wanted > card.into()
}

/// Lowers the goals of those who give, and calls off what is not needed any more. Returns whether the host
/// memory was too small for the excess.
fn give(rows: &mut [Row], supply: Supply, short: bool, plan: &mut Plan) -> bool {
    let (mut excess, mut host, mut host_is_full) = (excess(rows, supply.card), supply.host, false);
    for row in rows.iter_mut().rev() {
        let Figures { resident, pinned, goal, whole, .. } = row.figures;
        let mut target = resident;
        // Only the last one to give may keep a goal that is lower than needed.
        let mut is_last = false;
        if row.gives() && (row.leaves || !excess.is_zero()) {
            let base = row.figures.host_claim(None);
            let movable = if row.leaves { resident - pinned } else { excess.min(resident - pinned) };
            let taken = movable.min(resident - (whole - (base + host)));
            host_is_full |= taken < movable;
            excess -= taken;
            target = resident - taken;
            host -= row.figures.host_claim(Some(target)) - base;
            is_last = excess.is_zero() && !row.leaves;
        }
        let Some(goal) = goal else {
            // Without a goal it neither evicts nor creates.
            if target < resident {
                set(row, target, plan);
            }
            continue;
        };
        let new = match row.rank {
            // Its move in has stopped.
            Rank::Holds(_) if !row.gets() => goal.min(resident),
            // Room for what it may allocate next is of more use to a holder that lacks memory.
            Rank::Holds(_) if short => goal.min(whole),
            Rank::Holds(_) | Rank::Drains => goal,
            // It is not asked again, and may wake up.
            _ if !row.gives() => goal,
            _ if is_last && goal <= target && target - goal < CHUNK => goal,
            _ if target < resident => target,
            _ if short || goal < resident || row.leaves => target,
            _ => goal,
        };
        if new != goal {
            set(row, new, plan);
        }
    }
    host_is_full
}

/// Raises the goals of holders as far as there is room: first to what they need, then for what they may
/// allocate next.
fn get(rows: &mut [Row], card: Bytes, short: bool, plan: &mut Plan) {
    let mut room = Total::from(card);
    room -= claims(rows);
    let mut room = room.get();
    let mut raise = |row: &mut Row, enough: Bytes, most: Bytes, plan: &mut Plan| {
        let Figures { goal, claim, .. } = row.figures;
        let reach = most.min(claim + room);
        let now = goal.unwrap_or_default();
        // A few bytes are of no use, unless they are the last ones.
        if goal.is_some_and(|goal| goal >= enough)
            || (reach < enough && reach < now + GRAIN && goal.is_some())
        {
            return;
        }
        room -= reach - claim;
        set(row, reach, plan);
    };
    for row in rows.iter_mut().filter(|row| row.gets()) {
        let whole = row.figures.whole;
        raise(row, whole, whole, plan);
    }
    if short || rows.iter().any(Row::needs_higher_goal) {
        return;
    }
    let may_allocate = |row: &&mut Row| row.gets() && row.rank != Rank::Drains && row.figures.reports;
    for row in rows.iter_mut().filter(may_allocate) {
        // What is leased may be allocated without a message, and takes whole chunks.
        let Figures { used, leased, whole, .. } = row.figures;
        let most = whole + (leased - used) + CHUNK;
        raise(row, most, most, plan);
    }
}

/// Gives a process a new goal, in the plan and in its row.
fn set(row: &mut Row, goal: Bytes, plan: &mut Plan) {
    row.figures.claim = row.figures.claim.max(goal);
    row.figures.goal = Some(goal);
    plan.goals.retain(|&mut (client, _)| client != row.client);
    plan.goals.push((row.client, goal));
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: Bytes = Bytes::gib(1000);

    fn gib(bytes: u64) -> Bytes {
        Bytes::gib(bytes)
    }

    /// A process that uses so much, of which `resident` is on the card under a goal of the same size.
    fn row(client: u64, rank: Rank, used: u64, resident: u64) -> Row {
        let figures = Figures::of_used(gib(used), gib(resident));
        Row {
            client: ClientId(client),
            rank,
            figures,
            ends_work: false,
            late: None,
            may_overflow: false,
            leaves: false,
            returns: false,
        }
    }

    fn waits(client: u64, place: u32, used: u64, resident: u64) -> Row {
        row(client, Rank::Waits(place), used, resident)
    }

    fn goals(rows: &mut [Row], card: Bytes, host: Bytes) -> Vec<(u64, Bytes)> {
        rows.sort_by_key(|row| row.rank);
        let plan = plan(rows, Supply { card, host, grows: true });
        assert_eq!(
            super::plan(rows, Supply { card, host, grows: true }).goals.as_slice(),
            [],
            "a plan is made once"
        );
        let mut goals: Vec<_> = plan.goals.into_iter().map(|(client, goal)| (client.0, goal)).collect();
        goals.sort_unstable();
        goals
    }

    #[test]
    fn only_the_excess_leaves_and_the_last_in_the_line_gives_it() {
        let mut rows = [row(1, Rank::Holds(1), 6, 2), waits(2, 0, 6, 4), waits(3, 1, 6, 4)];
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(3, gib(0))]);
        let mut rows = [row(1, Rank::Holds(1), 6, 4), waits(2, 0, 6, 3), waits(3, 1, 6, 3)];
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(3, gib(1))]);
    }

    #[test]
    fn a_holder_gets_what_is_acknowledged_as_gone_and_no_more() {
        let mut rows = [row(1, Rank::Holds(1), 6, 4), waits(2, 0, 6, 5)];
        rows[1].figures.goal = Some(gib(4));
        rows[1].figures.claim = gib(6);
        assert_eq!(goals(&mut rows, gib(10), WIDE), []);
        rows[1].figures.claim = gib(5);
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, gib(5))]);
    }

    #[test]
    fn a_process_that_ends_its_work_gets_what_it_allocates_for_that() {
        let mut rows = [row(1, Rank::Drains, 5, 4), waits(2, 0, 4, 0)];
        assert_eq!(goals(&mut rows, gib(10), WIDE), [], "it was still to come in");
        rows[0].ends_work = true;
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, gib(5))]);
        let mut rows = [row(1, Rank::Drains, 5, 4), waits(2, 0, 8, 6)];
        rows[0].ends_work = true;
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(2, gib(5))]);
    }

    #[test]
    fn a_process_that_never_said_where_its_memory_is_gets_no_room_that_it_could_not_give_back() {
        let mut rows = [row(1, Rank::Holds(1), 0, 0), row(2, Rank::Holds(2), 4, 4)];
        rows.iter_mut().for_each(|row| row.figures.goal = None);
        rows[0].figures.reports = false;
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, gib(0)), (2, gib(4) + CHUNK)]);
        rows[0].figures.reports = true;
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, CHUNK)]);
    }

    #[test]
    fn room_for_later_allocations_goes_to_a_holder_that_lacks_memory() {
        let mut rows = [row(1, Rank::Holds(1), 6, 4), row(2, Rank::Holds(2), 4, 4)];
        rows[1].figures.leased = gib(8);
        rows[1].figures.goal = Some(gib(6));
        rows[1].figures.claim = gib(6);
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(2, gib(4))]);
        rows[1].figures.claim = gib(4);
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, gib(6))]);
    }

    #[test]
    fn idle_sessions_give_before_those_that_wait_and_the_longest_idle_first() {
        let idle = |client, left: Option<u64>| row(client, Rank::Idles(Reverse(left.map(Nanos))), 2, 2);
        let mut rows = [
            row(1, Rank::Holds(1), 8, 1),
            waits(2, 7, 2, 2),
            idle(3, Some(9)),
            idle(4, Some(5)),
            idle(5, None),
            row(6, Rank::Barred, 1, 1),
        ];
        let goals = goals(&mut rows, gib(13), WIDE);
        assert_eq!(goals, [(1, gib(4)), (4, gib(1)), (5, gib(0)), (6, gib(0))]);
    }

    #[test]
    fn unused_credit_goes_back_before_memory_moves() {
        let mut rows = [row(1, Rank::Holds(1), 6, 4), waits(2, 0, 6, 4)];
        (rows[1].figures.goal, rows[1].figures.claim) = (Some(gib(6)), gib(6));
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(2, gib(4))]);
    }

    #[test]
    fn the_credit_of_a_session_that_drains_counts_until_it_has_let_go() {
        let mut rows = [row(1, Rank::Holds(1), 6, 5), row(2, Rank::Drains, 1, 1), waits(3, 0, 6, 2)];
        (rows[1].figures.goal, rows[1].figures.claim) = (Some(gib(2)), gib(2));
        assert_eq!(goals(&mut rows, gib(9), WIDE), [(3, gib(1))]);
    }

    #[test]
    fn pinned_memory_stays() {
        let mut rows = [row(1, Rank::Holds(1), 8, 2), waits(2, 0, 4, 4), waits(3, 1, 4, 4)];
        rows[2].figures.pinned = gib(3);
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(2, gib(0)), (3, gib(3))]);
    }

    #[test]
    fn an_eviction_goes_as_far_as_host_memory_allows() {
        let mut rows = [row(1, Rank::Holds(1), 8, 4), waits(2, 0, 6, 6)];
        assert_eq!(goals(&mut rows, gib(10), gib(1)), [(2, gib(5))]);
        let mut rows = [row(1, Rank::Holds(1), 8, 4), waits(2, 0, 6, 6)];
        rows.sort_by_key(|row| row.rank);
        let plan = plan(&mut rows, Supply { card: gib(10), host: Bytes::ZERO, grows: true });
        assert_eq!((plan.goals.len(), plan.wait_reason), (0, Some(Lack::HostMemory)));
        let mut rows = [row(1, Rank::Holds(1), 8, 4), waits(2, 0, 6, 6)];
        rows[1].figures.prepared = gib(2);
        assert_eq!(goals(&mut rows, gib(10), gib(1)), [(2, gib(3))], "its prepared slots hold two more");
    }

    #[test]
    fn another_one_gives_for_a_process_that_is_late() {
        let mut rows = [row(1, Rank::Holds(1), 6, 4), waits(2, 0, 4, 3), waits(3, 1, 4, 3)];
        rows[2].late = Some(Way::Out);
        rows[2].figures.goal = Some(gib(1));
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(2, gib(1))]);
        rows[1].late = Some(Way::Out);
        let plan = plan(&mut rows, Supply { card: gib(10), host: WIDE, grows: true });
        assert_eq!((plan.goals.len(), plan.wait_reason), (0, Some(Lack::Kept)));
    }

    #[test]
    fn a_holder_that_stopped_gives_its_credit_to_the_next() {
        let mut rows = [row(1, Rank::Holds(1), 6, 2), row(2, Rank::Holds(2), 4, 4)];
        (rows[0].figures.goal, rows[0].figures.claim, rows[0].late) = (Some(gib(5)), gib(5), Some(Way::In));
        assert_eq!(goals(&mut rows, gib(10), WIDE)[0], (1, gib(2)));
    }

    #[test]
    fn an_eviction_that_is_not_needed_any_more_is_called_off() {
        let mut rows = [row(1, Rank::Holds(1), 4, 4), waits(2, 0, 6, 5)];
        (rows[1].figures.goal, rows[1].figures.claim) = (Some(gib(2)), gib(5));
        assert_eq!(goals(&mut rows, gib(9), WIDE), [(2, gib(5))]);
    }

    #[test]
    fn a_process_overflows_the_card_once_nobody_gives_any_more() {
        let supply = Supply { card: gib(10), host: WIDE, grows: false };
        let mut rows = [row(1, Rank::Holds(1), 12, 6), waits(2, 0, 4, 4)];
        rows[0].may_overflow = true;
        let first = plan(&mut rows, supply);
        assert_eq!(
            (first.goals.as_slice(), first.wait_reason),
            (&[(ClientId(2), gib(0))][..], Some(Lack::Moves))
        );
        assert!(first.overflows.is_empty(), "the other one has not left yet");
        (rows[1].figures.resident, rows[1].figures.claim) = (gib(0), gib(0));
        let second = plan(&mut rows, supply);
        assert_eq!((second.goals.as_slice(), second.wait_reason), (&[(ClientId(1), gib(10))][..], None));
        assert_eq!(second.overflows.as_slice(), [ClientId(1)]);
        let third = plan(&mut rows, Supply { grows: true, ..supply });
        assert_eq!(
            (third.overflows.len(), third.wait_reason),
            (0, Some(Lack::Kept)),
            "the card has more soon"
        );
        rows[0].may_overflow = false;
        let fourth = plan(&mut rows, supply);
        assert_eq!(
            (fourth.overflows.len(), fourth.wait_reason),
            (0, Some(Lack::Kept)),
            "it has not waited yet"
        );
        assert_eq!(fourth.lacks.as_slice(), [ClientId(1)]);
    }

    #[test]
    fn holders_do_not_give_and_get_more_than_they_use_only_if_nobody_lacks() {
        let mut rows = [row(1, Rank::Holds(1), 6, 6), row(2, Rank::Holds(2), 6, 4)];
        assert_eq!(goals(&mut rows, gib(10), WIDE), []);
        let mut rows = [row(1, Rank::Holds(1), 6, 6), row(2, Rank::Holds(2), 3, 3)];
        assert_eq!(goals(&mut rows, gib(10), WIDE), [(1, gib(6) + CHUNK), (2, gib(3) + CHUNK)]);
    }
}

//! The line over several cards that waiting gangs tie together: all waiting sessions there, in one order of
//! turns.
//!
//! ```text
//!   card's line of a class, by distance from the floors ─┐
//!   another card's                                       ├─ least ─▶ session of one card ─▶ next in line
//!   gangs that were met, by their greatest distance     ─┘       └─▶ gang, met for the first time
//! ```
//!
//! A gang stands in the line of each of its cards. Its distance is the greatest of those there, so it comes
//! later than where it is met first.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use gpushare_proto::SessionId;

use crate::card::line::Place;
use crate::values::gpu_set::GpuSet;
use crate::view::View;

impl View {
    /// Returns the waiting sessions on `cards` that may be granted a turn and that `keeps`, in the order of
    /// turns. Where gangs tie cards together, the line of a card ends when it is in `closed`.
    pub(crate) fn in_line<'a>(
        &'a self,
        cards: GpuSet,
        closed: Option<&'a Cell<GpuSet>>,
        keeps: impl Fn(SessionId) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = SessionId> + 'a {
        let alone = self.tied(cards).len() == 1;
        let one = self.cards.among(cards).filter(move |_| alone);
        let one = one.flat_map(move |(_, card)| card.groups.in_order(keeps));
        let several = (!alone).then(|| self.in_common_line(cards, closed, keeps));
        one.chain(several.into_iter().flatten())
    }

    /// Returns the queued sessions of cards that gangs tie to others, in one order of turns.
    fn in_common_line<'a>(
        &'a self,
        cards: GpuSet,
        closed: Option<&'a Cell<GpuSet>>,
        keeps: impl Fn(SessionId) -> bool + Copy + 'a,
    ) -> impl Iterator<Item = SessionId> + 'a {
        let lines = self.cards.among(cards);
        let lines = lines.flat_map(|(gpu, card)| card.groups.by_floors(keeps).map(move |line| (gpu, line)));
        let mut lines: Vec<_> = lines.collect();
        let first = |at: usize, line: &mut _| Some(Reverse((Iterator::next(line)?, Some(at))));
        // The first place of each line, and the gangs that were met.
        let mut next: BinaryHeap<Reverse<(Place, Option<usize>)>> = lines
            .iter_mut()
            .enumerate()
            .filter_map(|(at, (_, line))| first(at, line))
            .collect();
        let mut met = BTreeSet::new();
        std::iter::from_fn(move || {
            loop {
                let Reverse(((mut key, id), from)) = next.pop()?;
                let Some(at) = from else { return Some(id) };
                let Some((gpu, line)) = lines.get_mut(at) else { continue };
                if closed.is_some_and(|closed| closed.get().contains(*gpu)) {
                    continue;
                }
                next.extend(first(at, line));
                if self.turn_cards(id).len() < 2 {
                    return Some(id);
                }
                if met.insert(id) {
                    key.distance = self.settled_distance(id);
                    next.push(Reverse(((key, id), None)));
                }
            }
        })
    }

    /// Greatest distance of a waiting session from the floors of its cards with turns: the sum over class, user
    /// and session. Present turns of classes and users are left out, so it changes by events alone.
    fn settled_distance(&self, id: SessionId) -> i128 {
        let Some(session) = self.sessions.get(id) else { return 0 };
        let branch = session.branch();
        let distances = session.turn_cards(self.in_turns).into_iter().filter_map(|gpu| {
            let groups = &self.cards.get(gpu)?.groups;
            let own = session.cards.get(gpu)?.account.standing();
            let of_class = groups.class_distance(branch.class)?;
            let class = groups.of_class(branch.class);
            Some(of_class.saturating_add(match branch.user {
                None => own.lag(class.floor),
                Some(_) => {
                    let user = groups.get(branch)?;
                    let of_user = user.account.standing().lag(class.floor);
                    of_user.saturating_add(own.lag(user.floor).max(0))
                }
            }))
        });
        distances.max().unwrap_or_default()
    }
}

//! Changes of virtual times: floors rise, sessions begin, wake, pay and give way.

use gpushare_proto::{GpuId, Nanos, SessionId};

use super::*;

impl Core {
    /// Raises the floors of a card: of its classes, and of the group `branch`. Returns whether any rose. The
    /// floors stay while processes of the last daemon are about to return.
    pub(crate) fn raise_floor(&mut self, gpu: GpuId, branch: Branch) -> bool {
        let Some(card) = self.view.cards.get(gpu).filter(|_| !self.returning.contains(gpu)) else {
            return false;
        };
        let level = self.view.class_floor(self.view.now, card);
        let mut rose = false;
        for class in Class::ALL {
            rose |= self.raise_group_floor(gpu, Branch::of_class(class));
        }
        if branch.user.is_some() {
            rose |= self.raise_group_floor(gpu, branch);
        }
        if let Some(card) = self.view.cards.get_mut(gpu) {
            rose |= std::mem::replace(&mut card.groups.floor, level) != level;
        }
        rose
    }

    /// Raises the floor of a group on a card, and returns whether it rose.
    fn raise_group_floor(&mut self, gpu: GpuId, branch: Branch) -> bool {
        let group = self.view.cards.get(gpu).and_then(|card| card.groups.get(branch));
        // Where nobody waits or pays, nobody raises the floor.
        if group.is_none_or(Group::is_idle) {
            return false;
        }
        let floor = self.view.floor(self.view.now, gpu, branch);
        let group = self.view.cards.get_mut(gpu).and_then(|card| card.groups.get_mut(branch));
        group
            .zip(floor)
            .is_some_and(|(group, floor)| std::mem::replace(&mut group.floor, floor) != floor)
    }

    /// Virtual time at which a session begins in its group on a card: the least of the others there. The
    /// floor would be too low where a gang, or a waiter for memory that does not come back, keeps it down.
    fn level(&self, id: SessionId, gpu: GpuId, branch: Branch) -> Virtual {
        let floor = match self.returning.contains(gpu) {
            true => self.view.floor(self.view.now, gpu, branch),
            // It was just raised.
            false => self.view.cards.get(gpu).and_then(|card| Some(card.groups.get(branch)?.floor)),
        };
        let floor = floor.unwrap_or_default();
        let held_down = |card: &&Card| card.index.has_gangs() || self.view.absent(gpu) != Absent::NONE;
        let card = self.view.cards.get(gpu).filter(held_down);
        let beside = card.and_then(|card| self.view.least_beside(id, gpu, card));
        beside.unwrap_or(floor).max(floor)
    }

    /// Raises a gang's virtual time before its turn, on cards where it could not run because another card
    /// held it up. Otherwise its lead there would keep other sessions off the card for as long.
    pub(crate) fn forgive(&mut self, id: SessionId) {
        let cards = self.view.turn_cards(id);
        if cards.len() < 2 {
            return;
        }
        let leads = self.view.cards.among(cards).filter_map(|(gpu, card)| {
            let session = self.view.sessions.get(id)?;
            let least = self.view.least_beside(id, gpu, card)?;
            Some((gpu, session.cards.get(gpu)?.account.standing().lag(least)))
        });
        let leads: ByGpu<i128> = leads.collect();
        let most = leads.values().copied().max();
        for (gpu, lead) in leads.iter() {
            if Some(*lead) < most {
                self.lift(id, gpu, false);
            }
        }
    }

    /// Raises the virtual times of a session that joins the waiters and holders of a card, and of its user and
    /// class if they were idle there. The lead over the others is at most a credit; a new one starts level. A
    /// session that was just asked for its lock did not sleep, and `keeps` its lead.
    pub(crate) fn lift(&mut self, id: SessionId, gpu: GpuId, keeps: bool) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        let (branch, share, user) = (session.branch(), session.share, session.user);
        let had = session.cards.get(gpu).map(|on| on.account.had);
        // Sessions of one card are ordered by their virtual times alone.
        let is_gang = session.uses.len() > 1;
        let has_gangs = is_gang || self.view.cards.get(gpu).is_some_and(|card| card.index.has_gangs());
        if self.raise_floor(gpu, branch) && has_gangs {
            self.agenda.look_at(gpu);
            self.reordered = true;
        }
        let class = Share::of_class(branch.class, self.view.config.trickle);
        self.lift_group(id, gpu, (Branch::of_class(branch.class), class), keeps);
        if let Some((_, user)) = user {
            self.lift_group(id, gpu, (branch, user), keeps);
        }
        let level = match self.floor_to_return_to(gpu, branch).filter(|_| had != Some(None)) {
            Some(floor) => floor,
            None => self.level(id, gpu, branch),
        };
        // Only one that is behind needs its credit.
        let is_behind = had.flatten().is_some_and(|had| had < level);
        let credit = if keeps || !is_behind { Virtual::MAX } else { self.view.credit(id, share) };
        if let Some(on) = self.view.sessions.get_mut(id).and_then(|session| session.cards.get_mut(gpu)) {
            on.account.lift(level, credit);
        }
    }

    /// Raises the virtual time of a class or a user that was idle on a card, for a session that wakes there.
    fn lift_group(&mut self, id: SessionId, gpu: GpuId, (branch, share): (Branch, Share), keeps: bool) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        let group = card.groups.get(branch);
        if group.is_some_and(|group| !group.is_idle()) {
            return;
        }
        let known = group.is_some_and(|group| group.account.had.is_some());
        let class = Branch::of_class(branch.class);
        let level = match branch.user {
            None => self.view.class_floor(self.view.now, card),
            Some(_) => match self.floor_to_return_to(gpu, class).filter(|_| known) {
                Some(floor) => floor,
                None => self.view.floor(self.view.now, gpu, class).unwrap_or_default(),
            },
        };
        let credit = if keeps { Virtual::MAX } else { self.view.credit(id, share) };
        if let Some(card) = self.view.cards.get_mut(gpu) {
            card.groups.get_or_insert(branch, share).account.lift(level, credit);
        }
    }

    /// Floor of a group while processes of the last daemon are about to return to a card.
    fn floor_to_return_to(&self, gpu: GpuId, branch: Branch) -> Option<Virtual> {
        let card = self.view.cards.get(gpu).filter(|_| self.returning.contains(gpu));
        card.and_then(|card| Some(card.groups.get(branch)?.floor))
    }

    /// Sets the virtual times of all classes, users and sessions on a card to their floors, when turns begin
    /// there. While processes of the last daemon are about to return, turns go on instead, and all keep their
    /// distances.
    pub(crate) fn start_level(&mut self, gpu: GpuId) {
        let Some(card) = self.view.cards.get(gpu) else { return };
        let members = card.index.members.clone();
        members.iter().for_each(|&id| self.charge_so_far(id));
        if !self.returning.contains(gpu)
            && let Some(card) = self.view.cards.get_mut(gpu)
        {
            card.groups.start_level();
            for &id in &members {
                let session = self.view.sessions.get_mut(id);
                let floor =
                    session.and_then(|session| Some((card.groups.get(session.branch())?.floor, session)));
                if let Some((floor, session)) = floor
                    && let Some(on) = session.cards.get_mut(gpu)
                {
                    on.account = Account { had: Some(floor), behind: None };
                }
            }
        }
        members.into_iter().for_each(|id| self.recount(id));
    }

    /// Charges a session, its user and its class for its present turns so far, at their present weights.
    pub(crate) fn charge_so_far(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let (share, branch) = (session.share, session.branch());
        for (gpu, on) in session.cards.iter_mut() {
            if let (Some(before), Some(card)) = (on.entered, self.view.cards.get_mut(gpu)) {
                let (charged, entered) = card.charge.pay_so_far(self.view.now, before);
                on.pay(charged, share);
                on.entered = Some(entered);
                let stuck = on.listed.presence == Presence::Stuck;
                card.groups.pay(branch, stuck, charged);
                card.groups.read(branch, stuck, Some(before), false);
                card.groups.read(branch, stuck, Some(entered), true);
                card.groups.refresh(branch);
                if !charged.is_zero() && card.groups.are_several(branch) {
                    card.index.order_changed();
                    self.agenda.look_at(gpu);
                    self.reordered = true;
                }
            }
        }
    }

    /// Asks a holder for its lock on behalf of the first waiter on a card. Until its next turn the holder is
    /// queued behind that waiter, with all of its user or class if the waiter is of another one. An urgent waiter
    /// goes before all others in any case.
    pub(crate) fn make_way(&mut self, id: SessionId, gpu: GpuId) {
        let first = self.view.first_on(gpu);
        if let Some(first) = first {
            self.queue_behind(id, first, gpu);
        }
        let urgent = |first| self.view.sessions.get(first).is_some_and(|first| first.urgent);
        self.begin_drop(id, first.is_some_and(urgent));
    }

    fn queue_behind(&mut self, id: SessionId, first: SessionId, gpu: GpuId) -> Option<()> {
        let (holder, waiter) = (self.view.sessions.get(id)?, self.view.sessions.get(first)?);
        if waiter.urgent {
            return None;
        }
        let level = self.view.parting(holder, waiter);
        let (own, theirs) = (level.group(holder.branch()), level.group(waiter.branch()));
        // The others of the holder's user or class may no longer come first.
        self.reordered |= own.is_some();
        let card = self.view.cards.get_mut(gpu)?;
        let standing = match theirs {
            Some(branch) => card.groups.get(branch)?.account.standing(),
            None => waiter.cards.get(gpu)?.account.standing(),
        };
        match own {
            Some(branch) => {
                card.groups.get_mut(branch)?.account.behind = Some(standing);
                card.groups.refresh(branch);
                card.index.order_changed();
                self.agenda.look_at(gpu);
            }
            None => {
                let on = self.view.sessions.get_mut(id)?.cards.get_mut(gpu)?;
                on.account.behind = Some(standing);
            }
        }
        Some(())
    }

    /// Clears the queue positions behind other waiters that a session, its user and its class got when they
    /// last released the lock.
    pub(crate) fn stand_up(&mut self, id: SessionId) {
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let branch = session.branch();
        for (gpu, on) in session.cards.iter_mut() {
            on.account.behind = None;
            if let Some(card) = self.view.cards.get_mut(gpu)
                && card.groups.stand_up(branch)
            {
                card.index.order_changed();
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }

    /// Starts another quantum for a holder, which ends by the `limit` of a backfilled turn.
    pub(crate) fn renew(&mut self, id: SessionId, limit: Option<Nanos>) {
        let clock = self.view.clock(id, false, limit);
        if let Some(session) = self.view.sessions.get_mut(id)
            && let Lock::Holding(grant) = &mut session.lock
        {
            grant.clock = clock;
        }
        // Gangs wait longer for this holder than expected, which leaves others more time on their other cards.
        for gpu in self.view.turn_cards(id) {
            if self.view.cards.get(gpu).is_some_and(|card| card.index.has_waiting_gangs()) {
                self.agenda.look_at(gpu);
                self.reordered = true;
            }
        }
    }
}

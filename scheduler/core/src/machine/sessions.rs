//! Events about sessions: memory limits, permission to run, share of the time, and their end.

use gpushare_proto::session::Priority;
use gpushare_proto::{Bytes, GpuId, Percent, SessionId};

use crate::events::Standing;
use crate::machine::Core;
use crate::session::Session;
use crate::session::share::{Account, Branch, Share, UserId};

impl Core {
    /// Opens a session, or changes the memory limits of a known one.
    pub(super) fn session_opened(&mut self, id: SessionId, limit: Option<Bytes>, oversubscribe: bool) {
        let new = || Session::new(limit, oversubscribe);
        let session = self.view.sessions.get_or_insert_with(id, new);
        session.figures_moved = true;
        session.quota.set_common(limit, oversubscribe);
        self.recount(id);
        self.recall_excess(id);
    }

    pub(super) fn quota(&mut self, id: SessionId, gpu: GpuId, limit: Option<Bytes>) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.quota.set_on(gpu, limit);
            session.figures_moved = true;
            self.recount(id);
            self.recall_excess(id);
        }
    }

    pub(super) fn standing(&mut self, id: SessionId, standing: Standing) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.standing = standing;
            session.figures_moved = true;
            self.recount(id);
            self.recall_excess(id);
        }
    }

    /// Changes the weight and class of a session. Its turns so far are charged at the old weight.
    pub(super) fn share(&mut self, id: SessionId, share: Share) {
        let trickle = self.view.config.trickle;
        self.change_share(id, |session| {
            session.share = share;
            // Its target for work in flight follows its class.
            session.figures_moved = true;
            session.user = session.user.map(|(user, own)| (user, own.in_class(share.class, trickle)));
        });
    }

    /// Notes the user to whom a session belongs, and the user's weight.
    pub(super) fn owner(&mut self, id: SessionId, user: UserId, weight: u32) {
        let Some(session) = self.view.sessions.get(id) else {
            return;
        };
        if let Some((former, _)) = session.user.filter(|&(former, _)| former != user) {
            self.view.users.leave(former, id);
        }
        self.view.users.join(user, id);
        let trickle = self.view.config.trickle;
        for id in self.view.users.sessions(user) {
            self.change_share(id, |session| {
                let share = Share::new(weight, session.share.class.into(), trickle);
                session.user = Some((user, share));
            });
        }
        self.forget_users();
    }

    /// Changes the share of a session or of its user. The turns so far are charged at the old weights. In
    /// another group, the session begins as a new one.
    fn change_share(&mut self, id: SessionId, change: impl FnOnce(&mut Session)) {
        self.charge_so_far(id);
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        let before = session.branch();
        change(session);
        if session.branch() != before {
            session.cards.values_mut().for_each(|on| on.account = Account::default());
        }
        self.recount(id);
        // The places of other sessions may change too, those of a user's other sessions among them.
        for gpu in self.view.cards_of(id) {
            if let Some(card) = self.view.cards.get_mut(gpu) {
                card.index.order_changed();
                self.agenda.look_at(gpu);
            }
        }
        self.reordered = true;
    }

    /// Removes the users that have no sessions and are ahead of nobody.
    fn forget_users(&mut self) {
        let (cards, turns) = (&mut self.view.cards, self.view.in_turns);
        self.view.users.retain_departed(|user| {
            let stays = cards.among(turns).any(|(_, card)| card.groups.is_ahead(user));
            if !stays {
                cards.values_mut().for_each(|card| card.groups.forget(user));
            }
            stays
        });
    }

    pub(super) fn compute(&mut self, id: SessionId, gpu: GpuId, limit: Option<Percent>) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.compute.set(gpu, limit);
            self.recount(id);
        }
    }

    /// Notes the distance from a card's floor at which a session begins when it is back on the card.
    pub(super) fn lead(&mut self, id: SessionId, gpu: GpuId, lead_ns: i64) {
        if let (Some(session), Some(card)) = (self.view.sessions.get_mut(id), self.view.cards.get(gpu)) {
            let floor = card.groups.get(session.branch()).map(|group| group.floor);
            session.resumes_at.insert(gpu, floor.unwrap_or_default().beyond(lead_ns));
        }
    }

    /// Notes the distance from a class's floor at which a user begins on a card.
    pub(super) fn user_lead(&mut self, user: UserId, priority: Priority, gpu: GpuId, lead_ns: i64) {
        let trickle = self.view.config.trickle;
        let share = self
            .view
            .users
            .sessions(user)
            .first()
            .and_then(|&id| self.view.sessions.get(id)?.user);
        if let (Some(card), Some((_, share))) = (self.view.cards.get_mut(gpu), share) {
            let branch = Branch { class: priority.into(), user: Some(user) };
            let floor = card.groups.get(Branch::of_class(branch.class)).map(|group| group.floor);
            let group = card.groups.get_or_insert(branch, share.in_class(branch.class, trickle));
            if group.is_idle() {
                group.account.had = Some(floor.unwrap_or_default().beyond(lead_ns));
            }
        }
    }

    pub(super) fn session_closed(&mut self, id: SessionId) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.closed = true;
            self.forget_empty(id);
        }
    }

    /// Removes a session that is closed and has neither processes nor memory that dead processes left.
    pub(crate) fn forget_empty(&mut self, id: SessionId) {
        let empty = |session: &Session| session.closed && session.clients.is_empty();
        if self.view.sessions.get(id).is_some_and(empty) && !self.view.has_orphans(id) {
            let user = self.view.sessions.get(id).and_then(|session| session.user);
            self.remove_session(id);
            if let Some((user, _)) = user {
                self.view.users.leave(user, id);
                self.forget_users();
            }
        }
    }
}

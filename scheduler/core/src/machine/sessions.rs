//! Events about sessions: memory limits, permission to run, share of the time, and their end.

use gpushare_proto::{Bytes, GpuId, Percent, SessionId};

use crate::events::Standing;
use crate::machine::Core;
use crate::session::Session;
use crate::session::share::Share;

impl Core {
    /// Opens a session, or changes the memory limits of a known one.
    pub(super) fn session_opened(&mut self, id: SessionId, limit: Option<Bytes>, oversubscribe: bool) {
        let new = || Session::new(limit, oversubscribe);
        let session = self.view.sessions.get_or_insert_with(id, new);
        session.figures_moved = true;
        session.quota.set_common(limit, oversubscribe);
        self.recall_excess(id);
    }

    pub(super) fn quota(&mut self, id: SessionId, gpu: GpuId, limit: Option<Bytes>) {
        if let Some(session) = self.view.sessions.get_mut(id) {
            session.quota.set_on(gpu, limit);
            session.figures_moved = true;
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
        self.charge_so_far(id);
        let Some(session) = self.view.sessions.get_mut(id) else {
            return;
        };
        session.share = share;
        self.recount(id);
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
            session.resumes_at.insert(gpu, card.floor.beyond(lead_ns));
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
            self.remove_session(id);
        }
    }
}

//! Leads of sessions and users over the others, which the daemon records for its next start.

use gpushare_proto::session::Priority;
use gpushare_proto::{GpuId, Nanos, SessionId};

use crate::card::Card;
use crate::machine::Core;
use crate::session::share::{Branch, Class, UserId, Virtual};

impl Core {
    /// Returns how far a session's virtual time is beyond the floor of its group on each card, for the next
    /// daemon. The unit is nanoseconds of a session of weight 100 and normal priority.
    ///
    /// A card on which the session takes no turns is left out. A session that sleeps behind the floor counts
    /// as level with it: the floor passes it again.
    #[must_use]
    pub fn leads(&self, now: Nanos, id: SessionId) -> Vec<(GpuId, i64)> {
        let Some(session) = self.view.sessions.get(id) else {
            return Vec::new();
        };
        let now = now.max(self.view.now);
        let lead = |(gpu, card): (GpuId, &Card)| {
            let returning = self.returning.contains(gpu);
            let (had, counts) = match session.cards.get(gpu) {
                Some(on) => {
                    let owed = on.entered.map_or(Nanos::ZERO, |entered| card.charge.owed(now, entered));
                    (on.account.had?.plus(session.share.virtual_time(owed)), on.listed.shares())
                }
                None => (*session.resumes_at.get(gpu)?, returning),
            };
            let in_turns = session.is_limited() || self.view.in_turns.contains(gpu);
            let lead = had.lead(self.floor_for(now, gpu, card, session.branch(), in_turns)?);
            Some((gpu, if counts { lead } else { lead.max(0) }))
        };
        self.view.cards.iter().filter_map(lead).collect()
    }

    /// Returns how far a user is beyond the floor of each class and card, as [`Self::leads`] does for
    /// sessions.
    #[must_use]
    pub fn user_leads(&self, now: Nanos, user: UserId) -> Vec<(Priority, GpuId, i64)> {
        let now = now.max(self.view.now);
        let lead = |(gpu, card): (GpuId, &Card), class: Class| {
            let branch = Branch { class, user: Some(user) };
            let group = card.groups.get(branch)?;
            let had = group.account.had?.plus(group.owed(card.charge.clocks(now)));
            let in_turns = self.view.in_turns.contains(gpu);
            let floor = self.floor_for(now, gpu, card, Branch::of_class(class), in_turns)?;
            let lead = had.lead(floor);
            let counts = !group.is_idle() || self.returning.contains(gpu);
            Some((class.into(), gpu, if counts { lead } else { lead.max(0) }))
        };
        let cards = self.view.cards.iter();
        cards
            .flat_map(|card| Class::ALL.into_iter().filter_map(move |class| lead(card, class)))
            .collect()
    }

    /// Floor of a group from which the next daemon counts; `None` where no turns are taken.
    fn floor_for(
        &self,
        now: Nanos,
        gpu: GpuId,
        card: &Card,
        branch: Branch,
        in_turns: bool,
    ) -> Option<Virtual> {
        match self.returning.contains(gpu) {
            true => card.groups.get(branch).map(|group| group.floor),
            false if in_turns => self.view.floor(now, gpu, branch),
            false => None,
        }
    }
}

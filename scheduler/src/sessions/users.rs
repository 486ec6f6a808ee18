//! Users among whom the time of a card is divided: their numbers in the decision machine, and their weights.
//!
//! A user has a row from its first session until it has neither sessions, nor a weight of its own, nor a lead
//! over others on a card. Sessions that an administrator made have no user.

use std::collections::BTreeMap;

use gpushare_core::UserId;
use gpushare_proto::session::DEFAULT_WEIGHT;

use crate::identity::User;
use crate::registry::{UserEntry, UserLead};

/// Users with their numbers, weights and leads.
#[derive(Debug, Default)]
pub(crate) struct Users {
    all: BTreeMap<User, Known>,
    /// Number of the last new user.
    last: u64,
}

#[derive(Debug)]
struct Known {
    id: UserId,
    weight: u32,
    /// Distances of the user's virtual time from the floors of cards, at the last count.
    leads: Vec<UserLead>,
}

impl Users {
    /// Returns the number and the weight of a user that has one.
    pub(crate) fn get(&self, user: &User) -> Option<(UserId, u32)> {
        self.all.get(user).map(|known| (known.id, known.weight))
    }

    /// Returns the number and the weight of a user, who gets a number with the first session.
    pub(crate) fn of(&mut self, user: &User) -> (UserId, u32) {
        let known = self.known(user);
        (known.id, known.weight)
    }

    fn known(&mut self, user: &User) -> &mut Known {
        self.all.entry(user.clone()).or_insert_with(|| {
            self.last += 1;
            Known { id: UserId(self.last), weight: DEFAULT_WEIGHT, leads: Vec::new() }
        })
    }

    /// Changes the weight of a user and returns the old one.
    pub(crate) fn set_weight(&mut self, user: &User, weight: u32) -> u32 {
        std::mem::replace(&mut self.known(user).weight, weight)
    }

    /// Notes each user's leads, and removes the users that need no row. `has_sessions` tells who is present.
    pub(crate) fn count(
        &mut self,
        leads: impl Fn(UserId) -> Vec<UserLead>,
        has_sessions: impl Fn(&User) -> bool,
    ) {
        self.all.retain(|user, known| {
            known.leads = leads(known.id);
            let is_ahead = known.leads.iter().any(|lead| lead.lead_ns > 0);
            is_ahead || known.weight != DEFAULT_WEIGHT || has_sessions(user)
        });
    }

    /// Leads that the last daemon recorded, with the numbers of the users.
    pub(crate) fn leads(&self) -> impl Iterator<Item = (UserId, &UserLead)> {
        let of = |known: &'_ Known| known.id;
        self.all
            .values()
            .flat_map(move |known| known.leads.iter().map(move |lead| (of(known), lead)))
    }

    pub(crate) fn restore(&mut self, entries: Vec<UserEntry>) {
        for UserEntry { user, weight, leads } in entries {
            let known = self.known(&user);
            (known.weight, known.leads) = (weight, leads);
        }
    }

    pub(crate) fn entries(&self) -> Vec<UserEntry> {
        let entry = |(user, known): (&User, &Known)| UserEntry {
            user: user.clone(),
            weight: known.weight,
            leads: known.leads.clone(),
        };
        self.all.iter().map(entry).collect()
    }
}

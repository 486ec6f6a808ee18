//! What a session has on one card, and as what the card counts it.

use gpushare_proto::{Bytes, Nanos, Percent};

use super::lock::{Lock, Ticket, Turn};
use super::share::{Share, Virtual};
use crate::memory::sums::{Sums, Total};

/// A session on a card that any of its processes ever attached.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnCard {
    /// Of its processes' books, and of what dead ones left.
    pub(crate) sums: Sums,
    /// The most that was ever allocated.
    pub(crate) peak: Bytes,
    /// Its virtual time, once it ever waited for a turn here.
    pub(crate) had: Option<Virtual>,
    /// The virtual time of whom it last made way for: it stands behind that one until it is its turn again, however little it
    /// had itself.
    pub(crate) behind: Virtual,
    /// What it paid for turns so far.
    pub(crate) charged: Nanos,
    /// The clock of [`crate::card::charge`] when it last began to pay, while it does.
    pub(crate) entered: Option<u128>,
    /// As what the card counts it: [`crate::card::census`] keeps both in step.
    pub(crate) listed: Listing,
}

impl OnCard {
    /// Whether any process uses the card.
    pub(crate) fn is_attached(&self) -> bool {
        self.sums.processes > 0
    }

    /// Where it stands in line.
    pub(crate) fn standing(&self) -> Virtual {
        self.had.unwrap_or_default().max(self.behind)
    }

    /// What it had when the card's clock stood at nothing, as it were: that and the clock is what it has had, while it pays.
    fn start(&self, share: Share) -> i128 {
        let entered = i128::try_from(self.entered.unwrap_or_default()).unwrap_or(i128::MAX);
        share.real_time(self.standing()).saturating_sub(entered)
    }

    /// Pays for its time.
    pub(crate) fn pay(&mut self, charged: Nanos, share: Share) {
        self.charged += charged;
        self.had = Some(self.had.unwrap_or_default().plus(share.virtual_time(charged)));
    }
}

/// What a session is to all of its cards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stance {
    pub(crate) presence: Presence,
    /// If it waits and may be granted anything.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) share: Share,
    /// Its compute limit.
    pub(crate) limit: Option<Percent>,
    /// Whether it uses more than one.
    pub(crate) gang: bool,
}

impl Stance {
    /// Whether it pays for the time of a card that it uses.
    pub(crate) fn pays(&self, takes_turns: bool) -> bool {
        takes_turns && self.presence != Presence::None
    }

    /// Whether it is one of those who share the time of a card that it uses in turns: it waits for one, or has one.
    pub(crate) fn shares(&self, takes_turns: bool) -> bool {
        takes_turns && (self.ticket.is_some() || self.presence != Presence::None)
    }

    /// As what a card counts it, where it takes turns or does not.
    pub(crate) fn listing(&self, on: &OnCard, takes_turns: bool) -> Listing {
        if !on.is_attached() {
            return Listing::default();
        }
        let turn = |ticket| Turn { class: self.share.class, had: on.standing(), ticket };
        Listing {
            member: true,
            live: on.sums.live > 0,
            movable: on.sums.movable,
            presence: self.presence,
            queued: self.ticket.filter(|_| takes_turns).map(turn),
            pays: self.pays(takes_turns).then(|| on.start(self.share)),
            share: self.share,
            limit: self.limit,
            gang: self.gang,
        }
    }
}

/// What a card knows of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Whether it uses the card.
    pub(crate) member: bool,
    /// Whether it has a live context.
    pub(crate) live: bool,
    /// Its working set.
    pub(crate) movable: Total,
    pub(crate) presence: Presence,
    /// Its place in the order, if it waits and may be granted anything.
    pub(crate) queued: Option<Turn>,
    pub(crate) share: Share,
    /// Its compute limit.
    pub(crate) limit: Option<Percent>,
    /// Whether it uses other cards too.
    pub(crate) gang: bool,
    /// Whether it pays for the card's time, and where it began to: of two with the same share the one with less has had less.
    pub(crate) pays: Option<i128>,
}

impl Listing {
    /// Whether it is one of those who share the card's time in turns: it waits for one, or has one.
    pub(crate) fn shares(&self) -> bool {
        self.queued.is_some() || self.pays.is_some()
    }
}

/// What a session's lock takes of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Nothing.
    #[default]
    None,
    /// Room for what it has there.
    Holding,
    /// The same until it has let go.
    Dropping,
    /// The same, and it does not let go.
    Stuck,
}

impl Presence {
    pub(crate) fn of(lock: &Lock) -> Self {
        match lock {
            Lock::Idle | Lock::Waiting(_) => Self::None,
            Lock::Holding(_) => Self::Holding,
            Lock::Dropping(_, drop) => match drop.stuck() {
                None => Self::Dropping,
                Some(_) => Self::Stuck,
            },
        }
    }
}

//! State of a session on one card, and the entry by which the card's index counts it.

use gpushare_proto::{Bytes, Nanos, Percent};

use super::lock::{Lock, Ticket, Turn};
use super::share::{Account, Branch, Share};
use crate::card::charge::Reading;
use crate::memory::sums::{Sums, Total};
use crate::values::average::Average;
use crate::values::gpu_set::GpuSet;

/// State of a session on a card that any of its processes ever announced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OnCard {
    /// Sums over the memory books of the session's processes, including dead ones with memory left.
    pub(crate) sums: Sums,
    /// Largest number of bytes that the session ever had allocated on the card.
    pub(crate) peak: Bytes,
    /// Virtual time of the session on the card.
    pub(crate) account: Account,
    /// Duration that the session was charged for turns on the card so far.
    pub(crate) charged: Nanos,
    /// Average drain of the session in nanoseconds. It decides when this session is asked for its lock again.
    pub(crate) drain: Average,
    /// Bytes that the session brought in during its present move.
    pub(crate) moving: Bytes,
    /// Reading of the card's charge clock when the session began to pay; `None` while it does not pay.
    pub(crate) entered: Option<Reading>,
    /// Entry of the session in the card's index, equal to the one that the index counts.
    pub(crate) listed: Listing,
}

/// Smallest number of moved bytes from which a bandwidth is computed; a smaller move measures latency.
const SUBSTANTIAL_MOVE: Bytes = Bytes::mib(64);
/// Longest drain that enters an average of drains; a longer one counts as this.
const UNUSUAL: Nanos = Nanos::from_secs(2);

impl OnCard {
    /// Whether any process of the session uses the card.
    pub(crate) fn is_attached(&self) -> bool {
        self.sums.processes > 0
    }

    /// Bytes by which unmeasured contexts of the session make the card smaller for all: `one` context's bytes.
    ///
    /// Processes without a GPU can claim contexts too, and new ones each second. So all claims of a session
    /// count as one, and as no more than its `quota`.
    fn claimed(&self, one: Bytes, quota: Bytes) -> Bytes {
        if self.sums.claims > 0 { one.min(quota) } else { Bytes::ZERO }
    }

    /// Charged time minus the clock's reading at the start of the charge. While the session pays, this value
    /// plus the clock is its time so far.
    fn start(&self, share: Share) -> i128 {
        let entered = i128::try_from(self.entered.map_or(0, |entered| entered.clock)).unwrap_or(i128::MAX);
        share.real_time(self.account.standing()).saturating_sub(entered)
    }

    /// Notes the duration of a drain. A drain of minutes says little about the next.
    pub(crate) fn drained(&mut self, drain: Nanos) {
        self.drain.add(drain.min(UNUSUAL).0);
    }

    /// Ends a move for which the session was charged `took`, and returns the bandwidth. Sessions that move at
    /// the same time share the link, and are charged a part of the time.
    pub(crate) fn end_move(&mut self, took: Nanos) -> Option<u64> {
        let bytes = std::mem::take(&mut self.moving);
        let rate = u128::from(bytes.0) * u128::from(Nanos::from_secs(1).0) / u128::from(took.0.max(1));
        (bytes >= SUBSTANTIAL_MOVE).then(|| u64::try_from(rate).unwrap_or(u64::MAX))
    }

    pub(crate) fn pay(&mut self, charged: Nanos, share: Share) {
        self.charged += charged;
        self.account.pay(charged, share);
    }
}

/// Facts about a session that are the same for all its cards.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stance {
    pub(crate) presence: Presence,
    /// Whether the session may run and holds the lock or waits for it.
    pub(crate) wants: bool,
    /// Ticket of the session if it waits and may be granted the lock.
    pub(crate) ticket: Option<Ticket>,
    /// Whether the session has no early turn for which the switch budget paid.
    pub(crate) regular: bool,
    /// Group whose time the session shares.
    pub(crate) branch: Branch,
    pub(crate) share: Share,
    /// Share of the session's user, if it has one.
    pub(crate) user_share: Option<Share>,
    /// Lowest compute limit of the session that applies.
    pub(crate) limit: Option<Percent>,
    /// Cards that the session uses.
    pub(crate) cards: GpuSet,
    /// Whether the session brings its memory in.
    pub(crate) moves: bool,
}

impl Stance {
    /// Whether the session uses several cards.
    pub(crate) fn is_gang(&self) -> bool {
        self.cards.len() > 1
    }

    /// Whether the session pays for the time of a card that it uses.
    pub(crate) fn pays(&self, takes_turns: bool) -> bool {
        takes_turns && self.presence != Presence::None
    }

    /// Whether the session waits for a turn on a card or has one.
    pub(crate) fn shares(&self, takes_turns: bool) -> bool {
        takes_turns && (self.ticket.is_some() || self.presence != Presence::None)
    }

    /// Entry for the index of a card on which the session `takes_turns`, or does not. `assumed` and `quota` are
    /// the bytes of one unmeasured context there, and the session's quota.
    pub(crate) fn listing(
        &self,
        on: &OnCard,
        takes_turns: bool,
        (assumed, quota): (Bytes, Bytes),
    ) -> Listing {
        let claimed = on.claimed(assumed, quota);
        if !on.is_attached() {
            return Listing { claimed, ..Listing::default() };
        }
        let turn = |ticket| {
            let (regular, had, class) = (self.regular, on.account.standing(), self.share.class);
            Turn { regular, had, class, ticket }
        };
        Listing {
            member: true,
            live: on.sums.live > 0,
            wants: on.sums.live > 0 && self.wants,
            movable: on.sums.movable,
            swappable: on.sums.swappable,
            is_hot: self.wants,
            claimed,
            presence: self.presence,
            queued: self.ticket.filter(|_| takes_turns).map(turn),
            pays: self.pays(takes_turns).then(|| on.start(self.share)),
            branch: self.branch,
            share: self.share,
            user_share: self.user_share,
            limit: self.limit,
            cards: self.cards,
            moves: self.pays(takes_turns) && self.moves,
        }
    }
}

/// Entry of a session in the index of a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Whether the session uses the card.
    pub(crate) member: bool,
    /// Whether the session has a live CUDA context on the card.
    pub(crate) live: bool,
    /// Whether the session has a live CUDA context on the card, and holds the lock or waits for it.
    pub(crate) wants: bool,
    /// Working set of the session on the card.
    pub(crate) movable: Total,
    /// Remapped part of the working set.
    pub(crate) swappable: Total,
    /// Whether the session holds the lock or waits for it, so that its remapped memory counts for the mode.
    pub(crate) is_hot: bool,
    /// Number of bytes that unmeasured contexts of the session are assumed to take on the card.
    pub(crate) claimed: Bytes,
    pub(crate) presence: Presence,
    /// Sort key of the session in the queue, if it waits and may be granted a turn.
    pub(crate) queued: Option<Turn>,
    /// Group whose time the session shares.
    pub(crate) branch: Branch,
    pub(crate) share: Share,
    /// Share of the session's user, if it has one.
    pub(crate) user_share: Option<Share>,
    pub(crate) limit: Option<Percent>,
    /// Cards that the session uses: more than one make it a gang.
    pub(crate) cards: GpuSet,
    /// Whether the session pays for the card's time while it brings its memory in.
    pub(crate) moves: bool,
    /// Start of the session's charge if it pays for the card's time. Of two sessions with the same share and
    /// the same clock, the one with the lower value has had less.
    pub(crate) pays: Option<i128>,
}

impl Listing {
    /// Whether the session waits for a turn on the card or has one.
    pub(crate) fn shares(&self) -> bool {
        self.queued.is_some() || self.pays.is_some()
    }
}

/// Kind of room that a session's lock takes on a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// No room, since the session does not hold the lock.
    #[default]
    None,
    /// Room for the working set of a session that holds the lock.
    Holding,
    /// Room for the working set until the session, which was asked for the lock, has released it.
    Dropping,
    /// The same, while another session may begin beside it where no memory moves.
    Leaving,
    /// Room for the working set of a session that does not release the lock in time.
    Stuck,
}

impl Presence {
    pub(crate) fn of(lock: &Lock) -> Self {
        match lock {
            Lock::Idle | Lock::Waiting(_) => Self::None,
            Lock::Holding(_) => Self::Holding,
            Lock::Dropping(_, drop) => match drop.stuck() {
                None if drop.gives_way() => Self::Leaving,
                None => Self::Dropping,
                Some(_) => Self::Stuck,
            },
        }
    }
}

//! Accounts of a simulation: waits, and the work of each session beside its entitlement.
//!
//! A session is **backlogged** from when it wants to work until that work is done. While it is, it is
//! entitled to the part of each of its cards that its effective weight (weight × factor of its class) has
//! among the backlogged sessions there, and to no more than its compute limit. Its **lag** is what it is
//! entitled to since then, less what it was given. Jain's index is of given ÷ entitled over the whole run,
//! each at most 1: a session that gets more than its share harms others only, and they are below 1
//! themselves.

use gpushare_proto::Nanos;
use gpushare_proto::session::Priority;

use super::card::Work;
use super::policy::Who;
use super::tenant::Tenant;

/// Factors of the weights of the three classes, high first, for the default `trickle` of 5%.
const FACTORS: [f64; CLASSES] = [361.0, 19.0, 1.0];
const CLASSES: usize = 3;

/// A class by its number: the first comes first.
fn class(priority: Priority) -> usize {
    match priority {
        Priority::High => 0,
        Priority::Normal => 1,
        Priority::Low => 2,
    }
}

/// Backlogged sessions of one card.
#[derive(Clone, Debug, Default)]
struct Shares {
    /// Sums of weights, by class.
    weights: [u64; CLASSES],
    /// Time that a weight of one is entitled to so far, by class.
    entitled: [Work; CLASSES],
    since: Nanos,
    /// Time with anybody backlogged.
    busy: Nanos,
}

impl Shares {
    fn advance(&mut self, now: Nanos) {
        let span = now - self.since;
        self.since = now;
        let weights = self.weights.iter().zip(FACTORS).map(|(&weight, factor)| weight as f64 * factor);
        let sum: f64 = weights.sum();
        if sum > 0.0 {
            self.busy += span;
            for (entitled, factor) in self.entitled.iter_mut().zip(FACTORS) {
                *entitled += span.0 as f64 * factor / sum;
            }
        }
    }
}

/// One session's.
#[derive(Clone, Debug, Default)]
struct Account {
    given: Work,
    entitled: Work,
    /// While it is backlogged.
    period: Option<Period>,
}

#[derive(Clone, Debug)]
struct Period {
    began: Nanos,
    /// Time that the session had been given.
    given: Work,
    /// [`Shares::entitled`] of each of its cards.
    entitled: Vec<Work>,
}

/// The books of one run.
#[derive(Debug)]
pub(super) struct Accounts<'a> {
    tenants: &'a [Tenant],
    cards: Vec<Shares>,
    sessions: Vec<Account>,
    greatest_lag: Work,
    /// Each stay at a closed gate.
    pub(super) waits: Vec<Nanos>,
    /// Each burst's time beyond its own work.
    pub(super) delays: Vec<Nanos>,
}

impl<'a> Accounts<'a> {
    pub(super) fn new(tenants: &'a [Tenant], cards: usize) -> Self {
        Self {
            tenants,
            cards: vec![Shares::default(); cards],
            sessions: vec![Account::default(); tenants.len()],
            greatest_lag: 0.0,
            waits: Vec::new(),
            delays: Vec::new(),
        }
    }

    /// `who` is backlogged from now on.
    pub(super) fn begin(&mut self, now: Nanos, who: Who) {
        let tenant = &self.tenants[who];
        let class = class(tenant.priority);
        let mut entitled = Vec::with_capacity(tenant.gpus.len());
        for gpu in &tenant.gpus {
            let card = &mut self.cards[usize::from(gpu.0)];
            card.advance(now);
            card.weights[class] += u64::from(tenant.weight);
            entitled.push(card.entitled[class]);
        }
        let account = &mut self.sessions[who];
        account.period = Some(Period { began: now, given: account.given, entitled });
    }

    /// Notes work that `who` was given on one card.
    pub(super) fn give(&mut self, who: Who, work: Work) {
        self.sessions[who].given += work;
    }

    /// Returns the work that `who` is entitled to since it is backlogged. Its lag is greatest just before it
    /// is given any, so the caller asks then.
    pub(super) fn look(&mut self, now: Nanos, who: Who) -> Work {
        let tenant = &self.tenants[who];
        let Some(period) = &self.sessions[who].period else {
            return 0.0;
        };
        let class = class(tenant.priority);
        let mut entitled = 0.0;
        for (gpu, before) in tenant.gpus.iter().zip(&period.entitled) {
            let card = &mut self.cards[usize::from(gpu.0)];
            card.advance(now);
            entitled += f64::from(tenant.weight) * (card.entitled[class] - before);
        }
        let span = (now - period.began).0 as f64 * tenant.gpus.len() as f64;
        let entitled = entitled.min(span * f64::from(tenant.compute.0) / 10_000.0);
        let lag = entitled - (self.sessions[who].given - period.given);
        self.greatest_lag = self.greatest_lag.max(lag);
        entitled
    }

    /// `who` is not backlogged any more.
    pub(super) fn end(&mut self, now: Nanos, who: Who) {
        let entitled = self.look(now, who);
        let account = &mut self.sessions[who];
        if account.period.take().is_none() {
            return;
        }
        account.entitled += entitled;
        let tenant = &self.tenants[who];
        for gpu in &tenant.gpus {
            let card = &mut self.cards[usize::from(gpu.0)];
            card.weights[class(tenant.priority)] -= u64::from(tenant.weight);
        }
    }

    /// Work of all cards.
    pub(super) fn given(&self) -> Work {
        self.sessions.iter().map(|account| account.given).sum()
    }

    /// Time of all cards with anybody backlogged.
    pub(super) fn busy(&self) -> Nanos {
        self.cards.iter().map(|card| card.busy).sum()
    }

    pub(super) fn greatest_lag(&self) -> Nanos {
        Nanos(self.greatest_lag.max(0.0).round() as u64)
    }

    /// Jain's index; 1 where no session was entitled to anything.
    pub(super) fn jain(&self) -> f64 {
        let entitled = self.sessions.iter().filter(|account| account.entitled > 0.0);
        let shares: Vec<f64> = entitled.map(|account| (account.given / account.entitled).min(1.0)).collect();
        let sum: f64 = shares.iter().sum();
        let squares: f64 = shares.iter().map(|share| share * share).sum();
        if squares == 0.0 { 1.0 } else { sum * sum / (shares.len() as f64 * squares) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::trace::Trace;

    const fn seconds(n: u64) -> Nanos {
        Nanos::from_secs(n)
    }

    fn two(first: &str, second: &str) -> Vec<Tenant> {
        let session = |terms| format!("[[sessions]]\nname = 'a'\nmemory = '1GB'\nprogram = 'hog'\n{terms}\n");
        let text = format!("until = '1h'\nmemory = '10GB'\n{}{}", session(first), session(second));
        Trace::parse("test", &text).unwrap().tenants
    }

    #[test]
    fn who_has_three_times_the_weight_is_entitled_to_three_times_as_much() {
        let tenants = two("weight = 300", "weight = 100");
        let mut accounts = Accounts::new(&tenants, 1);
        accounts.begin(seconds(0), 0);
        accounts.begin(seconds(0), 1);
        accounts.give(0, 3e9);
        assert_eq!(accounts.look(seconds(4), 1), 1e9);
        assert_eq!(accounts.greatest_lag(), seconds(1));
        accounts.give(1, 1e9);
        accounts.end(seconds(4), 0);
        accounts.end(seconds(4), 1);
        assert_eq!((accounts.jain(), accounts.busy()), (1.0, seconds(4)));
    }

    #[test]
    fn a_class_is_entitled_to_a_twentieth_beside_the_next_higher_one() {
        let tenants = two("priority = 'high'", "");
        let mut accounts = Accounts::new(&tenants, 1);
        accounts.begin(seconds(0), 0);
        accounts.begin(seconds(0), 1);
        accounts.end(seconds(20), 0);
        assert_eq!(accounts.look(seconds(22), 1), 3e9);
    }

    #[test]
    fn nobody_is_entitled_to_more_than_its_compute_limit() {
        let tenants = two("compute = '25%'", "");
        let mut accounts = Accounts::new(&tenants, 1);
        accounts.begin(seconds(0), 0);
        assert_eq!(accounts.look(seconds(8), 0), 2e9);
    }

    #[test]
    fn of_two_who_are_entitled_to_the_same_one_gets_nothing() {
        let tenants = two("", "");
        let mut accounts = Accounts::new(&tenants, 1);
        accounts.begin(seconds(0), 0);
        accounts.begin(seconds(0), 1);
        accounts.give(0, 4e9);
        accounts.end(seconds(4), 0);
        accounts.end(seconds(4), 1);
        assert_eq!(accounts.jain(), 0.5);
    }
}

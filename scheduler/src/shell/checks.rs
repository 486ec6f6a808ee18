//! What nobody can mean: sessions, limits and bindings that are refused before anything is done.

use gpushare_proto::admin::{Change, MIN_MEMORY};
use gpushare_proto::lookup::check_name;
use gpushare_proto::session::{Amount, Binding, Quota, Terms};
use gpushare_proto::tenant::{Failure, FailureCode, GpuChoice, NewSession};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Nanos, Percent, SessionId};

use super::tenant::plain;
use super::terms::is_card;
use super::{Shell, failure};
use crate::registry::Origin;

/// Labels of a session, and characters of one.
const MOST_LABELS: usize = 16;
const LONGEST_LABEL: usize = 256;
/// Weights are relative; this far apart is everything.
const HEAVIEST: u32 = 10_000;
/// The whole.
const ALL: Percent = Percent(10_000);

impl Shell {
    /// Refuses a limit on a card that is not there: nothing would ever be limited by it.
    pub(super) fn check_cards(&self, quota: &Quota) -> Result<(), Failure> {
        if self.cards.iter().next().is_none() {
            return Ok(());
        }
        match quota.cards.iter().find(|limit| !self.may_be_there(&limit.card)) {
            Some(limit) => Err(failure(
                FailureCode::NotFound,
                format!(
                    "there is no card {} to limit; this daemon has {}",
                    plain(&limit.card.to_string()),
                    self.cards_in_words()
                ),
            )),
            None => Ok(()),
        }
    }

    /// Why a session that uses a card is not to: all its limits are for cards that are not there, so that it would have none.
    pub(super) fn limits_nothing(&self, session: SessionId) -> Option<Failure> {
        let terms = &self.sessions.get(session)?.terms;
        let quotas = [("memory", &terms.memory), ("compute", &terms.compute)];
        let (what, quota) = quotas
            .into_iter()
            .find(|(_, quota)| quota.matches_no_card(|card| self.may_be_there(card)))?;
        Some(bad(format!(
            "its session's {what} limit ({}) is for no card of this machine, which has {}; name one of them, or limit every \
             card (like 8GiB)",
            plain(&quota.to_string()),
            self.cards_in_words()
        )))
    }

    /// Whether a card is known, or one that only its first process makes known.
    fn may_be_there(&self, card: &GpuChoice) -> bool {
        let by_identity = matches!(card, GpuChoice::Uuid(_) | GpuChoice::Prefix(_));
        let known = self.cards.iter().any(|(gpu, known)| is_card(card, gpu, known.info.uuid));
        known || (by_identity && !self.cards.is_complete())
    }

    pub(super) fn check_binding(&self, binding: &Binding) -> Result<(), Failure> {
        if let Binding::Cgroup(path) = binding
            && (!path.starts_with('/') || path.trim_end_matches('/').is_empty())
        {
            return Err(bad(format!(
                "`{}` is no control group; write its path as /proc/PID/cgroup has it, like /system.slice/train.service",
                plain(path)
            )));
        }
        let taken = self.sessions.iter().find(|(_, known)| {
            matches!(&known.origin, Origin::Created { binding: theirs, .. } if theirs == binding && *binding != Binding::Token)
        });
        match taken {
            Some((_, known)) => Err(bad(format!(
                "{binding} belongs to session {} already; delete that one first",
                known.name
            ))),
            None => Ok(()),
        }
    }
}

/// Refuses a session that nobody can mean.
pub(super) fn check_new(new: &NewSession) -> Result<(), Failure> {
    if let Some(name) = &new.name {
        check_name(name).map_err(|error| bad(error.to_string()))?;
    }
    let Terms { memory, compute, weight, ttl, labels, .. } = &new.terms;
    check_quota(memory)?;
    check_compute(compute)?;
    check_weight(*weight)?;
    ttl.map_or(Ok(()), check_ttl)?;
    let text =
        |text: &String| !text.is_empty() && text.len() <= LONGEST_LABEL && text.chars().all(is_printable);
    match labels.len() <= MOST_LABELS && labels.iter().all(|(key, value)| text(key) && text(value)) {
        true => Ok(()),
        false => Err(bad(format!(
            "a session has at most {MOST_LABELS} labels, each of 1 to {LONGEST_LABEL} characters that are seen"
        ))),
    }
}

pub(super) fn check_change(change: &Change) -> Result<(), Failure> {
    match change {
        Change::Memory(quota) => check_quota(quota),
        Change::Compute(quota) => check_compute(quota),
        Change::Weight(weight) => check_weight(*weight),
        Change::Priority(_) => Ok(()),
    }
}

pub(super) fn check_quota(quota: &Quota) -> Result<(), Failure> {
    for amount in quota.amounts() {
        match amount {
            Amount::Bytes(memory) if memory < MIN_MEMORY => {
                return Err(bad(format!(
                    "a session can do nothing with {memory}; ask for {MIN_MEMORY} or more"
                )));
            }
            Amount::Share(share) if share.0 == 0 || share > ALL => {
                return Err(bad(format!(
                    "{share} is no part of a card; write more than 0% and at most 100%"
                )));
            }
            _ => {}
        }
    }
    match quota.cards.iter().any(|card| card.card == GpuChoice::Auto) {
        true => Err(bad("a quota for `auto` is for no card; name cards by number or UUID".to_owned())),
        false => Ok(()),
    }
}

pub(super) fn check_compute(quota: &Quota) -> Result<(), Failure> {
    match quota.amounts().find(|amount| matches!(amount, Amount::Bytes(_))) {
        Some(bytes) => Err(bad(format!("{bytes} is no part of a card's time; write a share, like 25%"))),
        None => check_quota(quota),
    }
}

fn check_weight(weight: u32) -> Result<(), Failure> {
    match (1..=HEAVIEST).contains(&weight) {
        true => Ok(()),
        false => Err(bad(format!("a weight is 1 to {HEAVIEST}; most sessions have 100"))),
    }
}

pub(super) fn check_ttl(ttl: Nanos) -> Result<(), Failure> {
    match ttl.is_zero() {
        true => Err(bad("a session that ends at once is none; write --ttl 2h, or leave it out".to_owned())),
        false => Ok(()),
    }
}

pub(super) fn bad(message: String) -> Failure {
    failure(FailureCode::BadRequest, message)
}

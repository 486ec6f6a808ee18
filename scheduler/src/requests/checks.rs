//! Checks of new sessions, limits and bindings before they take effect, and the choice of a card.

use gpushare_proto::admin::{Change, MIN_MEMORY};
use gpushare_proto::lookup::check_name;
use gpushare_proto::ranges;
use gpushare_proto::session::{Amount, Binding, FreezeAfter, Quota, Terms};
use gpushare_proto::tenant::{Failure, FailureCode, GpuChoice, NewSession};
use gpushare_proto::text::is_printable;
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, Percent, SessionId};

use crate::cards::Cards;
use crate::engine::Engine;
use crate::identity::is_pod_uid;
use crate::operation::{bad_request, failure, plain};
use crate::sessions::Sessions;
use crate::sessions::terms::names_card;

/// Largest number of labels of one session.
const MOST_LABELS: usize = 16;
/// Largest length of a label's key or value, in bytes.
const LONGEST_LABEL: usize = 256;
/// Whole compute time of a card: 100%.
const ALL: Percent = Percent(10_000);

/// Refuses limits for a card that does not exist, because they would limit nothing.
pub(super) fn check_cards(cards: &Cards, terms: &Terms) -> Result<(), Failure> {
    check_quota_cards(cards, &terms.memory)?;
    check_quota_cards(cards, &terms.compute)
}

pub(super) fn check_quota_cards(cards: &Cards, quota: &Quota) -> Result<(), Failure> {
    if cards.iter().next().is_none() {
        return Ok(());
    }
    match quota.cards.iter().find(|limit| !may_exist(cards, &limit.card)) {
        Some(limit) => {
            let (card, known) = (plain(&limit.card.to_string()), cards_in_words(cards));
            let message = format!("there is no card {card} to limit; this daemon has {known}");
            Err(failure(FailureCode::NotFound, message))
        }
        None => Ok(()),
    }
}

/// Refuses a card to a session whose limits all name missing cards: the session would have no limit.
pub(super) fn unlimited_by_mistake(engine: &Engine, session: SessionId) -> Option<Failure> {
    let terms = &engine.sessions.get(session)?.terms;
    let quotas = [("memory", &terms.memory), ("compute", &terms.compute)];
    let misses = |quota: &Quota| quota.matches_no_card(|card| may_exist(&engine.cards, card));
    let (what, quota) = quotas.into_iter().find(|(_, quota)| misses(quota))?;
    Some(bad_request(format!(
        "its session's {what} limit ({}) is for no card of this machine, which has {}; name one of them, or limit \
         every card (like 8GiB)",
        plain(&quota.to_string()),
        cards_in_words(&engine.cards)
    )))
}

/// Refuses a binding that is not a control group, or that another session has.
pub(super) fn check_binding(sessions: &Sessions, binding: &Binding) -> Result<(), Failure> {
    if let Binding::Cgroup(path) = binding
        && (!path.starts_with('/') || path.trim_end_matches('/').is_empty())
    {
        return Err(bad_request(format!(
            "`{}` is no control group; write its path as /proc/PID/cgroup has it, like /system.slice/train.service",
            plain(path)
        )));
    }
    if let Binding::Pod(uid) = binding
        && !is_pod_uid(uid)
    {
        return Err(bad_request(format!(
            "`{}` is no UID of a pod; write it as `metadata.uid` of the pod has it",
            plain(uid)
        )));
    }
    match sessions.with_binding(binding) {
        Some(session) => Err(bad_request(format!(
            "{binding} belongs to session {} already; delete that one first",
            session.name
        ))),
        None => Ok(()),
    }
}

pub(super) fn check_new(new: &NewSession) -> Result<(), Failure> {
    if let Some(name) = &new.name {
        check_name(name).map_err(|error| bad_request(error.to_string()))?;
    }
    let Terms { memory, compute, weight, ttl, labels, freeze_after, .. } = &new.terms;
    check_quota(memory)?;
    check_compute(compute)?;
    check_weight(*weight)?;
    ttl.map_or(Ok(()), check_ttl)?;
    check_freeze_after(*freeze_after)?;
    let is_text =
        |text: &str| !text.is_empty() && text.len() <= LONGEST_LABEL && text.chars().all(is_printable);
    let mut all = labels.iter();
    let are_valid = labels.len() <= MOST_LABELS && all.all(|(key, value)| is_text(key) && is_text(value));
    ensure(are_valid, || {
        format!("a session has at most {MOST_LABELS} labels, each of 1 to {LONGEST_LABEL} visible characters")
    })
}

pub(super) fn check_change(change: &Change) -> Result<(), Failure> {
    match change {
        Change::Memory(quota) => check_quota(quota),
        Change::Compute(quota) => check_compute(quota),
        Change::Weight(weight) => check_weight(*weight),
        Change::Priority(_) => Ok(()),
        Change::FreezeAfter(after) => check_freeze_after(*after),
    }
}

pub(super) fn check_quota(quota: &Quota) -> Result<(), Failure> {
    for amount in quota.amounts() {
        match amount {
            Amount::Bytes(memory) if memory < MIN_MEMORY => {
                return Err(bad_request(format!(
                    "a session can do nothing with {memory}; ask for {MIN_MEMORY} or more"
                )));
            }
            Amount::Share(share) if share.0 == 0 || share > ALL => {
                let message = format!("{share} is no part of a card; write more than 0% and at most 100%");
                return Err(bad_request(message));
            }
            _ => {}
        }
    }
    let names_cards = quota.cards.iter().all(|card| card.card != GpuChoice::Auto);
    ensure(names_cards, || "a quota for `auto` is for no card; name cards by number or UUID".to_owned())
}

pub(super) fn check_compute(quota: &Quota) -> Result<(), Failure> {
    if let Some(bytes) = quota.amounts().find(|amount| matches!(amount, Amount::Bytes(_))) {
        let message = format!("{bytes} is no part of a card's time; write a share, like 25%");
        return Err(bad_request(message));
    }
    check_quota(quota)
}

pub(super) fn check_weight(weight: u32) -> Result<(), Failure> {
    ranges::WEIGHT
        .check(weight)
        .map(drop)
        .map_err(|error| bad_request(error.to_string()))
}

fn check_freeze_after(after: FreezeAfter) -> Result<(), Failure> {
    match after {
        FreezeAfter::Usual | FreezeAfter::Never => Ok(()),
        FreezeAfter::Idle(time) => ranges::FREEZE_AFTER
            .check(time)
            .map(drop)
            .map_err(|error| bad_request(error.to_string())),
    }
}

fn ensure(is_valid: bool, message: impl FnOnce() -> String) -> Result<(), Failure> {
    if is_valid { Ok(()) } else { Err(bad_request(message())) }
}

pub(super) fn check_ttl(ttl: Nanos) -> Result<(), Failure> {
    ensure(!ttl.is_zero(), || "a session cannot end at once; write --ttl 2h, or leave it out".to_owned())
}

fn cards_in_words(cards: &Cards) -> String {
    let words = cards.iter().map(|(gpu, card)| format!("{} ({})", gpu.0, card.info.uuid));
    words.collect::<Vec<String>>().join(", ")
}

/// Returns whether a named card is known, or may become known with its first process.
fn may_exist(cards: &Cards, choice: &GpuChoice) -> bool {
    let has_uuid = matches!(choice, GpuChoice::Uuid(_) | GpuChoice::Prefix(_));
    let mut known = cards.iter();
    let is_known = known.any(|(gpu, known)| names_card(choice, gpu, known.info.uuid));
    is_known || (has_uuid && !cards.complete)
}

/// Returns the memory of the largest card in bytes; the largest number if no card is known.
pub(super) fn largest_card(cards: &Cards) -> Bytes {
    let totals = cards.iter().map(|(_, card)| card.info.total);
    totals.max().unwrap_or(Bytes::MAX)
}

/// Chooses the card of a new session. Returns none if no card is known and the request names none by UUID.
pub(super) fn place(engine: &Engine, wish: &GpuChoice) -> Result<Option<GpuUuid>, Failure> {
    let cards = &engine.cards;
    let unknown = |card: String| {
        let known = cards_in_words(cards);
        failure(FailureCode::NotFound, format!("there is no GPU {card}; this daemon has {known}"))
    };
    let none_known = cards.iter().next().is_none();
    match *wish {
        // One known card may not be the only one: without NVML each is known from its first process.
        GpuChoice::Auto if cards.iter().count() < 2 => Ok(None),
        GpuChoice::Auto => Ok(least_used(engine)),
        GpuChoice::Uuid(uuid) if none_known => Ok(Some(uuid)),
        // The card's own form of the UUID says whether it is a MIG instance; the peer's may not.
        GpuChoice::Uuid(uuid) => match cards.by_uuid(uuid).and_then(|gpu| cards.get(gpu)) {
            Some(card) => Ok(Some(card.info.uuid)),
            None => Err(unknown(uuid.to_string())),
        },
        GpuChoice::Prefix(ref prefix) => {
            let uuids = cards.iter().map(|(_, card)| card.info.uuid);
            let mut found = uuids.filter(|uuid| uuid.begins_with(prefix));
            match (found.next(), found.next()) {
                (Some(uuid), None) => Ok(Some(uuid)),
                (Some(_), Some(_)) => {
                    let prefix = plain(prefix);
                    let message = format!("more than one GPU begins with {prefix}; write more of its UUID");
                    Err(bad_request(message))
                }
                (None, _) => Err(unknown(plain(prefix))),
            }
        }
        GpuChoice::Index(_) if none_known => Ok(None),
        GpuChoice::Index(index) => match cards.get(GpuId(index)) {
            Some(card) => Ok(Some(card.info.uuid)),
            None => Err(unknown(index.to_string())),
        },
    }
}

/// Returns the card with the fewest sessions; among equals, the one with the least allocated memory.
fn least_used(engine: &Engine) -> Option<GpuUuid> {
    let load = |gpu: GpuId, uuid: GpuUuid| {
        let placed = engine.sessions.placed_on(uuid);
        let on_card = |session: &SessionId| engine.sessions.get(*session).and_then(|session| session.card);
        let others = engine.clients.sessions_on(gpu).filter(|session| on_card(session) != Some(uuid));
        let count = placed + others.count();
        (count, engine.machine.allocated_bytes(gpu))
    };
    let cards = engine.cards.iter().map(|(gpu, card)| (gpu, card.info.uuid));
    cards.min_by_key(|&(gpu, uuid)| load(gpu, uuid)).map(|(_, uuid)| uuid)
}

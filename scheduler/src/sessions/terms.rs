//! Converts the terms of a session (share, memory and compute limits) to events of the decision machine.

use gpushare_core::{Event, UserId};
use gpushare_proto::session::{Amount, CardQuota, Quota};
use gpushare_proto::tenant::GpuChoice;
use gpushare_proto::{Bytes, GpuId, GpuUuid, Nanos, Percent, SessionId};

use super::Session;
use crate::cards::Cards;

pub(crate) fn names_card(choice: &GpuChoice, gpu: GpuId, uuid: GpuUuid) -> bool {
    match choice {
        GpuChoice::Auto => false,
        GpuChoice::Index(index) => GpuId(*index) == gpu,
        GpuChoice::Uuid(named) => *named == uuid,
        GpuChoice::Prefix(prefix) => uuid.begins_with(prefix),
    }
}

/// Returns the events that report a session's terms to the decision machine, with its user and the user's
/// weight. `freeze_after` is the daemon's own idle time after which a session is frozen.
pub(crate) fn terms_events(
    id: SessionId,
    session: &Session,
    user: Option<(UserId, u32)>,
    cards: &Cards,
    freeze_after: Option<Nanos>,
) -> Vec<Event> {
    let limit = match memory_in_force(session, cards).every {
        Some(Amount::Bytes(bytes)) => Some(bytes),
        // A share depends on the card, so it is sent as a quota of each card.
        Some(Amount::Share(_)) | None => None,
    };
    let terms = &session.terms;
    let mut events = vec![Event::SessionOpened { session: id, limit, oversubscribe: session.oversubscribe }];
    events.extend(user.map(|(user, weight)| Event::Owner { session: id, user, weight }));
    events.push(Event::Share { session: id, weight: terms.weight, priority: terms.priority });
    events.push(Event::FreezeAfter { session: id, idle: terms.freeze_after.in_force(freeze_after) });
    let quotas = cards.iter().flat_map(|(gpu, _)| quota_events(id, session, cards, gpu));
    events.extend(quotas);
    events
}

/// Returns the events that report a session's limits on one card to the decision machine.
pub(crate) fn quota_events(id: SessionId, session: &Session, cards: &Cards, gpu: GpuId) -> [Event; 2] {
    let compute = compute_on(&session.terms.compute, cards, gpu);
    [
        Event::Quota { session: id, gpu, limit: memory_limit(session, cards, gpu) },
        Event::Compute { session: id, gpu, limit: compute },
    ]
}

/// Returns a session's memory limit on a card in bytes; none for no limit. The user's choice never exceeds what
/// an administrator set, also on cards that appeared later.
pub(crate) fn memory_limit(session: &Session, cards: &Cards, gpu: GpuId) -> Option<Bytes> {
    let on = |quota: &Quota| memory_on(quota, cards, gpu);
    on(&session.terms.memory)
        .into_iter()
        .chain(session.ceiling.as_ref().and_then(on))
        .min()
}

/// Returns a session's memory limits for displays: what both the session's terms and the limit of an administrator
/// allow. The two are compared on each card, since one may be a share and the other a size.
pub(crate) fn memory_in_force(session: &Session, cards: &Cards) -> Quota {
    let own = &session.terms.memory;
    let Some(ceiling) = session.ceiling.as_ref().filter(|ceiling| *ceiling != own) else {
        return own.clone();
    };
    let every = match (own.every, ceiling.every) {
        (Some(Amount::Bytes(own)), Some(Amount::Bytes(most))) => Some(Amount::Bytes(own.min(most))),
        (Some(Amount::Share(own)), Some(Amount::Share(most))) => Some(Amount::Share(own.min(most))),
        (own, most) => own.or(most),
    };
    let mut quota = Quota { every, cards: Vec::new() };
    for (gpu, _) in cards.iter() {
        if let Some(limit) = memory_limit(session, cards, gpu)
            && memory_on(&quota, cards, gpu) != Some(limit)
        {
            let card = GpuChoice::Index(gpu.0);
            quota.cards.push(CardQuota { card, amount: Amount::Bytes(limit) });
        }
    }
    // Limits on cards that are not there yet stay as they are.
    let is_there =
        |choice: &GpuChoice| cards.iter().any(|(gpu, card)| names_card(choice, gpu, card.info.uuid));
    let absent = own.cards.iter().filter(|own| !is_there(&own.card));
    quota.cards.extend(absent.cloned());
    quota
}

/// Returns the number of bytes that a memory quota allows on a card; none for no limit.
pub(crate) fn memory_on(quota: &Quota, cards: &Cards, gpu: GpuId) -> Option<Bytes> {
    Some(amount_on(quota, cards, gpu)?.of(cards.get(gpu)?.info.total))
}

/// Returns the share of compute time that a compute quota allows on a card; none for no limit.
pub(crate) fn compute_on(quota: &Quota, cards: &Cards, gpu: GpuId) -> Option<Percent> {
    match amount_on(quota, cards, gpu)? {
        Amount::Share(share) => Some(share),
        // Such a quota is refused when it is set.
        Amount::Bytes(_) => None,
    }
}

fn amount_on(quota: &Quota, cards: &Cards, gpu: GpuId) -> Option<Amount> {
    let uuid = cards.get(gpu)?.info.uuid;
    let own = quota.cards.iter().find(|own| names_card(&own.card, gpu, uuid));
    own.map(|own| own.amount).or(quota.every)
}

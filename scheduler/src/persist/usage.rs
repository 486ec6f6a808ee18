//! Usage of sessions: counted every second while there are clients, and stored in sums by hour.
//!
//! Virtual time is read at the same time.

use std::collections::BTreeMap;

use gpushare_core::snapshot::SessionSnapshot;
use gpushare_proto::admin::{AdminReply, SessionGpuView, UserUsageView};
use gpushare_proto::session::Priority;
use gpushare_proto::tenant::FailureCode;
use gpushare_proto::{Bytes, GpuId, Nanos, SessionId};
use gpushare_sys::clock;

use super::question::UsageQuestion;
use crate::engine::Engine;
use crate::operation::failure;
use crate::registry::{CardLead, Figures, Hour, UserLead, view};
use crate::sessions::Session;

/// Number of sessions that are counted between two inputs.
const SLICE: usize = 32;

/// Counts the next slice of the sessions, from `engine.counting` on.
pub(crate) fn count_slice(engine: &mut Engine) {
    let Some(first) = engine.counting else { return };
    let (now, hour) = (clock::monotonic(), Hour::now());
    if first == SessionId(0) {
        count_users(engine, now);
    }
    let ids: Vec<SessionId> = engine.sessions.ids_from(first).take(SLICE).collect();
    ids.iter().for_each(|&id| count(engine, now, hour, id));
    let last = ids.last().filter(|_| ids.len() == SLICE);
    engine.counting = last.map(|last| SessionId(last.0.saturating_add(1)));
}

pub(crate) fn count_all(engine: &mut Engine, now: Nanos) {
    let hour = Hour::now();
    count_users(engine, now);
    let ids: Vec<SessionId> = engine.sessions.ids_from(SessionId(0)).collect();
    ids.into_iter().for_each(|id| count(engine, now, hour, id));
    engine.counting = None;
}

fn count(engine: &mut Engine, now: Nanos, hour: Hour, id: SessionId) {
    let leads = engine.machine.leads(now, id).into_iter();
    let on_card = |(gpu, lead_ns)| Some(CardLead { card: engine.cards.get(gpu)?.info.uuid, lead_ns });
    let leads: Vec<CardLead> = leads.filter_map(on_card).collect();
    let Some((figures, allocated)) = figures(engine, now, id) else { return };
    let Some(session) = engine.sessions.get_mut(id) else { return };
    let moved = std::mem::replace(&mut session.leads, leads) != session.leads;
    let news = session.count(figures, allocated, hour);
    if moved || news != Figures::default() {
        engine.persistence.session_changed(id);
    }
    engine.persistence.add_usage(hour, id, session, news);
    // The memory of each process may have changed.
    engine
        .clients
        .ids_of(id)
        .for_each(|client| engine.persistence.client_changed(client));
}

/// Notes the leads of all users.
fn count_users(engine: &mut Engine, now: Nanos) {
    let Engine { users, sessions, machine, cards, .. } = engine;
    let lead = |(class, gpu, lead_ns): (Priority, GpuId, i64)| {
        Some(UserLead { card: cards.get(gpu)?.info.uuid, class, lead_ns })
    };
    let leads = |user| machine.user_leads(now, user).into_iter().filter_map(lead).collect();
    users.count(leads, |user| sessions.of_user(user).next().is_some());
}

/// Counts the last usage of a session that was removed from the table, with the decision machine's figures.
pub(crate) fn count_last(engine: &mut Engine, id: SessionId, session: &Session) {
    let hour = Hour::now();
    if let Some((figures, allocated)) = figures(engine, clock::monotonic(), id) {
        let (news, _) = session.news(figures, allocated, hour);
        engine.persistence.add_usage(hour, id, session, news);
    }
}

/// Returns the total usage of a session under this daemon, and its present largest allocation on one card.
fn figures(engine: &Engine, now: Nanos, id: SessionId) -> Option<(Figures, Bytes)> {
    let mut state = engine.machine.session_snapshot(now, id)?;
    engine.clients.update_allocated(&mut state);
    let most = |state: &SessionSnapshot, bytes: fn(&SessionGpuView) -> Bytes| {
        state.gpus.iter().map(bytes).max().unwrap_or(Bytes::ZERO)
    };
    let figures = Figures {
        gpu_time: state.gpu_time_ns,
        waited: state.waited_ns,
        held: state.held_ns,
        moved: state.moved_bytes,
        peak: most(&state, |gpu| gpu.peak_bytes),
        refusals: state.refusals,
    };
    Some((figures, most(&state, |gpu| gpu.allocated_bytes)))
}

/// Requests the sessions' usage up to now from the writer thread of the registry.
pub(crate) fn ask_usage(engine: &mut Engine, question: UsageQuestion) {
    count_all(engine, clock::monotonic());
    engine.persistence.ask_usage(question);
}

/// Sends the usage in the registry to a peer. Living sessions without usage are listed too, if the period
/// contains the present hour.
pub(crate) fn answer_usage(
    engine: &mut Engine,
    question: &UsageQuestion,
    answer: Result<Vec<UserUsageView>, String>,
) {
    let UsageQuestion { connection, hours, with_users } = *question;
    let reply = match answer {
        Ok(usages) => {
            let mut all: BTreeMap<SessionId, UserUsageView> =
                usages.into_iter().map(|found| (found.usage.session, found)).collect();
            let is_present = hours.contains(Hour::now());
            for (id, session) in engine.sessions.iter() {
                if is_present {
                    all.entry(id).or_insert_with(|| view(id, hours.first, session.spent_nothing()));
                }
                if let Some(found) = all.get_mut(&id) {
                    found.usage.alive = true;
                }
            }
            match with_users {
                true => AdminReply::UserUsage(all.into_values().collect()),
                false => AdminReply::Usage(all.into_values().map(|found| found.usage).collect()),
            }
        }
        Err(cause) => AdminReply::Error(failure(
            FailureCode::Unavailable,
            format!("the daemon cannot read its registry ({cause}); look at its log"),
        )),
    };
    engine.peers.reply(connection, &reply);
}

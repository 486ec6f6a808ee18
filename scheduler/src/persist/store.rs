//! Writes to the registry file, and the answers that wait for them.
//!
//! ```text
//!   act ──▶ effective at once, answer held ──▶ writer thread ──▶ registry file ──▶ answer, or a failure
//! ```
//!
//! The daemon answers an act when it is on the disk. If the write fails, the act stays effective and the
//! answer says so: a pause that undid itself would let a tenant run on against the administrator's order.
//! Only a new session is removed again, because nobody has received its token.

use gpushare_proto::SessionId;
use gpushare_proto::admin::AdminReply;
use gpushare_proto::audit::{Action, Outcome};
use gpushare_proto::tenant::FailureCode;
use gpushare_sys::clock;
use tokio::sync::oneshot;

use super::queue::WaitingAnswer;
use super::usage;
use crate::clients::leave;
use crate::engine::Engine;
use crate::input::Input;
use crate::operation::{Operation, failure};
use crate::registry::{Changes, SessionEntry, Word, Writer};

/// Error code of an act that is effective and not on the disk.
const NOT_KEPT: &str = "not_kept";

pub(crate) fn write_if_due(engine: &mut Engine, writer: &Writer) {
    let now = clock::monotonic();
    if engine.persistence.is_due(now) {
        write(engine, writer, false);
    }
}

/// Hands everything to the writer thread at the end of the daemon, when no client is accepted any longer.
pub(crate) fn write_last(engine: &mut Engine, writer: &Writer) {
    usage::count_all(engine, clock::monotonic());
    engine.persistence.write_in_any_case();
    write(engine, writer, true);
}

fn write(engine: &mut Engine, writer: &Writer, last: bool) {
    if let Some(urgent) = engine.persistence.begin_write(clock::monotonic()) {
        let changes = Changes { ended: last, ..changes(engine, urgent || last) };
        writer.publish(engine.persistence.news(changes));
    }
    for question in engine.persistence.take_questions() {
        let (answer, answered) = oneshot::channel();
        writer.ask(question.hours, answer);
        let inputs = engine.inputs.clone();
        tokio::spawn(async move {
            let answer = answered.await.unwrap_or_else(|_| Err("the daemon ends".to_owned()));
            // The receiver is gone only when the daemon ends.
            let _ = inputs.send(Input::Used { question, answer }).await;
        });
    }
}

/// Returns the present entries of sessions and clients that changed: of a part of them, or of `all`.
fn changes(engine: &mut Engine, all: bool) -> Changes {
    let (sessions, clients) = engine.persistence.take_changes(all);
    let session = |id| {
        let entry = engine.sessions.entry(id);
        let joined = || engine.joined.of_session(id);
        (id, entry.map(|entry| SessionEntry { joined: joined(), ..entry }))
    };
    let client = |id| {
        let dead = || engine.awaited.get(id).or_else(|| engine.orphans.entry(id)).cloned();
        let frozen = engine.machine.is_spared(id);
        let living = engine
            .clients
            .get(id)
            .and_then(|client| client.entry(id, &engine.cards, frozen));
        (id, living.or_else(dead))
    };
    Changes {
        ended: false,
        next_session: engine.sessions.next,
        next_client: engine.clients.next,
        users: engine.users.entries(),
        sessions: sessions.into_iter().map(session).collect(),
        clients: clients.into_iter().map(client).collect(),
    }
}

/// Releases the answers to all acts up to the one that the writer thread reports, or sends failures instead.
pub(crate) fn written(engine: &mut Engine, word: &Word) {
    for (act, waiting) in engine.persistence.take_answers(word.act) {
        match &word.failure {
            None => {
                if let Some(line) = waiting.line {
                    engine.audit.write_act(line);
                }
                engine
                    .peers
                    .send(waiting.connection, |outbox| outbox.release::<AdminReply>(act, None));
            }
            Some(cause) => fail(engine, act, waiting, cause),
        }
    }
    engine.finish();
}

fn fail(engine: &mut Engine, act: u64, waiting: WaitingAnswer, cause: &str) {
    let WaitingAnswer { connection, made, line, fail } = waiting;
    let outcome = match made {
        Some(session) => remove_new_session(engine, session),
        None => "it is in force, but the daemon's next start may undo it",
    };
    let message = format!(
        "the daemon cannot write its registry ({cause}): {outcome}; make room for it, or look at its log"
    );
    if let Some((_, peer)) = engine.peers.get(connection) {
        Operation::done("registry.write")
            .peer(peer)
            .failed(Outcome::Failed, NOT_KEPT)
            .warn(format_args!("an act of {connection} is not kept: {message}"));
    }
    if let Some(line) = line {
        engine.audit.write_act(Action {
            result: Outcome::Failed,
            error_code: Some(NOT_KEPT.to_owned()),
            why: Some(message.clone()),
            ..line
        });
    }
    fail(&mut engine.peers, connection, act, failure(FailureCode::Unavailable, message));
}

/// Removes a session whose token nobody has received. Returns the outcome as text.
fn remove_new_session(engine: &mut Engine, id: SessionId) -> &'static str {
    if engine.sessions.get(id).is_some_and(|session| session.clients > 0) {
        return "the session was made and has processes, but the daemon's next start may not know it";
    }
    if let Some(session) = engine.sessions.remove(id) {
        leave::forget_session(engine, id, &session);
    }
    "no session was made"
}

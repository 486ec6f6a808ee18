//! Introduces a process that opens memory of another one to that process.
//!
//! The daemon passes two names on and nothing else: no descriptor and no memory. So a process that asks often
//! costs no more than its messages do. Whether the memory exists and the secret is right, only the exporter
//! knows.

use gpushare_proto::RequestId;
use gpushare_proto::sharing::{ExportName, Meeting};
use gpushare_proto::tenant::TenantReply;

use crate::clients::introductions::{Introduction, MOST};
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::operation::Operation;

/// Whether an exporter of memory was told where an importer waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Yes,
    No,
    /// The exporter was a client of the last daemon and has not reconnected.
    NotYet,
}

/// Tells the exporter of memory where `importer` waits for it, if both are of one user, and answers the importer.
/// The answer does not say why the exporter was not told. It comes later if the exporter is still to reconnect.
pub(super) fn introduce(
    engine: &mut Engine,
    importer: ConnectionId,
    request: RequestId,
    export: ExportName,
    meeting: Meeting,
) {
    decide_or_keep(engine, Introduction { importer, request, export, meeting });
}

/// Looks again at the questions about memory of processes that had not reconnected.
pub(crate) fn retry_introductions(engine: &mut Engine) {
    for introduction in std::mem::take(&mut engine.introductions.0) {
        decide_or_keep(engine, introduction);
    }
}

fn decide_or_keep(engine: &mut Engine, introduction: Introduction) {
    match tell(engine, &introduction) {
        Told::NotYet if kept_for_user_of(engine, &introduction) < MOST => {
            engine.introductions.0.push(introduction);
        }
        told => answer(engine, &introduction, told == Told::Yes),
    }
}

/// Returns how many questions of the same user wait.
fn kept_for_user_of(engine: &Engine, introduction: &Introduction) -> usize {
    let owner = |importer| Some(engine.clients.get(engine.peers.client(importer)?)?.peer.owner());
    let asks = owner(introduction.importer);
    engine
        .introductions
        .0
        .iter()
        .filter(|kept| owner(kept.importer) == asks)
        .count()
}

fn answer(engine: &mut Engine, &Introduction { importer, request, .. }: &Introduction, is_told: bool) {
    engine.peers.reply(importer, &TenantReply::ImportAnswered { request, is_told });
}

fn tell(engine: &mut Engine, &Introduction { importer, export, meeting, .. }: &Introduction) -> Told {
    let importer = engine.peers.client(importer).and_then(|client| engine.clients.get(client));
    let Some(importer) = importer else { return Told::No };
    let Some(exporter) = engine.clients.get(export.exporter) else {
        return if engine.awaited.get(export.exporter).is_some() {
            Told::NotYet
        } else {
            Told::No
        };
    };
    let is_of_user = importer.peer.owner() == exporter.peer.owner();
    if !is_of_user {
        let name = engine.sessions.name(importer.session);
        Operation::of("process.import", importer.session, &name)
            .peer(&importer.peer)
            .warn(format_args!(
                "pid {} of {name} asked for memory of {}, a process of another user",
                importer.peer.pid, export.exporter
            ));
        return Told::No;
    }
    // A process that does not read must not lose its connection because others ask for its memory.
    match exporter.connection.filter(|&connection| engine.peers.keeps_up(connection)) {
        Some(connection) => {
            engine.peers.reply(connection, &TenantReply::ImportWanted { export, meeting });
            Told::Yes
        }
        None => Told::No,
    }
}

//! Introduces a process that opens memory of another one to that process.
//!
//! The daemon passes two names on and nothing else: no descriptor and no memory. So a process that asks often
//! costs no more than its messages do. Whether the memory exists and the secret is right, only the exporter
//! knows.

use gpushare_proto::sharing::{ExportName, Meeting};
use gpushare_proto::tenant::TenantReply;
use gpushare_proto::{ClientId, RequestId};

use crate::engine::Engine;
use crate::operation::Operation;

/// Tells the exporter of memory where `importer` waits for it, if both are of one user. Returns the answer
/// for the importer, which does not say why the exporter was not told.
pub(super) fn introduce(
    engine: &mut Engine,
    importer: ClientId,
    request: RequestId,
    export: ExportName,
    meeting: Meeting,
) -> TenantReply {
    let is_told = tell(engine, importer, export, meeting).is_some();
    TenantReply::ImportAnswered { request, is_told }
}

fn tell(engine: &mut Engine, importer: ClientId, export: ExportName, meeting: Meeting) -> Option<()> {
    let importer = engine.clients.get(importer)?;
    let exporter = engine.clients.get(export.exporter)?;
    let is_of_user = importer.peer.owner() == exporter.peer.owner();
    if !is_of_user {
        let name = engine.sessions.name(importer.session);
        Operation::of("process.import", importer.session, &name)
            .peer(&importer.peer)
            .warn(format_args!(
                "pid {} of {name} asked for memory of {}, a process of another user",
                importer.peer.pid, export.exporter
            ));
        return None;
    }
    let connection = exporter.connection?;
    // A process that does not read must not lose its connection because others ask for its memory.
    engine.peers.keeps_up(connection).then_some(())?;
    engine.peers.reply(connection, &TenantReply::ImportWanted { export, meeting });
    Some(())
}

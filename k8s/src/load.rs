//! Load of the cards, from the node's daemon.

use std::collections::BTreeMap;
use std::time::Duration;

use gpushare_connection::{Admin, Client, ClientError};
use gpushare_proto::GpuUuid;
use gpushare_proto::admin::{AdminReply, AdminRequest, Status};
use gpushare_proto::names::RuntimeDir;

use crate::choice::Load;
use crate::notes::Notes;

/// Longest wait for the daemon while the kubelet waits for a proposal.
const PATIENCE: Duration = Duration::from_millis(500);

/// Asks the daemon in `dir` for the load of each card. Without an answer the load is unknown, and all cards
/// count alike.
pub(crate) async fn load(dir: &RuntimeDir, notes: &Notes) -> BTreeMap<GpuUuid, Load> {
    let asked = dir.clone();
    let asking = tokio::task::spawn_blocking(move || status(&asked));
    let problem = match tokio::time::timeout(PATIENCE, asking).await {
        Ok(Ok(Ok(status))) => return of(&status),
        Ok(Ok(Err(cause))) => cause.to_string(),
        Ok(Err(cause)) => cause.to_string(),
        Err(_) => format!("no answer within {PATIENCE:?}"),
    };
    notes.warn(&format!("shares are chosen without the load of the cards: {problem}"));
    BTreeMap::new()
}

fn status(dir: &RuntimeDir) -> Result<Status, ClientError> {
    let mut client = Client::<Admin>::connect(dir)?;
    match client.ask(&AdminRequest::Status)? {
        AdminReply::Status(status) => Ok(*status),
        _ => Err(client.unexpected()),
    }
}

/// Returns the load of each card of a status.
fn of(status: &Status) -> BTreeMap<GpuUuid, Load> {
    let sessions = |gpu| {
        let on_card = status.sessions.iter().flat_map(|session| &session.gpus);
        on_card
            .filter(|card| card.gpu == gpu && !card.allocated_bytes.is_zero())
            .count()
    };
    let load = |gpu: &gpushare_proto::admin::GpuView| {
        (gpu.uuid, Load { sessions: sessions(gpu.gpu), allocated: gpu.allocated_bytes })
    };
    status.gpus.iter().map(load).collect()
}

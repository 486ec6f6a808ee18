//! Processes of pods whose sessions do not exist yet.
//!
//! The device plugin of the node makes a session for each pod (`k8s/src/pods`). A container may start before
//! that. With `pod_sessions` in the configuration such a process waits, whatever token it has, so that it never
//! runs without its pod's limits:
//!
//! ```text
//!   hello of a pod's process ── it has a session ───────────────────────▶ joins
//!                            └─ else waits ── a session is made for it ─▶ joins
//!                                          └─ PATIENCE is over ─────────▶ refused, with the reason
//! ```
//!
//! A process that the daemon knew before keeps its session, and never waits.

use gpushare_proto::Nanos;
use gpushare_proto::session::Binding;
use gpushare_proto::tenant::{Failure, FailureCode, TenantReply};
use gpushare_sys::clock;

use super::hello::ClientHello;
use super::unknown_pods::Waiting;
use super::{ancestry, join, leave};
use crate::connections::ConnectionId;
use crate::engine::Engine;
use crate::identity::PeerProcess;
use crate::operation::{Operation, failure};

/// Longest wait for the session of a pod. Libraries wait 5 s for the answer to their hello, so the reason
/// comes before that.
const PATIENCE: Nanos = Nanos::from_millis(4_500);

/// Joins the process of a hello to its session, or lets it wait for the session of its pod.
pub(crate) fn join_or_wait(
    engine: &mut Engine,
    connection: ConnectionId,
    peer: &PeerProcess,
    hello: ClientHello,
) -> Result<(), Failure> {
    match unknown_pod(engine, peer) {
        Some(pod) => {
            Operation::done("process.wait")
                .peer(peer)
                .info(format_args!("pid {} waits for the session of its pod {pod}", peer.pid));
            let until = clock::monotonic() + PATIENCE;
            engine.unknown_pods.insert(connection, Waiting { pod, until, hello });
            Ok(())
        }
        None => join::join(engine, connection, peer, &hello),
    }
}

/// Returns the UID of the pod of a process that must wait; none for one that need not.
fn unknown_pod(engine: &Engine, peer: &PeerProcess) -> Option<String> {
    let is_known = |process| ancestry::client_session(engine, process).is_some();
    if !engine.settings.pod_sessions || engine.bound(peer).is_some() || peer.id.is_some_and(is_known) {
        return None;
    }
    peer.pod()
}

/// Looks again at the processes that wait, after new settings or for the binding of a new session, and joins
/// those that need not wait any more.
pub(crate) fn look_again(engine: &mut Engine, new: Option<&Binding>) {
    let waiting = match new {
        Some(Binding::Token) => return,
        Some(Binding::Pod(pod)) => engine.unknown_pods.of_pod(pod),
        // The control group or the user of any of them.
        Some(Binding::Cgroup(_) | Binding::Uid(_)) | None => engine.unknown_pods.all(),
    };
    for connection in waiting {
        let Some(peer) = engine.peers.get(connection).map(|(_, peer)| peer.clone()) else {
            continue;
        };
        if unknown_pod(engine, &peer).is_some() {
            continue;
        }
        let Some(waiting) = engine.unknown_pods.take(connection) else {
            continue;
        };
        if let Err(failure) = join::join(engine, connection, &peer, &waiting.hello) {
            leave::refuse(engine, connection, failure, TenantReply::Error);
        }
    }
}

/// Refuses the processes that have waited long enough.
pub(crate) fn refuse_late(engine: &mut Engine, now: Nanos) {
    while let Some((connection, waiting)) = engine.unknown_pods.take_late(now) {
        leave::refuse(engine, connection, unknown(&waiting.pod), TenantReply::Error);
    }
}

fn unknown(pod: &str) -> Failure {
    failure(
        FailureCode::Unavailable,
        format!(
            "gpushare-k8s of this node has made no session for pod {pod}; give one of its containers a share \
             (`gpushare.dev/gpu: 1` in the limits; an init container alone is not enough) or a claim, and see the log \
             of gpushare-k8s on this node"
        ),
    )
}

//! Connections to the daemon's HTTP servers: the metrics and the page for browsers. Every connection is
//! accepted at once. If there are too many, another one is closed (`connections.rs`).

mod connections;

use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::task::yield_now;
use tokio::time::sleep;
use tracing::warn;

use connections::Connections;
pub(crate) use connections::Rank;

/// Pause after a failed accept. Such a failure mostly means that no descriptor is left.
const PAUSE: Duration = Duration::from_millis(200);

/// Serves connections, at most `most` at a time. `what` names the server in the log.
pub(crate) async fn accept<F>(
    listener: &TcpListener,
    most: usize,
    what: &str,
    serve: impl Fn(TcpStream, Rank) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let mut connections = Connections::new(most);
    let mut refused = false;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                connections.add(|rank| serve(stream, rank));
                refused = false;
                // One yield lets the runtime see the bytes that arrived, one lets the connection read them.
                // So a connection that came with a request counts as one that asked before the next one is
                // accepted.
                yield_now().await;
                yield_now().await;
            }
            Err(cause) => {
                if !std::mem::replace(&mut refused, true) {
                    warn!("cannot accept a connection for {what}: {cause}; trying again every {PAUSE:?}");
                }
                connections.close_one();
                sleep(PAUSE).await;
            }
        }
    }
}

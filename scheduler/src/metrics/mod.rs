//! Metrics for Prometheus, and health checks.
//!
//! ```text
//!   the daemon's task                      the metrics thread                    the sensors thread
//!  ┌──────────────────────────────┐       ┌────────────────────────────────┐    ┌────────────────┐
//!  │ notices ─▶ events ───────────┼─────▶ │ recorder ──────────┐           │ ◀──┤ NVML, at most  │
//!  │ core ─▶ picture ─▶ cache ────┼─────▶ │ ─▶ scene ─▶ table ─┴▶ page ────┼──▶ │ once a second  │
//!  └──────────────────────────────┘       └──────────────────────▲─────────┘    └────────────────┘
//!                                               GET /metrics ────┘
//! ```
//!
//! The daemon's task does two things. It adds to histograms whose buckets are atomics. On request it copies
//! its figures, at most four times a second. Connections, formatting and NVML have threads of their own, so
//! no reader and no driver can delay a grant. Without scrapes there is no work.
//!
//! The number of series is bounded by the cards of the machine and by a thousand sessions (`sessions.rs`).

mod cache;
mod events;
mod page;
mod picture;
mod scene;
mod sensors;
mod server;
mod sessions;
mod table;
#[cfg(test)]
mod tests;

use std::net::{SocketAddr, TcpListener};
use std::{io, thread};

use gpushare_core::{Core, Notice};
use gpushare_proto::SessionId;
use gpushare_sys::clock;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::cards::Cards;
use cache::Cache;
use sensors::Sensors;

pub(crate) use cache::PictureRequest;
use events::Events;
use picture::Ended;
pub(crate) use picture::{AuditPicture, CardPicture, Picture, SessionPicture};
pub use table::{FAMILIES, Family, Kind};

/// The daemon's access to the metrics server. Dropping it ends the server.
#[derive(Debug)]
pub(crate) struct Observer {
    events: Events,
    ended: Ended,
    _serving: oneshot::Sender<()>,
}

/// Starts the metrics server at `address`. The server asks for figures with `requests`, and shows names of
/// sessions only with `names`. If that fails, the daemon logs the failure and runs without metrics.
pub(crate) fn start(address: SocketAddr, names: bool, requests: mpsc::Sender<PictureRequest>) -> Metrics {
    match try_start(address, names, requests) {
        Ok((observer, address)) => {
            info!("metrics are at http://{address}/metrics");
            Metrics(Some(observer))
        }
        Err(cause) => {
            warn!(
                "cannot serve metrics at {address}: {cause}; the daemon goes on without them, \
                 choose another address by --metrics or the key `metrics`"
            );
            Metrics::default()
        }
    }
}

fn try_start(
    address: SocketAddr,
    names: bool,
    requests: mpsc::Sender<PictureRequest>,
) -> io::Result<(Observer, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let events = Events::new();
    let cache = Cache::new(requests, events.handle(), Sensors::start()?, names);
    let (serving, served) = oneshot::channel();
    let thread = thread::Builder::new().name("metrics".to_owned());
    thread.spawn(move || runtime.block_on(server::serve(listener, cache, served)))?;
    let observer = Observer { events, ended: Ended::default(), _serving: serving };
    Ok((observer, address))
}

/// Receiver of events for the metrics. Does nothing without a metrics server.
#[derive(Debug, Default)]
pub(crate) struct Metrics(Option<Observer>);

impl Metrics {
    pub(crate) fn note(&mut self, notice: &Notice, cards: &Cards) {
        self.name_cards(cards);
        if let Some(observer) = &self.0 {
            observer.events.note(notice);
        }
    }

    /// Adds all cards to the counters, so that each card's counters begin when the card becomes known.
    pub(crate) fn name_cards(&mut self, cards: &Cards) {
        if let Some(observer) = &mut self.0 {
            let cards = cards.iter();
            cards.for_each(|(gpu, card)| observer.events.card(gpu, card.info.uuid));
        }
    }

    /// Keeps the last figures of an ending session for some minutes.
    pub(crate) fn keep_last(&mut self, session: SessionId, name: &str, core: &Core) {
        let now = clock::monotonic();
        if let (Some(observer), Some(state)) = (&mut self.0, core.session_snapshot(now, session)) {
            observer.ended.add(now, SessionPicture { name: name.to_owned(), state });
        }
    }

    pub(crate) fn ended(&mut self) -> Vec<SessionPicture> {
        let observer = self.0.as_mut();
        observer.map_or(Vec::new(), |observer| observer.ended.at(clock::monotonic()).cloned().collect())
    }
}

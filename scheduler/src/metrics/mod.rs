//! What Prometheus can read of the daemon, and whether it is well.
//!
//! ```text
//!   the core's task                        the metrics thread                    the sensors thread
//!  ┌──────────────────────────────┐       ┌────────────────────────────────┐    ┌────────────────┐
//!  │ notices ─▶ events ───────────┼─────▶ │ recorder ──────────┐           │ ◀──┤ NVML, at most  │
//!  │ core ─▶ picture ◀─ asked ────┼────── │ ─▶ scene ─▶ table ─┴▶ page ────┼──▶ │ once a second  │
//!  └──────────────────────────────┘       └──────────────────────▲─────────┘    └────────────────┘
//!                                               GET /metrics ────┘
//! ```
//!
//! The core's task does two things for it: it adds to histograms whose buckets are atomics, and when it is asked, at
//! most four times a second, it copies its figures. Connections, formatting and NVML, which may block in the driver,
//! have threads of their own, so that no reader and no driver can hold up a grant. A daemon that nobody asks does
//! nothing at all.
//!
//! How much is said is bounded: by the cards of a machine, and by a thousand sessions (`tenants.rs`).

mod desk;
mod docs;
mod ended;
mod events;
mod guests;
mod page;
mod picture;
mod scene;
mod sensors;
mod server;
mod table;
mod tenants;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;

use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::input::Input;
use desk::Desk;
use sensors::Sensors;

pub use docs::reference;
pub(crate) use ended::Ended;
pub(crate) use events::Events;
pub(crate) use picture::{AuditPicture, CardPicture, Picture, SessionPicture};
pub(crate) use sensors::{Reading, Readings};
pub use table::{FAMILIES, Family, Kind};

/// The core's end: what it reports to while metrics are served, and what ends that when it goes.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) events: Events,
    pub(crate) ended: Ended,
    _serving: oneshot::Sender<()>,
}

/// Serves metrics at `address`. A daemon without metrics is better than none: what goes wrong is said in the log.
pub(crate) fn start(address: SocketAddr, inputs: mpsc::Sender<Input>) -> Option<Observer> {
    match try_start(address, inputs) {
        Ok((observer, address)) => {
            info!("metrics are at http://{address}/metrics");
            Some(observer)
        }
        Err(cause) => {
            warn!(
                "cannot serve metrics at {address}: {cause}; going on without, \
                 choose another address by --metrics or the key `metrics`"
            );
            None
        }
    }
}

fn try_start(address: SocketAddr, inputs: mpsc::Sender<Input>) -> io::Result<(Observer, SocketAddr)> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let events = Events::new();
    let desk = Desk::new(inputs, events.text(), Sensors::start()?);
    let (serving, served) = oneshot::channel();
    thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || runtime.block_on(server::serve(listener, desk, served)))?;
    let observer = Observer { events, ended: Ended::default(), _serving: serving };
    Ok((observer, address))
}

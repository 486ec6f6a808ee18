//! Page for browsers: who holds each card, memory, waits, and the settings of `gpushare-ctl set`.
//!
//! ```text
//!   browser ─▶ page's thread: guard ─▶ keys ─▶ files, events, changes
//!                                              ▲   │ a watch, increments, requests of administrators
//!                               model ─ feed ──╯   ▼
//!                                           the daemon's task
//! ```
//!
//! The page has a thread with an event loop of its own. Without a key it shows no names and changes nothing.
//! Without a key and a configured address it shows nothing at all.
//! docs/threat-model.md says what it withstands.

mod control;
mod feed;
mod guard;
mod keys;
mod lanes;
mod model;
mod remapped;
mod server;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::{io, thread};

use gpushare_proto::admin::AdminReply;
use gpushare_proto::tenant::{Failure, FailureCode};
use gpushare_proto::{Nanos, Token};
use gpushare_sys::clock;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::args::ServedAt;
use crate::config::DashboardSettings;
use crate::connections::Acceptor;
use crate::identity::PeerProcess;
use crate::operation::failure;
use feed::Feed;
use keys::{Keys, LINK_LIFETIME, Role};
use server::Server;

/// Address of the page where none is configured: a free port of this machine.
const ON_DEMAND: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Niceness of the page's thread: many readers of the page leave the processors to the daemon's task.
const NICENESS: i32 = 5;

/// Ways from the page's thread to the daemon's task.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) acceptor: Arc<Acceptor>,
    /// Point in monotonic time at which the daemon started.
    pub(crate) started: Nanos,
}

impl Source {
    fn uptime(&self) -> Nanos {
        clock::monotonic() - self.started
    }
}

/// The daemon's access to the page. Dropping it ends the page.
#[derive(Debug, Default)]
pub(crate) struct Dashboard {
    source: Option<Source>,
    serving: Option<Serving>,
}

#[derive(Debug)]
struct Serving {
    address: SocketAddr,
    keys: Arc<Mutex<Keys>>,
    _end: oneshot::Sender<Infallible>,
}

impl Dashboard {
    /// Creates the access, and serves the page if it has a configured address. If that fails, the daemon logs
    /// the failure and runs without the page.
    pub(crate) fn new(source: Source, settings: &DashboardSettings) -> Self {
        let mut dashboard = Self { source: Some(source), serving: None };
        if let Some(ServedAt::Address(address)) = settings.address
            && let Err(cause) = dashboard.start(address, settings)
        {
            warn!("{}; the daemon goes on without it", cannot_serve(address, &cause));
        }
        dashboard
    }

    /// Returns a link to the page for a process that may administrate. Serves the page first if it is not
    /// served yet.
    pub(crate) fn link(
        &mut self,
        settings: &DashboardSettings,
        peer: &PeerProcess,
        read_only: bool,
    ) -> Result<AdminReply, Failure> {
        let unavailable = |sentence: String| failure(FailureCode::Unavailable, sentence);
        if self.serving.is_none() {
            let address = match settings.address {
                None => ON_DEMAND,
                Some(ServedAt::Address(address)) => address,
                Some(ServedAt::Off) => {
                    return Err(unavailable(
                        "the page is off in this daemon's configuration; remove `address = \"off\"` from \
                         [dashboard], or the flag `--dashboard off`, and restart the daemon"
                            .to_owned(),
                    ));
                }
            };
            let started = self.start(address, settings);
            started.map_err(|cause| unavailable(cannot_serve(address, &cause)))?;
        }
        let Some(serving) = &self.serving else {
            return Err(unavailable("the daemon ends, and serves no page any more".to_owned()));
        };
        let role = if read_only { Role::Viewer } else { Role::Admin };
        let mut keys = serving.keys.lock().unwrap_or_else(PoisonError::into_inner);
        let link: Token = keys.issue(role, peer.clone(), clock::boot()).map_err(|cause| {
            unavailable(format!("the system has no random bytes for a link ({cause}); try again"))
        })?;
        Ok(AdminReply::Dashboard { address: serving.address.to_string(), link, valid_ns: LINK_LIFETIME })
    }

    fn start(&mut self, address: SocketAddr, settings: &DashboardSettings) -> io::Result<()> {
        let Some(source) = self.source.clone() else { return Ok(()) };
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        // The page watches as the daemon itself.
        let (ours, _theirs) = std::os::unix::net::UnixStream::pair()?;
        let own = PeerProcess::of(&ours)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let keys = Arc::new(Mutex::new(Keys::default()));
        let server = Server {
            source,
            keys: keys.clone(),
            feed: Feed::new(),
            guests: settings.address.is_some(),
            hosts: settings.hosts.clone(),
            lifetime: settings.lifetime,
            refusals: Mutex::default(),
        };
        let (end, ended) = oneshot::channel();
        let thread = thread::Builder::new().name("dashboard".to_owned());
        thread.spawn(move || {
            // Linux applies it to this thread alone.
            let _ = rustix::process::nice(NICENESS);
            runtime.block_on(server::serve(listener, server, own, ended));
        })?;
        info!("the page for browsers is at http://{address}/");
        if !address.ip().is_loopback() {
            warn!(
                "the page at http://{address}/ is open to other machines and not encrypted; put a proxy with \
                 TLS before it, or use 127.0.0.1 and `ssh -L`"
            );
        }
        self.serving = Some(Serving { address, keys, _end: end });
        Ok(())
    }
}

fn cannot_serve(address: SocketAddr, cause: &io::Error) -> String {
    format!(
        "cannot serve the page at {address}: {cause}; choose another address by --dashboard or `address` in \
         [dashboard]"
    )
}

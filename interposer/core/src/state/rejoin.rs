//! The link thread: processes the daemon's messages, and connects to the next daemon after the connection was
//! lost.
//!
//! ```text
//!   lost ──▶ probe ──▶ hello with what the process has ──▶ open questions, new page in force ──▶ limits, fixed bytes
//!     ▲        │ no answer                (the lease is locked meanwhile)
//!     └────────┘ after 20 ms, then ever later up to 500 ms
//! ```

use std::time::Duration;

use gpushare_proto::Bytes;
use gpushare_proto::tenant::{Returning, ReturningGpu, TenantReply, TenantRequest};

use super::State;
use crate::daemon::address::{Address, ConnectError};
use crate::daemon::{connection::Connection, link::Link};
use crate::driver::types::CUdevice;
use crate::gate::{page, replace_page, wake_sleepers};
use crate::process::lock;

/// Pause between two attempts to start the drainer.
const RETRY: Duration = Duration::from_millis(100);

impl State {
    /// Runs in the link thread until the process ends. `limits` are sent to a daemon that may have to create
    /// a session for the process.
    pub(super) fn listen(
        &'static self,
        address: &Address,
        limits: Option<&TenantRequest>,
        mut connection: Connection,
    ) {
        // The link is stored right after this thread is started.
        let Some(link) = self.daemon.wait_for_link() else { return };
        self.report_freezable(page());
        loop {
            // Pause after which the drainer is started again, if it is needed and could not start.
            let mut retry = None;
            loop {
                let received = match retry {
                    None => connection.receive().map(Some),
                    Some(pause) => connection.receive_within(pause),
                };
                match received {
                    Ok(Some(TenantReply::ImportWanted { export, meeting })) => {
                        self.hand_over(export, meeting);
                    }
                    Ok(Some(reply)) => {
                        let surplus = link.receive(reply, |grant| {
                            self.memory.lease.add_granted(grant.device, grant.bytes, grant.kind);
                        });
                        if let Some(surplus) = surplus {
                            self.memory.give_back(surplus.device, surplus.bytes, surplus.kind);
                        }
                    }
                    Ok(None) => {}
                    Err(_) => break,
                }
                retry = (!self.start_drainer()).then_some(RETRY);
            }
            link.unplug();
            // Calls that wait go on if that daemon cannot have frozen the process.
            wake_sleepers();
            let mut pause = Duration::from_millis(20);
            connection = loop {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(500));
                if let Ok(connection) = self.rejoin(link, address, limits) {
                    break connection;
                }
            };
        }
    }

    fn rejoin(
        &self,
        link: &Link,
        address: &Address,
        limits: Option<&TenantRequest>,
    ) -> Result<Connection, ConnectError> {
        // First, since no thread can allocate while the lease is locked for the hello.
        address.probe()?;
        // Also first, since a context that is being destroyed may wait for a thread that allocates.
        let contexts = self.contexts.devices();
        let mut joined = None;
        self.memory.lease.replace_page(|used| {
            let returning = self.returning(link, used, &contexts);
            let (connection, welcome, page) = address.connect(self.memory.backend(), Some(returning))?;
            let numbers = welcome.gpus.clone();
            joined = Some((connection, welcome, page));
            Ok::<_, ConnectError>((page, numbers))
        })?;
        let (connection, welcome, page) = joined.ok_or(ConnectError::Absent(Vec::new()))?;
        self.gate.waiters.ask_again();
        // Before the connection is locked, since a thread that holds the lease may wait for that.
        let lease = &self.memory.lease;
        let cards: Vec<_> = lease.devices().into_iter().map(|device| (device, lease.gpu(device))).collect();
        let enforce = || {
            self.memory.remap.carry_over(page, || replace_page(page));
            // The daemon lets no process come back before it hears from this one.
            self.creations.show(&cards);
            self.gate.captures.show();
        };
        link.plug(&connection, &welcome, |device| self.memory.lease.gpu(device), enforce)
            .map_err(|cause| ConnectError::Broken("its socket".into(), cause))?;
        self.report_held(page);
        // Where remapped memory is comes before all else that the daemon could decide on.
        self.memory.follow_daemon(page);
        self.memory.remap.report_again();
        link.send(&TenantRequest::Reconciled);
        if let Some(limits) = limits {
            link.send(limits);
        }
        self.memory.report_fixed();
        self.send_contexts_since(&contexts);
        self.report_freezable(page);
        Ok(connection)
    }

    /// Tells the daemon of contexts that were created or destroyed since it was told of `known` ones: until the new
    /// connection is in use, messages about them are lost.
    fn send_contexts_since(&self, known: &[CUdevice]) {
        let present = self.contexts.devices();
        for device in self.memory.lease.devices() {
            let live = count_on(device, &present);
            if live != count_on(device, known) {
                self.send_contexts(device, live);
            }
        }
    }

    /// Returns the process's memory and contexts for the hello: bytes in use and live contexts of each
    /// device.
    fn returning(&self, link: &Link, used: &[(CUdevice, Bytes)], contexts: &[CUdevice]) -> Returning {
        let identity = link.identity();
        let gpu = |&(device, used): &(CUdevice, Bytes)| {
            let info = lock(&self.cards.attached).iter().find(|(known, _)| *known == device)?.1.clone();
            Some(ReturningGpu { info, used, contexts: count_on(device, contexts) })
        };
        Returning {
            client: identity.client,
            session: identity.session,
            holding: identity.epoch.filter(|_| self.gate.may_hold(page())),
            gpus: used.iter().filter_map(gpu).collect(),
            waiting: self.gate.waiters.any(),
        }
    }
}

/// Number of contexts on a device.
fn count_on(device: CUdevice, contexts: &[CUdevice]) -> u32 {
    let count = contexts.iter().filter(|&&on| on == device).count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

//! Connection that brings increments: from the admin socket, or about the own sessions from the tenant socket.
//!
//! ```text
//!   open ── admin socket ── Follow ──────▶ a message a second
//!     └── not permitted ── tenant socket ─▶ a question a second
//! ```

use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::follow::{Increment, Increments};
use gpushare_proto::tenant::{TenantReply, TenantRequest};

use super::run::Input;
use crate::places::Places;
use gpushare_connection::{Admin, Client, ClientError, Tenant};

/// Pause between two questions on the tenant socket, and between two tries to reach a daemon that is gone.
const PAUSE: Duration = Duration::from_secs(1);

/// Source of increments.
#[derive(Debug)]
pub(super) enum Feed {
    /// Connection of an administrator, on which the daemon sends a message every second.
    All(Client<Admin>),
    /// Connection of a user, who asks every second.
    Own(Client<Tenant>),
}

impl Feed {
    /// Connects to the daemon. Returns the first message too.
    pub(super) fn open(places: &Places) -> Result<(Self, Increments), ClientError> {
        let dir = places.administered();
        match Client::<Admin>::connect(dir) {
            Ok(mut client) => {
                let first = client.ask(&AdminRequest::Follow)?;
                let first = increments(&client, first)?;
                Ok((Self::All(client), first))
            }
            Err(ClientError::Denied(_)) => {
                let mut client = Client::<Tenant>::connect(dir)?;
                let first = own(&mut client)?;
                Ok((Self::Own(client), first))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn is_admin(&self) -> bool {
        matches!(self, Self::All(_))
    }

    /// Returns whether the daemon's pids mean this machine's processes: whether the kernel calls the daemon as
    /// the daemon calls itself.
    pub(super) fn shares_pids(&self, first: &Increments) -> bool {
        let seen = match self {
            Self::All(client) => client.peer().pid,
            Self::Own(client) => client.peer().pid,
        };
        let said = |change: &Increment| matches!(change, Increment::Daemon(facts) if facts.pid == seen);
        first.changes.iter().any(said)
    }

    /// Waits for the next message.
    pub(super) fn next(&mut self) -> Result<Increments, ClientError> {
        match self {
            Self::All(client) => {
                let reply = client.listen()?;
                increments(client, reply)
            }
            Self::Own(client) => {
                thread::sleep(PAUSE);
                own(client)
            }
        }
    }

    /// Passes on all messages, and connects again when the daemon is gone. Ends with its receiver.
    pub(super) fn pass_on(mut self, places: &Places, inputs: &Sender<Input>) {
        loop {
            let error = match self.next() {
                Ok(increments) => match inputs.send(Input::News(increments)) {
                    Ok(()) => continue,
                    Err(_) => return,
                },
                Err(error) => error,
            };
            if inputs.send(Input::Lost(error.to_string())).is_err() {
                return;
            }
            drop(self);
            let Some((feed, first)) = reopened(places, inputs) else { return };
            let shares_pids = feed.shares_pids(&first);
            let found = Input::Found { is_admin: feed.is_admin(), shares_pids };
            if inputs.send(found).and_then(|()| inputs.send(Input::News(first))).is_err() {
                return;
            }
            self = feed;
        }
    }
}

/// Tries to connect until a daemon answers. Returns none if nobody wants its messages any more.
fn reopened(places: &Places, inputs: &Sender<Input>) -> Option<(Feed, Increments)> {
    loop {
        match Feed::open(places) {
            Ok(opened) => return Some(opened),
            Err(error) => inputs.send(Input::Lost(error.to_string())).ok()?,
        }
        thread::sleep(PAUSE);
    }
}

fn increments(client: &Client<Admin>, reply: AdminReply) -> Result<Increments, ClientError> {
    match reply {
        AdminReply::Increments(increments) => Ok(*increments),
        _ => Err(client.unexpected()),
    }
}

fn own(client: &mut Client<Tenant>) -> Result<Increments, ClientError> {
    match client.ask(&TenantRequest::OwnSessions)? {
        TenantReply::OwnSessions(increments) => Ok(*increments),
        _ => Err(client.unexpected()),
    }
}

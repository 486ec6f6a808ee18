//! The daemon as a sharing process sees it: its address, the connection, the questions and their answers.
//!
//! ```text
//!   address     sockets, token, machine_config ──▶ connection    whole messages over one socket
//!                                                      │
//!   questions   wait for their answers ◀──── link ◀────┘         outlives connections
//! ```

pub mod address;
pub mod connection;
pub mod link;
pub(crate) mod machine_config;
mod questions;

use std::sync::OnceLock;

use gpushare_proto::tenant::TenantRequest;

use link::Link;

/// Kind of memory by whether its bytes can leave the card while they are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Managed memory, which the driver can move off the card.
    Movable,
    /// Memory that stays on the card: native allocations, pools, arrays, memory by handle.
    Fixed,
}

/// Membership of the process in a session: decided when the process makes its first context, and final.
#[derive(Debug)]
pub(crate) enum Membership {
    /// The process shares the card and has a link to a daemon.
    Shared(Box<Link>),
    /// The process runs without sharing, since there is no daemon.
    Native,
    Refused,
}

/// Membership of the process in a session, with the link to the daemon of a process that shares.
#[derive(Debug, Default)]
pub(crate) struct Daemon(OnceLock<Membership>);

impl Daemon {
    /// Returns the daemon behind a link.
    #[cfg(test)]
    pub(crate) fn behind(link: Link) -> Self {
        Self(Membership::Shared(Box::new(link)).into())
    }

    /// Returns the process's membership in a session; the first caller decides it by `join`.
    pub(crate) fn membership(&self, join: impl FnOnce() -> Membership) -> &Membership {
        self.0.get_or_init(join)
    }

    /// Waits until the membership is decided, and returns the link of a process that shares.
    pub(crate) fn wait_for_link(&self) -> Option<&Link> {
        match self.0.wait() {
            Membership::Shared(link) => Some(link),
            Membership::Native | Membership::Refused => None,
        }
    }

    #[inline]
    pub(crate) fn link(&self) -> Option<&Link> {
        match self.0.get() {
            Some(Membership::Shared(link)) => Some(link),
            _ => None,
        }
    }

    /// Returns whether there is a connection to a daemon at present.
    pub(crate) fn is_connected(&self) -> bool {
        self.link().is_some_and(Link::is_connected)
    }

    pub(crate) fn send(&self, request: &TenantRequest) -> bool {
        self.send_if(request, || true)
    }

    /// Sends a message if `holds` is still true once no other connection can be plugged in before.
    pub(crate) fn send_if(&self, request: &TenantRequest, holds: impl FnOnce() -> bool) -> bool {
        self.link().is_some_and(|link| link.send_if(request, holds))
    }
}

//! Connections of tenants and administrators, from accept to end.
//!
//! ```text
//!   socket ─▶ listener ─▶ who is it? ─▶ how many has its principal? ─▶ connection ─▶ inbox ─▶ engine
//!                                                                     socket ◀─ outbox ◀────────────┘
//! ```
//!
//! The modules here know sockets, frames and peers. They decide nothing about sessions or memory: each
//! connection reports [`ConnectionEvent`]s, and the engine answers through the connection's [`Outbox`].

mod connection;
mod inbox;
mod internal;
mod limit;
mod listener;
mod outbox;
mod socket;
mod unidentified;

use std::fmt;

use gpushare_proto::admin::AdminRequest;
use gpushare_proto::tenant::{Role, TenantRequest};

use crate::identity::PeerProcess;
use inbox::Kind;

pub(crate) use connection::{Admin, Dialect, End, Tenant};
pub(crate) use inbox::Inbox;
pub(crate) use internal::InternalConnection;
pub(crate) use limit::ConnectionLimit;
pub(crate) use listener::{Acceptor, accept};
pub(crate) use outbox::{Outbox, Unsent};
pub(crate) use socket::Closer;
pub(crate) use unidentified::Identifier;

/// Number of a connection, never used twice by one daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ConnectionId(pub(crate) u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Socket {
    Tenant,
    Admin,
}

/// Event that a connection reports to the engine.
#[derive(Debug)]
pub(crate) enum ConnectionEvent {
    Opened {
        connection: ConnectionId,
        socket: Socket,
        peer: PeerProcess,
        role: Role,
        outbox: Outbox,
    },
    Tenant {
        connection: ConnectionId,
        request: TenantRequest,
    },
    Admin {
        connection: ConnectionId,
        request: AdminRequest,
    },
    /// Connection that ended by hang-up, death of the peer, or a decision of the daemon.
    Closed {
        connection: ConnectionId,
    },
    /// Request for administration from a peer that is not an administrator.
    Trespassed {
        /// Pid and user id of the peer, as reported by the kernel.
        process: (u32, u32),
        why: String,
    },
}

impl ConnectionEvent {
    fn kind(&self) -> Kind {
        use TenantRequest as Ask;
        let Self::Tenant { request, .. } = self else {
            return Kind::Other;
        };
        match request {
            Ask::Register(_)
            | Ask::OwnSession
            | Ask::OwnSessions
            | Ask::OwnWait
            | Ask::Resize(_)
            | Ask::Gpus
            | Ask::SessionMemory(_)
            | Ask::UtilizationParts(_)
            | Ask::Join(_)
            | Ask::Copy { .. }
            | Ask::EndCopy { .. }
            | Ask::DryRun(_)
            | Ask::Hello(_) => Kind::Question,
            _ => Kind::Client,
        }
    }
}

//! Connection to the daemon on which a process asks for copies. Its end releases all of them.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use gpushare_proto::RequestId;
use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::tenant::{TenantReply, TenantRequest};

use super::Key;
use crate::daemon::address::Address;
use crate::daemon::connection::Connection;
use crate::process::fork::DescriptorGuard;

/// Longest wait for an answer. Nothing of the program waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connection for questions about copies. There is one as long as there are claims.
#[derive(Debug, Default)]
pub(super) struct Desk {
    connection: Option<(DescriptorGuard, Connection)>,
    asked: u64,
}

impl Desk {
    /// Connects to the daemon unless there is a connection. `None` if that fails.
    pub(super) fn connect(&mut self, address: &Address) -> Option<()> {
        if self.connection.is_none() {
            self.connection = Some(address.connect_to_ask().ok()?);
        }
        Some(())
    }

    /// Asks for a copy of bytes that so many chunks have. `None` if the daemon does not answer.
    pub(super) fn ask(&mut self, (name, bytes): Key, chunks: u32) -> Option<(CopyAnswer, Option<OwnedFd>)> {
        let (_, connection) = self.connection.as_mut()?;
        self.asked += 1;
        let request = RequestId(self.asked);
        let question = TenantRequest::Copy { request, name, bytes, chunks };
        let is_answer = |reply: &TenantReply| match reply {
            TenantReply::CopyAnswered { request: of, .. } => *of == request,
            _ => false,
        };
        match connection.ask(&question, PATIENCE, is_answer) {
            Ok((TenantReply::CopyAnswered { answer, .. }, file)) => Some((answer, file)),
            _ => None,
        }
    }

    /// Tells the daemon that no chunk has these bytes any more.
    ///
    /// # Errors
    /// The daemon takes no message now (`WouldBlock`), or the connection has ended.
    pub(super) fn end(&mut self, (name, bytes): Key) -> io::Result<()> {
        let (_, connection) = self.connection.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        connection.tell_at_once(&TenantRequest::EndCopy { name, bytes })
    }

    /// Returns whether the daemon has ended the connection.
    pub(super) fn has_ended(&self) -> bool {
        let connection = self.connection.as_ref();
        connection.is_some_and(|(_, connection)| connection.has_ended())
    }

    pub(super) fn hang_up(&mut self) {
        self.connection = None;
    }
}

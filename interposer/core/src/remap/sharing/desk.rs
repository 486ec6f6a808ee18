//! Connection to the daemon on which a process asks for copies. Its end releases all of them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use gpushare_proto::RequestId;
use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::tenant::{TenantReply, TenantRequest};

use super::Claim;
use crate::daemon::address::Address;
use crate::daemon::connection::Connection;
use crate::process::fork;

/// Longest wait for an answer. Nothing of the program waits meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// Connection for questions about copies, made at the first one.
#[derive(Debug, Default)]
pub(super) struct Desk {
    connection: Option<Connection>,
    asked: u64,
}

impl Desk {
    /// Asks for a copy, of which so many chunks have the bytes. `None` if no daemon answers; the next question is asked
    /// on another connection.
    pub(super) fn ask(&mut self, (name, bytes): Claim, chunks: u32) -> Option<(CopyAnswer, Option<OwnedFd>)> {
        self.asked += 1;
        let request = RequestId(self.asked);
        let question = TenantRequest::Copy { request, name, bytes, chunks };
        let is_answer = |reply: &TenantReply| matches!(reply, TenantReply::CopyAnswered { request: of, .. } if *of == request);
        let answer = self.connection()?.ask(&question, PATIENCE, is_answer);
        match answer {
            Ok((TenantReply::CopyAnswered { answer, .. }, file)) => Some((answer, file)),
            _ => {
                self.hang_up();
                None
            }
        }
    }

    /// Tells the daemon that no chunk has these bytes any more.
    pub(super) fn end(&mut self, (name, bytes): Claim) {
        let told = self
            .connection
            .as_ref()
            .map(|connection| connection.tell(&TenantRequest::EndCopy { name, bytes }));
        if let Some(Err(_)) = told {
            self.hang_up();
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        if self.connection.is_none() {
            let connection = Address::from_environment().ok()?.connect_to_ask().ok()?;
            fork::guard_copies(connection.descriptor());
            self.connection = Some(connection);
        }
        self.connection.as_mut()
    }

    fn hang_up(&mut self) {
        fork::guard_copies(-1);
        self.connection = None;
    }
}

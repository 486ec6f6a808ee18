//! Requests of tools that the writer thread of the registry answers.

use crate::connections::ConnectionId;
use crate::registry::Hours;

/// Request of a tool for usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UsageQuestion {
    pub(crate) connection: ConnectionId,
    pub(crate) hours: Hours,
    /// Whether the answer names the users of sessions. Older tools do not know such an answer.
    pub(crate) with_users: bool,
}

//! Questions about memory of processes that have not reconnected to this daemon yet.

use gpushare_proto::RequestId;
use gpushare_proto::sharing::{ExportName, Meeting};

use crate::connections::ConnectionId;

/// Largest number of questions of one user that wait for exporters.
pub(crate) const MOST: usize = 256;

/// Questions that wait for exporters, in the order in which they were asked.
#[derive(Debug, Default)]
pub(crate) struct Introductions(pub(crate) Vec<Introduction>);

/// Question of a process that opens memory of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Introduction {
    pub(crate) importer: ConnectionId,
    pub(crate) request: RequestId,
    pub(crate) export: ExportName,
    /// Socket at which the importer waits.
    pub(crate) meeting: Meeting,
}

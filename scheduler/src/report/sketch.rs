//! Unfinished picture of the daemon for the metrics.

use gpushare_proto::SessionId;

use crate::metrics::{PictureRequest, SessionPicture};

#[derive(Debug)]
pub(crate) struct Sketch {
    pub(super) answer: PictureRequest,
    /// Number from which on sessions are missing.
    pub(super) next: SessionId,
    pub(super) sessions: Vec<SessionPicture>,
}

impl Sketch {
    pub(crate) fn begin(answer: PictureRequest) -> Self {
        Self { answer, next: SessionId(0), sessions: Vec::new() }
    }
}

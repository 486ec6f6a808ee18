//! Forecast of `gpushare-ctl run --dry-run`: whether a program's memory fits and how long the program may
//! wait for its turns. A forecast changes nothing in the daemon.

use serde::{Deserialize, Serialize};

use crate::explain::AheadView;
use crate::ids::{GpuId, GpuUuid, SessionId, Token};
use crate::session::NewSession;
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// Session that the forecast of `gpushare-ctl run --dry-run` assumes for the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DryRunSession {
    /// A session that does not exist yet.
    New(NewSession),
    /// An existing session, which this token selects.
    Existing(Token),
}

/// Forecast of memory and waits for one program, on every card that the program could use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// Number of the assumed session; none for a session that does not exist yet.
    pub session: Option<SessionId>,
    /// Name of the assumed session; none if the daemon would choose the name.
    pub name: Option<String>,
    /// Card that the daemon would choose for the session; none for any card.
    pub placed: Option<GpuUuid>,
    /// One forecast for the chosen card, or one for each known card if any will do.
    pub cards: Vec<CardForecast>,
}

/// Forecast of memory and waits for one program on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardForecast {
    /// Number that the daemon assigned to the card.
    pub gpu: GpuId,
    /// UUID of the card.
    pub uuid: GpuUuid,
    /// Total memory of the card.
    pub total_bytes: Bytes,
    /// Capacity of the card: bytes that may be resident at the same time.
    pub capacity_bytes: Bytes,
    /// Sum of the other sessions' quotas on the card; allocated bytes of a session without a quota.
    pub promised_bytes: Bytes,
    /// Bytes that the other sessions have allocated on the card.
    pub used_bytes: Bytes,
    /// Capacity of the card less the bytes that the other sessions have allocated.
    pub free_bytes: Bytes,
    /// Memory quota of the session on the card, which the forecast takes as the session's future use. Without
    /// a quota (none), the forecast takes the present use.
    pub asked_bytes: Option<Bytes>,
    /// Whether the session's future use fits beside the bytes that the other sessions have allocated.
    pub fits: bool,
    /// Present mode of the card.
    pub mode: Mode,
    /// Mode of the card if every session used all of its forecast bytes.
    pub mode_then: Mode,
    /// Sessions whose turns would come first. Names of other users' sessions are empty.
    pub ahead: Vec<AheadView>,
    /// Duration of the session's own turn.
    pub quantum_ns: Nanos,
    /// Expected duration of passing the lock to the session: drain of work in flight and move of memory.
    pub switch_ns: Nanos,
    /// Longest wait for a turn if no session comes or goes and each always has work. Zero if the card is used
    /// without turns; none if the daemon knows no bound.
    pub bound_ns: Option<Nanos>,
}

//! The dry run (`gpushare-ctl run --dry-run`): a forecast of whether a program's memory fits and how long it
//! may wait for its turns. It changes nothing in the daemon.

use serde::{Deserialize, Serialize};

use crate::explain::AheadView;
use crate::ids::{GpuId, GpuUuid, SessionId, Token};
use crate::session::NewSession;
use crate::settings::Mode;
use crate::units::{Bytes, Nanos};

/// Session that a dry run assumes for the program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DryRunSession {
    /// A session that would be registered for the program.
    New(NewSession),
    /// An existing session, selected by its token.
    Existing(Token),
}

/// Forecast for one program on every card that it could use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// Number of the session if it exists already.
    pub session: Option<SessionId>,
    /// Name of the session; none if the daemon would choose one.
    pub name: Option<String>,
    /// Card on which the daemon would place the session; none if it would not choose one.
    pub placed: Option<GpuUuid>,
    /// Forecasts for the chosen card, or for each known card if none is chosen.
    pub cards: Vec<CardForecast>,
}

/// Forecast for one program on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardForecast {
    /// The daemon's number of the card.
    pub gpu: GpuId,
    /// Identity of the card.
    pub uuid: GpuUuid,
    /// Total memory of the card.
    pub total_bytes: Bytes,
    /// Capacity of the card: bytes that may be resident at the same time.
    pub capacity_bytes: Bytes,
    /// Sum over the other sessions on the card: the quota of each, or its allocated bytes if it has no quota.
    pub promised_bytes: Bytes,
    /// Bytes that the other sessions have allocated on the card.
    pub used_bytes: Bytes,
    /// Capacity of the card less the bytes that the other sessions have allocated.
    pub free_bytes: Bytes,
    /// Quota of the session on the card, which the forecast takes as its future use; none without a quota, in
    /// which case the forecast counts the session's present use.
    pub asked_bytes: Option<Bytes>,
    /// Whether the session's future use fits beside the bytes that the other sessions have allocated.
    pub fits: bool,
    /// Present mode of the card.
    pub mode: Mode,
    /// Mode of the card if the session and the others used all of their forecast bytes.
    pub mode_then: Mode,
    /// Sessions whose turns would come first, each with its turn's length; names of other users' sessions are
    /// empty.
    pub ahead: Vec<AheadView>,
    /// Length of the session's own turn.
    pub quantum_ns: Nanos,
    /// Expected time of a handoff to the session.
    pub switch_ns: Nanos,
    /// Longest wait for a turn if the set of sessions stays as it is and each always has work. Zero if the
    /// card is used without turns; none if the daemon knows no bound.
    pub bound_ns: Option<Nanos>,
}

//! What a program would get that is not started yet: whether its memory fits, and how long it may wait for its turns.
//!
//! Asked for by `gpushare-ctl run --dry-run`; nothing is made of it.

use serde::{Deserialize, Serialize};

use crate::admin::Mode;
use crate::explain::AheadView;
use crate::ids::{GpuId, GpuUuid, SessionId, Token};
use crate::tenant::NewSession;
use crate::units::{Bytes, Nanos};

/// Which session a program would belong to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DryRunSession {
    /// One that would be registered for it.
    New(NewSession),
    /// One that is there, by its secret.
    Existing(Token),
}

/// What it would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forecast {
    /// The session, if it is there already.
    pub session: Option<SessionId>,
    /// Its name; none if one would be made up.
    pub name: Option<String>,
    /// The card it would be placed on, if one would be chosen.
    pub placed: Option<GpuUuid>,
    /// On that card, or on each that is known.
    pub cards: Vec<CardForecast>,
}

/// What it would get on one card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardForecast {
    /// The card.
    pub gpu: GpuId,
    /// Its identity.
    pub uuid: GpuUuid,
    /// Its memory.
    pub total_bytes: Bytes,
    /// What may be resident together.
    pub capacity_bytes: Bytes,
    /// What the other sessions on it may have by their quotas; of those without a quota what they have.
    pub promised_bytes: Bytes,
    /// What the other sessions on it have.
    pub used_bytes: Bytes,
    /// What is left of the capacity beside that, for the session alone.
    pub free_bytes: Bytes,
    /// The session's quota here, which is taken for what it will use; none without a quota, and then only what it uses by now counts.
    pub asked_bytes: Option<Bytes>,
    /// Whether that fits beside what the others have.
    pub fits: bool,
    /// How the card is shared now.
    pub mode: Mode,
    /// How it would be shared if all of that were used.
    pub mode_then: Mode,
    /// Sessions whose turns would come first, each with its turn; without names where they are other users'.
    pub ahead: Vec<AheadView>,
    /// The session's own turn.
    pub quantum_ns: Nanos,
    /// What a change of turns to it is expected to take.
    pub switch_ns: Nanos,
    /// The longest wait for a turn while the sessions stay what they are and always have work; zero without turns, none where
    /// that depends on nothing that the daemon knows.
    pub bound_ns: Option<Nanos>,
}

//! Choice of a card by number, UUID or the beginning of a UUID.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::GpuUuid;

/// Choice of a card for a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuChoice {
    /// The card with the least load, chosen by the daemon.
    Auto,
    /// The card to which the daemon assigned this number.
    Index(u8),
    /// The card with this UUID.
    Uuid(GpuUuid),
    /// The card whose UUID begins with this text, in the form of `CUDA_VISIBLE_DEVICES` (`GPU-0a1b`).
    Prefix(String),
}

/// Error for a text that names no card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a card; write its number in `gpushare-ctl status` (0 or gpu0) or its UUID")]
pub struct UnknownCard(String);

/// Parses `auto`, `0`, `gpu0`, a UUID or the beginning of one, in upper or lower case.
impl FromStr for GpuChoice {
    type Err = UnknownCard;

    fn from_str(text: &str) -> Result<Self, UnknownCard> {
        let text = text.trim();
        if text == "auto" {
            return Ok(Self::Auto);
        }
        if let Ok(index) = text.strip_prefix("gpu").unwrap_or(text).parse() {
            return Ok(Self::Index(index));
        }
        // UUIDs are compared with the kind in upper case and the digits in lower case.
        let (kind, digits) = text.split_at_checked(4).unwrap_or((text, ""));
        let spelled = format!("{}{}", kind.to_ascii_uppercase(), digits.to_ascii_lowercase());
        if let Ok(uuid) = spelled.parse() {
            return Ok(Self::Uuid(uuid));
        }
        let is_beginning = (spelled.starts_with("GPU-") || spelled.starts_with("MIG-"))
            && !digits.is_empty()
            && digits.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        match is_beginning {
            true => Ok(Self::Prefix(spelled)),
            false => Err(UnknownCard(text.to_owned())),
        }
    }
}

impl fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Index(index) => index.fmt(f),
            Self::Uuid(uuid) => uuid.fmt(f),
            Self::Prefix(prefix) => f.write_str(prefix),
        }
    }
}

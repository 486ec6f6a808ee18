//! Shares of cards, and their ids for the kubelet: `GPU-…::3`.

use std::fmt;
use std::str::FromStr;

use gpushare_proto::GpuUuid;

/// Name of the resource in the cluster.
pub const RESOURCE: &str = "gpushare.dev/gpu";

/// Text between a card's UUID and the number of the share.
const SEPARATOR: &str = "::";

/// Share of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Share {
    pub(crate) card: GpuUuid,
    /// Number of the share, from 0.
    pub(crate) number: u16,
}

/// Reason why a text is no id of a share.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no share of gpushare; its form is GPU-…{SEPARATOR}0")]
pub(crate) struct BadShare(String);

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{SEPARATOR}{}", self.card, self.number)
    }
}

impl FromStr for Share {
    type Err = BadShare;

    fn from_str(text: &str) -> Result<Self, BadShare> {
        let parts = text.split_once(SEPARATOR);
        let share = parts
            .and_then(|(card, number)| Some(Self { card: card.parse().ok()?, number: number.parse().ok()? }));
        share.ok_or_else(|| BadShare(text.to_owned()))
    }
}

/// Reads the ids of shares.
pub(crate) fn parse(ids: &[String]) -> Result<Vec<Share>, BadShare> {
    ids.iter().map(|id| id.parse()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text_and_fits_the_kubelet() {
        for card in [GpuUuid::gpu([0xab; 16]), GpuUuid::mig([7; 16])] {
            let share = Share { card, number: 999 };
            let text = share.to_string();
            assert_eq!(text.parse(), Ok(share));
            assert!(text.len() <= 63, "{text}");
        }
        for wrong in ["", "GPU-1::0", "GPU-abababab-abab-abab-abab-abababababab", "x::1"] {
            assert!(wrong.parse::<Share>().unwrap_err().to_string().contains("GPU-…::0"));
        }
    }
}

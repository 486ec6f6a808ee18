//! Part of a session in the utilization of a card. NVML reports the utilization of the whole card, and a
//! program in a session reads `card's own × part`.

use serde::{Deserialize, Serialize};

/// Part of a session in the utilization of one card, in parts of [`UtilizationPart::ONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UtilizationPart {
    /// Part in the time in which the card ran kernels.
    pub gpu: u32,
    /// Part in the time in which the card's memory was read or written.
    pub memory: u32,
}

impl UtilizationPart {
    /// Value of a figure that is the whole.
    pub const ONE: u32 = 1 << 16;
    /// Part of a session that did all the work, or that is alone on the card.
    pub const WHOLE: Self = Self { gpu: Self::ONE, memory: Self::ONE };
    /// Part of a session that did none of the work.
    pub const NOTHING: Self = Self { gpu: 0, memory: 0 };

    /// Returns the part that the shared page holds as `bits`.
    pub const fn from_bits(bits: u64) -> Self {
        Self { gpu: (bits >> 32) as u32, memory: bits as u32 }
    }

    /// Returns the part as one number for the shared page, so that both figures change at once.
    pub const fn to_bits(self) -> u64 {
        ((self.gpu as u64) << 32) | self.memory as u64
    }

    /// Returns the session's part of two figures of the card, rounded to the nearest percent: the time with
    /// kernels and the time with memory traffic.
    pub fn of(self, gpu: u32, memory: u32) -> (u32, u32) {
        let round = |percent: u32, part: u32| {
            let one = u64::from(Self::ONE);
            let product = u64::from(percent) * u64::from(part.min(Self::ONE));
            // At most `percent`, so it fits.
            ((product + one / 2) / one) as u32
        };
        (round(gpu, self.gpu), round(memory, self.memory))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_reads_its_part_of_the_cards_own_figures() {
        assert_eq!(UtilizationPart::WHOLE.of(99, 31), (99, 31));
        assert_eq!(UtilizationPart::NOTHING.of(99, 31), (0, 0));
        let half = UtilizationPart { gpu: UtilizationPart::ONE / 2, memory: UtilizationPart::ONE / 4 };
        assert_eq!(half.of(80, 40), (40, 10));
        let forged = UtilizationPart { gpu: u32::MAX, memory: u32::MAX };
        assert_eq!(forged.of(99, 31), (99, 31));
    }

    #[test]
    fn both_figures_are_one_number_in_the_page() {
        let part = UtilizationPart { gpu: 40_000, memory: 7 };
        assert_eq!(UtilizationPart::from_bits(part.to_bits()), part);
        assert_eq!(UtilizationPart::from_bits(0), UtilizationPart::NOTHING);
    }
}

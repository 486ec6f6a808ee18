//! Memory backends, the kinds of driver memory that a program's allocations get.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// Memory backend: the kind of driver memory that a program's allocations get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Managed memory, which the driver can move out of the card.
    Managed,
    /// Plain device memory, which stays on the card and can be shared with other processes and devices.
    Native,
    /// Plain device memory at fixed addresses, which gpushare moves to host memory and back.
    Remap,
}

/// Abilities of a card and its driver that decide which backends a program may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abilities {
    /// Host and card can use managed memory at the same time.
    pub concurrent_managed: bool,
    /// Memory can be mapped by handle on the card.
    pub handles: bool,
    /// The driver can register host memory, which makes copies fast.
    pub registration: bool,
}

impl Backend {
    /// Backend of a program that chooses none. A platform without concurrent managed access (WSL, some vGPUs) limits
    /// registered memory in unknown ways, so memory stays on its cards.
    pub fn of_card(can: Abilities) -> Self {
        match can {
            Abilities { concurrent_managed: false, .. } => Self::Native,
            Abilities { handles: true, registration: true, .. } => Self::Remap,
            _ => Self::Managed,
        }
    }
}

/// Error for a text that names no memory backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a backend; write managed (memory can move out of the card), native (memory stays on the card) or remap \
     (gpushare moves memory)"
)]
pub struct UnknownBackend(String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(word: &str) -> Result<Self, UnknownBackend> {
        match word {
            "managed" => Ok(Self::Managed),
            "native" => Ok(Self::Native),
            "remap" => Ok(Self::Remap),
            _ => Err(UnknownBackend(word.to_owned())),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Managed => "managed",
            Self::Native => "native",
            Self::Remap => "remap",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_gets_the_best_backend_that_it_can_do() {
        let all = Abilities { concurrent_managed: true, handles: true, registration: true };
        assert_eq!(Backend::of_card(all), Backend::Remap);
        assert_eq!(Backend::of_card(Abilities { handles: false, ..all }), Backend::Managed);
        assert_eq!(Backend::of_card(Abilities { registration: false, ..all }), Backend::Managed);
        assert_eq!(Backend::of_card(Abilities { concurrent_managed: false, ..all }), Backend::Native);
    }

    #[test]
    fn a_backend_is_read_as_it_is_written() {
        for backend in [Backend::Managed, Backend::Native, Backend::Remap] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let sentence = "fast".parse::<Backend>().unwrap_err().to_string();
        assert!(sentence.starts_with("\"fast\" is not a backend; write managed"), "{sentence}");
    }
}

//! Memory backends, the kinds of driver memory that a program's allocations get.

use std::fmt;
use std::str::FromStr;

/// Memory backend: the kind of driver memory that a program's allocations get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Managed memory, which the driver can move out of the card.
    #[default]
    Managed,
    /// Plain device memory, which stays on the card and can be shared with other processes and devices.
    Native,
    /// Plain device memory at fixed addresses, which gpushare moves to host memory and back.
    Remap,
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
    fn a_backend_is_read_as_it_is_written() {
        for backend in [Backend::Managed, Backend::Native, Backend::Remap] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let sentence = "fast".parse::<Backend>().unwrap_err().to_string();
        assert!(sentence.starts_with("\"fast\" is not a backend; write managed"), "{sentence}");
    }
}

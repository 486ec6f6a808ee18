//! How a process gets the memory that its program asks for.

use std::fmt;
use std::str::FromStr;

/// How memory gets onto the card and out of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Managed memory: the driver moves it, page by page.
    #[default]
    Managed,
    /// The driver's plain memory: it stays where it is, and can be shared with other processes and devices.
    Native,
}

/// A word that names no backend.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no backend; write managed (memory moves out of the card when others need it) or native (it stays)"
)]
pub struct UnknownBackend(String);

impl FromStr for Backend {
    type Err = UnknownBackend;

    fn from_str(word: &str) -> Result<Self, UnknownBackend> {
        match word {
            "managed" => Ok(Self::Managed),
            "native" => Ok(Self::Native),
            _ => Err(UnknownBackend(word.to_owned())),
        }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Managed => "managed",
            Self::Native => "native",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_is_read_as_it_is_written() {
        for backend in [Backend::Managed, Backend::Native] {
            assert_eq!(backend.to_string().parse(), Ok(backend));
        }
        let sentence = "remap".parse::<Backend>().unwrap_err().to_string();
        assert!(sentence.starts_with("\"remap\" is no backend; write managed"), "{sentence}");
    }
}

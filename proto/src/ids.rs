//! Ids, each a type of its own, so that a client id cannot be passed where a session id is expected.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::units::{UnitError, as_text};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&format!(concat!($prefix, "{}"), self.0))
            }
        }
    };
}

id!(
    /// Number of a session. No other session gets the number, even after a restart of the daemon.
    SessionId(u64), "s"
);
id!(
    /// Client id: number of a connected process. No other process gets the number, even after a restart.
    ClientId(u64), "c"
);
id!(
    /// Number that the daemon assigned to a card; also the index of the card's row in every shared page.
    GpuId(u8), "gpu"
);
id!(
    /// Number of a request, which the reply repeats; unique within one connection.
    RequestId(u64), "r"
);

/// Number of a grant of the lock. Later grants have larger numbers until the machine reboots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Point in time at which the daemon started: nanoseconds since the boot of the machine.
    pub generation: u64,
    /// Number of grants that the daemon has made since its start.
    pub counter: u64,
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.generation, self.counter)
    }
}

/// Identity of a card as CUDA and NVML report it: sixteen bytes and the kind, a whole GPU (`GPU-…`) or a MIG
/// instance (`MIG-…`).
///
/// Comparisons use the bytes only, since a source that knows the bytes may not know the kind. The kind is
/// needed for the text, which CUDA and NVML accept in one form only.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid {
    bytes: [u8; 16],
    is_instance: bool,
}

const GPU: &str = "GPU-";
const MIG: &str = "MIG-";

impl GpuUuid {
    /// Returns the identity of a whole GPU.
    pub const fn gpu(bytes: [u8; 16]) -> Self {
        Self { bytes, is_instance: false }
    }

    /// Returns the identity of a MIG instance.
    pub const fn mig(bytes: [u8; 16]) -> Self {
        Self { bytes, is_instance: true }
    }

    /// Returns the sixteen bytes of the UUID, as `cuDeviceGetUuid_v2` reports them.
    pub const fn bytes(self) -> [u8; 16] {
        self.bytes
    }

    /// Returns whether the card is a MIG instance.
    pub const fn is_instance(self) -> bool {
        self.is_instance
    }

    /// Returns whether `text` is this card's UUID or a prefix of it, in the form of `CUDA_VISIBLE_DEVICES`.
    pub fn begins_with(self, text: &str) -> bool {
        let (own, text) = (self.to_string(), text.to_ascii_lowercase());
        text.len() > GPU.len() && own.to_ascii_lowercase().starts_with(&text)
    }
}

impl PartialEq for GpuUuid {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for GpuUuid {}

impl PartialOrd for GpuUuid {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for GpuUuid {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes.cmp(&other.bytes)
    }
}

impl Hash for GpuUuid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}

impl fmt::Display for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_instance { MIG } else { GPU })?;
        for (i, byte) in self.bytes.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for GpuUuid {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let instance = text.strip_prefix(MIG);
        let hex = instance.or_else(|| text.strip_prefix(GPU)).unwrap_or(text).replace('-', "");
        let bytes = from_hex(&hex).ok_or_else(|| {
            let form =
                "a GPU UUID; `nvidia-smi -L` lists them (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-…)";
            UnitError::new(text, form)
        })?;
        Ok(Self { bytes, is_instance: instance.is_some() })
    }
}

as_text!(GpuUuid);

/// Parses `2 * N` hex digits.
fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != 2 * N || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; N];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// Secret that lets a process join a session: 256 random bits, which the `Debug` output hides.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub [u8; 32]);

impl Token {
    /// Returns the token as 64 hex digits, the content of a token file.
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the text of a token file; `None` unless it is 64 hex digits with optional white space around
    /// them.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        from_hex(text.trim()).map(Self)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_survives_its_text() {
        let text = "GPU-0a1b2c3d-0001-0203-0405-060708090a0b";
        let uuid: GpuUuid = text.parse().unwrap();
        assert_eq!(uuid.to_string(), text);
        assert_eq!("0A1B2C3D000102030405060708090A0B".parse(), Ok(uuid));
        assert!("GPU-12".parse::<GpuUuid>().unwrap_err().to_string().contains("nvidia-smi -L"));
    }

    #[test]
    fn an_instance_keeps_its_prefix_and_is_the_same_card_without_it() {
        let text = "MIG-0a1b2c3d-0001-0203-0405-060708090a0b";
        let instance: GpuUuid = text.parse().unwrap();
        assert_eq!(instance.to_string(), text);
        assert!(instance.is_instance());
        let whole = GpuUuid::gpu(instance.bytes());
        assert_eq!((whole, whole.is_instance()), (instance, false));
        assert_eq!(whole.cmp(&instance), Ordering::Equal);
    }

    #[test]
    fn a_card_is_found_by_the_beginning_of_its_uuid() {
        let card: GpuUuid = "GPU-0a1b2c3d-0001-0203-0405-060708090a0b".parse().unwrap();
        assert!(card.begins_with("GPU-0a1b2c3d-0001-0203-0405-060708090a0b"));
        assert!(card.begins_with("GPU-0A1B"));
        assert!(!card.begins_with("GPU-0b"));
        assert!(!card.begins_with("MIG-0a"));
        assert!(!card.begins_with("GPU-"), "that is every card");
        assert!(!card.begins_with(""));
    }

    #[test]
    fn a_token_survives_its_file_and_hides_from_logs() {
        let token = Token([0xa5; 32]);
        assert_eq!(Token::from_hex(&format!("{}\n", token.to_hex())), Some(token.clone()));
        assert_eq!(Token::from_hex("short"), None);
        assert_eq!(format!("{token:?}"), "Token(..)");
    }
}

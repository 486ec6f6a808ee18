//! Ids as newtypes, so that a client id cannot be passed where a session id is expected.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

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
    /// Number of a session. Unique in a daemon's registry, across restarts too.
    SessionId(u64), "s"
);
id!(
    /// Number of one connected process of a session. Unique in a daemon's registry, across restarts too.
    ClientId(u64), "c"
);
id!(
    /// The daemon's number of a card; also the index of the card's row in every shared page.
    GpuId(u8), "gpu"
);
id!(
    /// Number that a request carries and its reply repeats; unique within one connection.
    RequestId(u64), "r"
);

/// Number of a grant. It rises strictly from the machine's boot on: each daemon start has a later generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Epoch {
    /// Boot clock at the start of the daemon, in nanoseconds.
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
/// Only the bytes are compared. The kind is needed for the text, which CUDA and NVML accept in one form only;
/// a source that knows the bytes may not know the kind, and both texts of one card must stay one card.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GpuUuid {
    bytes: [u8; 16],
    is_instance: bool,
}

/// Error for a text that is not the UUID of a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a GPU UUID; `nvidia-smi -L` lists them (GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, or MIG-…)"
)]
pub struct UuidError(String);

const GPU: &str = "GPU-";
const MIG: &str = "MIG-";

impl GpuUuid {
    /// Returns the identity of a whole GPU.
    #[must_use]
    pub const fn gpu(bytes: [u8; 16]) -> Self {
        Self { bytes, is_instance: false }
    }

    /// Returns the identity of a MIG instance.
    #[must_use]
    pub const fn mig(bytes: [u8; 16]) -> Self {
        Self { bytes, is_instance: true }
    }

    /// Returns the sixteen bytes as `cuDeviceGetUuid_v2` reports them.
    #[must_use]
    pub const fn bytes(self) -> [u8; 16] {
        self.bytes
    }

    /// Returns whether the card is a MIG instance.
    #[must_use]
    pub const fn is_instance(self) -> bool {
        self.is_instance
    }

    /// Returns whether `text` is this card's UUID or a prefix of it, in the form of `CUDA_VISIBLE_DEVICES`.
    #[must_use]
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
    type Err = UuidError;

    fn from_str(text: &str) -> Result<Self, UuidError> {
        let error = || UuidError(text.to_owned());
        let instance = text.strip_prefix(MIG);
        let hex = instance.or_else(|| text.strip_prefix(GPU)).unwrap_or(text);
        let digits: Vec<u8> = hex.bytes().filter(|&b| b != b'-').collect();
        let mut bytes = [0; 16];
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(error());
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| error())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| error())?;
        }
        Ok(Self { bytes, is_instance: instance.is_some() })
    }
}

impl TryFrom<String> for GpuUuid {
    type Error = UuidError;
    fn try_from(text: String) -> Result<Self, UuidError> {
        text.parse()
    }
}

impl From<GpuUuid> for String {
    fn from(uuid: GpuUuid) -> Self {
        uuid.to_string()
    }
}

/// Secret that lets a process join a session: 256 random bits. Its `Debug` output hides them.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Token(pub [u8; 32]);

impl Token {
    /// Returns the token as 64 hex digits, the content of a token file.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Parses the text of a token file; `None` unless it is 64 hex digits with optional white space around
    /// them.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut token = [0; 32];
        for (i, byte) in token.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
        }
        Some(Self(token))
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

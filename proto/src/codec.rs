//! Frames: a little-endian `u32` length, then a message in bincode's standard encoding.
//!
//! ```text
//!   4 bytes          at most M::MAX bytes
//!   length, LE │ message ............... │ next frame
//! ```
//!
//! The length is checked against the message's limit before anything is read or allocated, the decoder
//! claims no more memory than that many bytes can stand for, and bytes left over after a message are an
//! error. The encoding library is an implementation detail of this module; golden bytes in
//! `tests/golden/` keep it honest.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::{AdminReply, AdminRequest};
use crate::tenant::{MAGIC, PROTOCOL, TenantReply, TenantRequest};

/// Bytes of the length in front of a message.
pub const HEADER: usize = 4;
/// The largest message a peer may send to the daemon.
pub const MAX_REQUEST: usize = 16 << 10;
/// The largest message the daemon sends.
pub const MAX_REPLY: usize = 4 << 20;

/// What one encoded byte can stand for: a small `u64` takes one byte on the wire, and the decoder counts
/// the eight that it takes in memory. A smaller limit would refuse what [`encode`] accepts.
const MEMORY_PER_BYTE: usize = 8;

/// How much of a peer's own words an error repeats.
const CAUSE_LENGTH: usize = 160;

/// A message of one of the two sockets. Sealed: only the four enums are, and none of them holds a
/// sequence of zero-sized elements, so a claimed length always costs the claimant real bytes. (The
/// decoder checks the claimed length of a text, but not that of a sequence: it would spin on `()`.)
pub trait Message: Serialize + DeserializeOwned + sealed::Sealed {
    /// The largest encoded size, in bytes.
    const MAX: usize;
}

mod sealed {
    use bincode::error::DecodeError;

    /// Decodes within the memory that so many bytes can stand for.
    pub trait Sealed: Sized {
        fn read(body: &[u8]) -> Result<(Self, usize), DecodeError>;
    }
}

macro_rules! message {
    ($($name:ty: $max:expr),* $(,)?) => {$(
        impl sealed::Sealed for $name {
            fn read(body: &[u8]) -> Result<(Self, usize), bincode::error::DecodeError> {
                read(body)
            }
        }
        impl Message for $name {
            const MAX: usize = $max;
        }
    )*};
}

message! {
    TenantRequest: MAX_REQUEST,
    AdminRequest: MAX_REQUEST,
    TenantReply: MAX_REPLY,
    AdminReply: MAX_REPLY,
}

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The header claims more than the limit.
    #[error(
        "a frame of {claimed} bytes is larger than the limit of {limit}; the peer does not speak gpushare"
    )]
    TooLarge {
        /// What the header says.
        claimed: usize,
        /// What is allowed.
        limit: usize,
    },
    /// The bytes do not decode.
    #[error("a frame does not decode as {expected}: {cause}")]
    Malformed {
        /// The message type.
        expected: &'static str,
        /// What the decoder said.
        cause: String,
    },
    /// Bytes are left over.
    #[error("a frame has {left} bytes after its message")]
    Trailing {
        /// How many.
        left: usize,
    },
}

fn encoding() -> bincode::config::Configuration {
    bincode::config::standard()
}

/// `message` as a frame, header included.
///
/// # Errors
/// [`CodecError::TooLarge`] if it does not fit the message's limit.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, CodecError> {
    let mut frame = vec![0; HEADER];
    bincode::serde::encode_into_std_write(message, &mut frame, encoding())
        .map_err(|cause| malformed::<M>(&cause))?;
    let body = frame.len() - HEADER;
    let length = u32::try_from(body)
        .ok()
        .filter(|_| body <= M::MAX)
        .ok_or(CodecError::TooLarge { claimed: body, limit: M::MAX })?;
    frame[..HEADER].copy_from_slice(&length.to_le_bytes());
    Ok(frame)
}

/// Decodes with a limit for the memory that fits the body: it is a constant to the decoder, so there are a few. A text of
/// a few bytes that claims to be longer than the longest message is refused before anything is allocated for it.
fn read<M: DeserializeOwned>(body: &[u8]) -> Result<(M, usize), bincode::error::DecodeError> {
    const SMALL: usize = 1 << 10;
    const LARGE: usize = 1 << 18;
    match body.len() {
        length if length <= SMALL => read_within::<M, { MEMORY_PER_BYTE * SMALL }>(body),
        length if length <= MAX_REQUEST => read_within::<M, { MEMORY_PER_BYTE * MAX_REQUEST }>(body),
        length if length <= LARGE => read_within::<M, { MEMORY_PER_BYTE * LARGE }>(body),
        _ => read_within::<M, { MEMORY_PER_BYTE * MAX_REPLY }>(body),
    }
}

fn read_within<M: DeserializeOwned, const MEMORY: usize>(
    body: &[u8],
) -> Result<(M, usize), bincode::error::DecodeError> {
    bincode::serde::decode_from_slice(body, encoding().with_limit::<MEMORY>())
}

/// The length of the body that follows `header`.
///
/// # Errors
/// [`CodecError::TooLarge`] if it passes the limit of `M`: do not read on.
pub fn body_length<M: Message>(header: [u8; HEADER]) -> Result<usize, CodecError> {
    let claimed = u32::from_le_bytes(header) as usize;
    if claimed > M::MAX {
        return Err(CodecError::TooLarge { claimed, limit: M::MAX });
    }
    Ok(claimed)
}

/// The message in `body`, all of it.
///
/// # Errors
/// [`CodecError::Malformed`] or [`CodecError::Trailing`].
pub fn decode<M: Message>(body: &[u8]) -> Result<M, CodecError> {
    if body.len() > M::MAX {
        return Err(CodecError::TooLarge { claimed: body.len(), limit: M::MAX });
    }
    let (message, read) = M::read(body).map_err(|cause| malformed::<M>(&cause))?;
    match body.len() - read {
        0 => Ok(message),
        left => Err(CodecError::Trailing { left }),
    }
}

/// The first complete message in `buffer` and the bytes it took; `None` if more must be read first.
///
/// # Errors
/// As [`body_length`] and [`decode`]: the connection is of no further use.
pub fn split<M: Message>(buffer: &[u8]) -> Result<Option<(M, usize)>, CodecError> {
    let Some(header) = buffer.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let end = HEADER + body_length::<M>(*header)?;
    match buffer.get(HEADER..end) {
        Some(body) => Ok(Some((decode(body)?, end))),
        None => Ok(None),
    }
}

/// The protocol version that a first message claims, also when the rest of it is of another version:
/// `None` if it is no hello at all. Equal to [`PROTOCOL`] for a peer of this build.
#[must_use]
pub fn claimed_protocol(body: &[u8]) -> Option<u16> {
    let hello = 0u32;
    let ((variant, magic, protocol), _) =
        bincode::serde::decode_from_slice::<(u32, [u8; 4], u16), _>(body, encoding()).ok()?;
    (variant == hello && magic == MAGIC).then_some(protocol)
}

/// The sentence for a peer whose protocol is not ours.
#[must_use]
pub fn protocol_mismatch(peer: u16) -> String {
    format!(
        "this gpushare speaks protocol {PROTOCOL}, the other side {peer}; \
         install the same gpushare version on both sides and restart the older one"
    )
}

fn malformed<M>(cause: &dyn std::fmt::Display) -> CodecError {
    let full = std::any::type_name::<M>();
    CodecError::Malformed {
        expected: full.rsplit("::").next().unwrap_or(full),
        cause: cause.to_string().chars().take(CAUSE_LENGTH).collect(),
    }
}

//! Frames of messages: a little-endian `u32` length, then a message in bincode's standard encoding.
//!
//! ```text
//!   4 bytes          at most M::MAX bytes
//!   length, LE │ message ............... │ next frame
//! ```
//!
//! The length is checked against the message's limit before anything is read or allocated. The decoder
//! allocates no more memory than that many bytes can encode. Bytes after the message are an error. Only this
//! module uses the encoding library; golden bytes in `tests/golden/` fix its output.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::admin::{AdminReply, AdminRequest};
use crate::tenant::{MAGIC, PROTOCOL, TenantReply, TenantRequest};

/// Size of the length field in front of a message, in bytes.
pub const HEADER: usize = 4;
/// Maximum size of a message to the daemon, in bytes.
pub const MAX_REQUEST: usize = 16 << 10;
/// Maximum size of a message from the daemon, in bytes.
pub const MAX_REPLY: usize = 4 << 20;

/// Size of the memory for a new frame. Most frames fit.
const USUAL_FRAME: usize = 64;

/// Largest size in memory per encoded byte: a small `u64` takes one byte on the wire and eight in memory.
/// With a smaller factor the decoder would refuse messages that [`encode`] accepts.
const MEMORY_PER_BYTE: usize = 8;

/// Maximum number of characters that an error repeats of the decoder's message, which may have the peer's
/// text.
const CAUSE_LENGTH: usize = 160;

/// Message that can be encoded: a request or a reply of the tenant socket or the admin socket.
///
/// The trait is sealed, since the decoder does not check the claimed length of a sequence. On a claimed
/// sequence of zero-sized elements it would loop; none of the four message enums contains one.
pub trait Message: Serialize + DeserializeOwned + sealed::Sealed {
    /// Maximum size of the encoded message, in bytes.
    const MAX: usize;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! message {
    ($($name:ty: $max:expr),* $(,)?) => {$(
        impl sealed::Sealed for $name {}
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

/// Reason why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The header claims more bytes than the limit.
    #[error(
        "a frame of {claimed} bytes is larger than the limit of {limit}; the peer does not speak gpushare"
    )]
    TooLarge {
        /// Length in the header, in bytes.
        claimed: usize,
        /// Maximum length of the message type, in bytes.
        limit: usize,
    },
    /// The bytes are not the encoding of the expected message type.
    #[error("a frame does not decode as {expected}: {cause}")]
    Malformed {
        /// Name of the expected message type.
        expected: &'static str,
        /// Reason of the decoder, in words.
        cause: String,
    },
    /// The frame has further bytes after the message.
    #[error("a frame has {left} bytes after its message")]
    Trailing {
        /// Number of bytes after the message.
        left: usize,
    },
}

fn encoding() -> bincode::config::Configuration {
    bincode::config::standard()
}

/// Encodes `message` as a frame: the length, then the message.
///
/// # Errors
/// [`CodecError::TooLarge`] if the message exceeds [`Message::MAX`].
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>, CodecError> {
    let mut frame = Vec::with_capacity(USUAL_FRAME);
    frame.resize(HEADER, 0);
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

/// Decodes with the smallest memory limit that fits the body. The decoder takes the limit as a constant, so
/// there are four. A short body with a text that claims a large length is refused before anything is
/// allocated.
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

/// Returns the length of the encoded message that follows the header of a frame.
///
/// # Errors
/// [`CodecError::TooLarge`] if the length exceeds [`Message::MAX`]: do not read on.
pub fn body_length<M: Message>(header: [u8; HEADER]) -> Result<usize, CodecError> {
    let claimed = u32::from_le_bytes(header) as usize;
    if claimed > M::MAX {
        return Err(CodecError::TooLarge { claimed, limit: M::MAX });
    }
    Ok(claimed)
}

/// Decodes the message that fills all of `body`.
///
/// # Errors
/// [`CodecError`] if `body` is too long, does not decode, or has bytes after the message.
pub fn decode<M: Message>(body: &[u8]) -> Result<M, CodecError> {
    if body.len() > M::MAX {
        return Err(CodecError::TooLarge { claimed: body.len(), limit: M::MAX });
    }
    let (message, read) = read::<M>(body).map_err(|cause| malformed::<M>(&cause))?;
    match body.len() - read {
        0 => Ok(message),
        left => Err(CodecError::Trailing { left }),
    }
}

/// Decodes the first message in `buffer`; returns it and the length of its frame, or `None` if the frame is
/// incomplete.
///
/// # Errors
/// [`CodecError`] of [`body_length`] or [`decode`]; the connection cannot be used any more.
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

/// Returns the protocol version that a connection's first message claims, even if the other fields have
/// another version's form. Returns `None` for another message. A peer of this build claims [`PROTOCOL`].
pub fn claimed_protocol(body: &[u8]) -> Option<u16> {
    let hello = 0u32;
    let ((variant, magic, protocol), _) =
        bincode::serde::decode_from_slice::<(u32, [u8; 4], u16), _>(body, encoding()).ok()?;
    (variant == hello && magic == MAGIC).then_some(protocol)
}

/// Returns the error message for a peer that uses the other protocol version `peer`.
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

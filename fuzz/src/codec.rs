//! Both sockets' messages: no bytes panic the decoder, what decodes encodes to what decodes to the same,
//! and a frame that comes in pieces is the frame that comes whole.

use std::fmt::Debug;

use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{CodecError, HEADER, Message, claimed_protocol, decode, encode, split};
use gpushare_proto::tenant::{TenantReply, TenantRequest};

/// The four enums, by the names of their golden files.
pub const ENUMS: [&str; 4] = ["tenant_request", "tenant_reply", "admin_request", "admin_reply"];

/// The first byte says which enum the rest is held to be.
///
/// # Panics
/// A promise is broken.
pub fn any(input: &[u8]) {
    if let Some((which, body)) = input.split_first() {
        message(usize::from(*which), body);
    }
}

/// Whether the body was a message of that enum.
///
/// # Panics
/// A promise is broken.
pub fn message(which: usize, body: &[u8]) -> bool {
    let _ = claimed_protocol(body);
    match which % ENUMS.len() {
        0 => of::<TenantRequest>(body),
        1 => of::<TenantReply>(body),
        2 => of::<AdminRequest>(body),
        _ => of::<AdminReply>(body),
    }
}

fn of<M: Message + PartialEq + Debug>(body: &[u8]) -> bool {
    // The unchanged bytes may be a frame.
    let _ = split::<M>(body);
    let decoded = decode::<M>(body);
    let length = u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes();
    let framed = [&length[..], body].concat();
    match (&decoded, split::<M>(&framed)) {
        (Ok(message), Ok(Some((same, read)))) => {
            assert_eq!((message, framed.len()), (&same, read), "split and decode differ");
        }
        (Err(error), Err(same)) => assert_eq!(error, &same, "split and decode refuse differently"),
        (decoded, split) => panic!("decode says {decoded:?}, split {split:?}"),
    }
    if framed.len() > HEADER && body.len() <= M::MAX {
        assert_eq!(split::<M>(&framed[..framed.len() - 1]), Ok(None), "a cut frame is no frame");
    }
    let Ok(message) = decoded else { return false };
    match encode(&message) {
        Ok(frame) => {
            assert_eq!(decode::<M>(&frame[HEADER..]), Ok(message), "it comes back as another");
        }
        // Some texts have a shorter form than ours, like a UUID without dashes.
        Err(CodecError::TooLarge { .. }) => {}
        Err(error) => panic!("{message:?} was decoded and does not encode: {error}"),
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mutate::golden;

    #[test]
    fn every_golden_message_keeps_the_promises() {
        for (which, name) in ENUMS.iter().enumerate() {
            let bodies = golden(name).unwrap();
            assert!(!bodies.is_empty());
            assert!(bodies.iter().all(|body| message(which, body)), "{name}");
        }
    }
}

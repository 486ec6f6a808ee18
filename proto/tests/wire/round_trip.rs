//! Encoding and decoding: every message comes back equal, alone and in a stream of frames.

use std::fmt::Debug;

use gpushare_proto::Nanos;
use gpushare_proto::admin::{AdminReply, AdminRequest};
use gpushare_proto::codec::{HEADER, MAX_REPLY, MAX_REQUEST, Message, body_length, decode, encode, split};
use gpushare_proto::tenant::{GpuInfo, TenantReply, TenantRequest};
use proptest::prelude::*;

use crate::any_message::any_message;
use crate::samples;

proptest! {
    #[test]
    fn random_messages_survive_encoding(
        request in any_message::<TenantRequest>(), reply in any_message::<TenantReply>(),
        admin_request in any_message::<AdminRequest>(), admin_reply in any_message::<AdminReply>(),
    ) {
        survives(&request);
        survives(&reply);
        survives(&admin_request);
        survives(&admin_reply);
    }

    #[test]
    fn frames_in_one_buffer_come_out_in_order(
        messages in proptest::collection::vec(any_message::<TenantRequest>(), 0..6)
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        let mut rest = &stream[..];
        for message in messages {
            let (next, taken) = split(rest).unwrap().unwrap();
            prop_assert_eq!(message, next);
            rest = &rest[taken..];
        }
        prop_assert_eq!(split::<TenantRequest>(rest), Ok(None));
    }
}

fn survives<M: Message + PartialEq + Debug>(message: &M) {
    let frame = encode(message).unwrap();
    let (header, body) = frame.split_first_chunk::<HEADER>().unwrap();
    assert_eq!(body_length::<M>(*header), Ok(body.len()));
    assert_eq!(decode::<M>(body).as_ref(), Ok(message));
}

/// A small number takes one byte on the wire and eight in memory, for which the decoder's limit must allow.
#[test]
fn a_reply_that_fits_its_frame_decodes_however_small_its_numbers_are() {
    let mut status = samples::status();
    status.gpus[0].drains_ns = vec![Nanos(1); MAX_REPLY - (16 << 10)];
    survives(&AdminReply::Status(Box::new(status)));
}

#[test]
fn a_message_beyond_its_limit_is_not_encoded() {
    let attach = |length| {
        TenantRequest::Attach(GpuInfo {
            uuid: "GPU-0a1b2c3d-0001-0203-0405-060708090a0b".parse().unwrap(),
            name: "x".repeat(length),
            total: gpushare_proto::Bytes::ZERO,
        })
    };
    survives(&attach(MAX_REQUEST - 64));
    let error = encode(&attach(MAX_REQUEST)).unwrap_err().to_string();
    assert!(error.contains("is larger than the limit of 16384"), "{error}");
}

//! Bytes from a peer that means harm: refused, without a panic, and at no more cost than their own length.
//!
//! Nothing here measures time. A decode that believed a claimed length would either fail to end, or ask
//! the allocator for more than any machine has, and both fail the test by themselves.

use std::fmt::Debug;

use gpushare_proto::admin::{AdminReply, AdminRequest, SessionView, Status};
use gpushare_proto::codec::{
    CodecError, HEADER, MAX_REPLY, MAX_REQUEST, Message, body_length, claimed_protocol, decode, encode,
    protocol_mismatch, split,
};
use gpushare_proto::tenant::{Hello, MAGIC, PROTOCOL, Role, TenantReply, TenantRequest};
use proptest::prelude::*;

use crate::samples::{self, Named};

/// bincode's marker in front of a 64-bit length.
const WIDE: u8 = 0xfd;
/// A length that would spin a decoder that trusts it.
const MANY: u64 = 200_000_000;

#[test]
fn nine_bytes_that_claim_a_terabyte_are_refused() {
    let refused = CodecError::TooLarge { claimed: 0xffff_ffff, limit: MAX_REQUEST };
    assert_eq!(split::<TenantRequest>(&[0xff; 9]), Err(refused));
    let mut terabyte = [0; 9];
    terabyte[..8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    assert!(split::<TenantRequest>(&terabyte).is_err());
}

#[test]
fn nine_bytes_that_claim_a_text_of_a_terabyte_are_malformed() {
    // Register, a name, and its length.
    for claim in [1u64 << 40, u64::MAX] {
        let mut body = vec![8, 1, WIDE];
        body.extend(claim.to_le_bytes());
        malformed::<TenantRequest>(&body);
    }
}

#[test]
fn a_short_message_that_claims_a_long_text_is_refused_before_memory_is_taken() {
    // An error's code, and a message of 19 million bytes, which the longest message could not hold either.
    let mut body = vec![3, 0, 0xfc];
    body.extend(19_000_000u32.to_le_bytes());
    let refused = decode::<AdminReply>(&body).unwrap_err();
    assert!(refused.to_string().contains("LimitExceeded"), "{refused}");
    // What could be in as many bytes is looked for, and is not there.
    let mut body = vec![3, 0, 0xfb];
    body.extend(900u16.to_le_bytes());
    let refused = decode::<AdminReply>(&body).unwrap_err();
    assert!(refused.to_string().contains("UnexpectedEnd"), "{refused}");
}

#[test]
fn a_header_at_the_limit_passes_and_one_beyond_does_not() {
    let header = |length: usize| u32::try_from(length).unwrap().to_le_bytes();
    assert_eq!(body_length::<TenantRequest>(header(MAX_REQUEST)), Ok(MAX_REQUEST));
    assert!(body_length::<TenantRequest>(header(MAX_REQUEST + 1)).is_err());
    assert_eq!(body_length::<TenantReply>(header(MAX_REPLY)), Ok(MAX_REPLY));
    assert!(body_length::<TenantReply>(header(MAX_REPLY + 1)).is_err());
    let beyond = vec![0; MAX_REQUEST + 1];
    assert!(matches!(decode::<TenantRequest>(&beyond), Err(CodecError::TooLarge { .. })));
}

#[test]
fn a_frame_that_is_cut_anywhere_waits_for_the_rest_and_a_cut_message_is_malformed() {
    cut(&samples::tenant_requests());
    cut(&samples::tenant_replies());
    cut(&samples::admin_requests());
    cut(&samples::admin_replies());
}

fn cut<M: Message + PartialEq + Debug>(samples: &[Named<M>]) {
    for (name, message) in samples {
        let frame = encode(message).unwrap();
        for end in 0..frame.len() {
            assert_eq!(split::<M>(&frame[..end]), Ok(None), "{name} cut at {end}");
        }
        for end in HEADER..frame.len() {
            malformed::<M>(&frame[HEADER..end]);
        }
    }
}

#[test]
fn bytes_after_a_message_are_an_error() {
    let mut frame = encode(&TenantRequest::OwnSession).unwrap();
    frame.extend([0, 0]);
    assert_eq!(decode::<TenantRequest>(&frame[HEADER..]), Err(CodecError::Trailing { left: 2 }));
}

/// Each sequence of each message claims 200 million elements: the decode ends with the frame, because
/// every element takes at least a byte of it.
#[test]
fn a_claim_of_two_hundred_million_elements_ends_with_the_frame() {
    claim(samples::tenant_requests, "Hello.returning", |message| match message {
        TenantRequest::Hello(Hello { role: Role::Client { returning: Some(returning), .. }, .. }) => {
            returning.gpus.clear();
        }
        other => panic!("{other:?}"),
    });
    claim(samples::tenant_replies, "Welcome", |message| match message {
        TenantReply::Welcome(welcome) => welcome.gpus.clear(),
        other => panic!("{other:?}"),
    });
    claim(samples::tenant_replies, "Gpus", |message| match message {
        TenantReply::Gpus(cards) => cards.clear(),
        other => panic!("{other:?}"),
    });
    let own: [fn(&mut SessionView); 2] = [|own| own.gpus.clear(), |own| own.clients.clear()];
    for empty in own {
        claim(samples::tenant_replies, "OwnSession", |message| match message {
            TenantReply::OwnSession(Some(session)) => empty(session),
            other => panic!("{other:?}"),
        });
    }
    let views: [fn(&mut Status); 5] = [
        |status| status.gpus.clear(),
        |status| status.sessions.clear(),
        |status| status.gpus[1].holders.clear(),
        |status| status.gpus[1].queue.clear(),
        |status| status.gpus[1].drains_ns.clear(),
    ];
    for empty in views {
        claim(samples::admin_replies, "Status", |message| match message {
            AdminReply::Status(status) => empty(status),
            other => panic!("{other:?}"),
        });
    }
}

/// The length of a sequence is the first byte that changes when the sequence is emptied.
fn claim<M: Message + PartialEq + Debug>(samples: fn() -> Vec<Named<M>>, name: &str, empty: impl Fn(&mut M)) {
    let (_, mut message) = samples().into_iter().find(|(n, _)| *n == name).unwrap();
    let full = body(&message);
    empty(&mut message);
    let emptied = body(&message);
    let length = full.iter().zip(&emptied).position(|(a, b)| a != b).unwrap();
    malformed::<M>(&forge(&full, length));
}

/// And the claim at any other byte of any message does no harm either, whatever it then stands for.
#[test]
fn a_claim_of_two_hundred_million_anywhere_ends_with_the_frame() {
    claim_anywhere(&samples::tenant_requests());
    claim_anywhere(&samples::tenant_replies());
    claim_anywhere(&samples::admin_requests());
    claim_anywhere(&samples::admin_replies());
}

fn claim_anywhere<M: Message>(samples: &[Named<M>]) {
    for (_, message) in samples {
        let body = body(message);
        for at in 0..body.len() {
            let _ = decode::<M>(&forge(&body, at));
        }
    }
}

/// `body` with the claim instead of the byte at `at`.
fn forge(body: &[u8], at: usize) -> Vec<u8> {
    [&body[..at], &[WIDE], &MANY.to_le_bytes(), &body[at + 1..]].concat()
}

#[test]
fn what_a_peer_wrote_is_repeated_only_in_part() {
    let mut body = vec![1, 0xfb];
    body.extend(10_000u16.to_le_bytes());
    body.extend([b'\n'; 10_000]);
    let CodecError::Malformed { cause, .. } = decode::<TenantRequest>(&body).unwrap_err() else {
        panic!("a text that is no UUID decodes");
    };
    assert!(cause.len() <= 160 && !cause.contains('\n'), "{cause:?}");
}

#[test]
fn a_hello_of_another_version_still_says_its_version() {
    let hello = |protocol| {
        let mut hello = Hello::new(Role::Tool);
        hello.protocol = protocol;
        hello
    };
    for protocol in [0, 1, 250, 251, 999, u16::MAX] {
        let mut tenant = body(&TenantRequest::Hello(hello(protocol)));
        let admin = body(&AdminRequest::Hello(hello(protocol)));
        assert_eq!(claimed_protocol(&tenant), Some(protocol));
        assert_eq!(claimed_protocol(&admin), Some(protocol));
        *tenant.last_mut().unwrap() = 0xee;
        tenant.extend(b"fields that this version does not know");
        assert_eq!(claimed_protocol(&tenant), Some(protocol));
    }
}

#[test]
fn what_is_no_hello_claims_no_version() {
    let own = body(&TenantRequest::OwnSession);
    let hello = body(&TenantRequest::Hello(Hello::new(Role::Tool)));
    assert_eq!(claimed_protocol(&own), None);
    assert_eq!(claimed_protocol(b""), None);
    assert_eq!(claimed_protocol(b"GET / HTTP/1.1\r\n\r\n"), None);
    assert_eq!(claimed_protocol(&hello[..1 + MAGIC.len()]), None);
}

#[test]
fn a_mismatch_is_one_sentence_with_both_versions_and_what_to_do() {
    let sentence = protocol_mismatch(7);
    assert!(sentence.contains(&format!("protocol {PROTOCOL}")), "{sentence}");
    assert!(sentence.contains("the other side 7; install the same"), "{sentence}");
}

fn body<M: Message>(message: &M) -> Vec<u8> {
    encode(message).unwrap().split_off(HEADER)
}

fn malformed<M: Message + PartialEq + Debug>(body: &[u8]) {
    let result = decode::<M>(body);
    assert!(matches!(result, Err(CodecError::Malformed { .. })), "{result:?}");
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (split::<TenantRequest>(&bytes), decode::<TenantRequest>(&bytes));
        let _ = (split::<TenantReply>(&bytes), decode::<TenantReply>(&bytes));
        let _ = (split::<AdminRequest>(&bytes), decode::<AdminRequest>(&bytes));
        let _ = (split::<AdminReply>(&bytes), decode::<AdminReply>(&bytes));
        let _ = claimed_protocol(&bytes);
    }

    #[test]
    fn a_message_with_a_few_bytes_changed_never_panics(
        sample: prop::sample::Index,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
    ) {
        let samples = samples::admin_replies();
        let mut frame = encode(&sample.get(&samples).1).unwrap();
        for (at, byte) in changes {
            let at = at.index(frame.len());
            frame[at] = byte;
        }
        let _ = split::<AdminReply>(&frame);
    }
}

//! The bytes of every message, kept per release in `tests/golden/RELEASE/ENUM.txt`, one `Name hex` a line.
//!
//! ```text
//!   golden line ── decode ──▶ must equal the sample of that name ── encode ──▶ must equal the golden line
//!   every variant of every enum ───────────────────────────────▶ must have a line in this release's files
//! ```
//!
//! The wire is append-only: a released library meets newer daemons for years. Nothing here rewrites a
//! line. `GPUSHARE_GOLDEN=append cargo test -p gpushare-proto` adds the lines of new samples to this
//! release's files, and that is all it does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::fs;
use std::path::{Path, PathBuf};

use gpushare_proto::GateState;
use gpushare_proto::admin::{Activity, Change, Knob, LockView, Mode, SessionRequest, WatchEventKind};
use gpushare_proto::codec::{HEADER, Message, decode, encode};
use gpushare_proto::copies::CopyAnswer;
use gpushare_proto::explain::WaitReason;
use gpushare_proto::follow::{Increment, LockState};
use gpushare_proto::page::LimitKind;
use gpushare_proto::tenant::{FailureCode, GpuChoice, Role};
use serde::de::{self, DeserializeOwned, Deserializer, Visitor};

use crate::samples::{self, Named};

const RULES: &str = "the wire is append-only: never change, move or drop a released variant or field, add a new \
    variant at the end instead, with a sample of its own, and run GPUSHARE_GOLDEN=append cargo test -p \
    gpushare-proto to keep its bytes; a line of a release that is not out yet may be deleted by hand first";

#[test]
fn tenant_requests_keep_their_bytes() {
    check("tenant_request", &samples::tenant_requests());
}

#[test]
fn tenant_replies_keep_their_bytes() {
    check("tenant_reply", &samples::tenant_replies());
}

#[test]
fn admin_requests_keep_their_bytes() {
    check("admin_request", &samples::admin_requests());
}

#[test]
fn admin_replies_keep_their_bytes() {
    check("admin_reply", &samples::admin_replies());
}

#[test]
fn every_variant_inside_a_message_is_in_some_sample() {
    let json = [
        serde_json::to_string(&messages(samples::tenant_requests())),
        serde_json::to_string(&messages(samples::tenant_replies())),
        serde_json::to_string(&messages(samples::admin_requests())),
        serde_json::to_string(&messages(samples::admin_replies())),
    ]
    .map(Result::unwrap)
    .concat();
    for inner in [
        variants::<Role>(),
        variants::<GpuChoice>(),
        variants::<Knob>(),
        variants::<Mode>(),
        variants::<GateState>(),
        variants::<LockView>(),
        variants::<WatchEventKind>(),
        variants::<Activity>(),
        variants::<LimitKind>(),
        variants::<WaitReason>(),
        variants::<SessionRequest>(),
        variants::<Change>(),
        variants::<FailureCode>(),
        variants::<CopyAnswer>(),
        variants::<Increment>(),
        variants::<LockState>(),
    ] {
        for name in inner {
            assert!(json.contains(&format!("{name:?}")), "no sample holds {name}; {RULES}");
        }
    }
}

/// Compares every release's file of one enum with the samples, and this release's with the variants.
fn check<M: Message + PartialEq + Debug>(file: &str, samples: &[Named<M>]) {
    if std::env::var("GPUSHARE_GOLDEN").is_ok_and(|mode| mode == "append") {
        append(file, samples);
    }
    let samples: BTreeMap<_, _> = samples.iter().map(|(name, message)| (*name, message)).collect();
    for release in releases() {
        for (name, bytes) in read(&release.join(file)) {
            let at = format!("{name} of {}/{file}.txt", release.display());
            let sample = samples
                .get(name.as_str())
                .unwrap_or_else(|| panic!("{at} has no sample any more; {RULES}"));
            let decoded = decode::<M>(&bytes).unwrap_or_else(|error| panic!("{at}: {error}; {RULES}"));
            assert_eq!(&decoded, *sample, "{at} means something else now; {RULES}");
            assert_eq!(hex(&body(*sample)), hex(&bytes), "{at} has other bytes now; {RULES}");
        }
    }
    let kept: BTreeSet<_> = read(&this_release().join(file)).into_keys().collect();
    for name in samples.keys() {
        assert!(kept.contains(*name), "the sample {name} has no golden line; {RULES}");
    }
    for variant in variants::<M>() {
        let covered = kept.iter().any(|name| name.split('.').next() == Some(*variant));
        assert!(covered, "the variant {variant} has no golden line; {RULES}");
    }
}

/// Adds the lines that are missing from this release's file; never touches one that is there.
fn append<M: Message>(file: &str, samples: &[Named<M>]) {
    let path = this_release().join(file).with_extension("txt");
    let mut text = fs::read_to_string(&path).unwrap_or_default();
    let kept = lines(&text);
    for (name, message) in samples.iter().filter(|(name, _)| !kept.contains_key(*name)) {
        writeln!(text, "{name} {}", hex(&body(message))).unwrap();
    }
    fs::create_dir_all(this_release()).unwrap();
    fs::write(path, text).unwrap();
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn this_release() -> PathBuf {
    golden().join(concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR")))
}

fn releases() -> Vec<PathBuf> {
    fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path()).collect()
}

/// The golden lines of a file; none if a release did not have that enum yet.
fn read(file: &Path) -> BTreeMap<String, Vec<u8>> {
    lines(&fs::read_to_string(file.with_extension("txt")).unwrap_or_default())
}

fn lines(text: &str) -> BTreeMap<String, Vec<u8>> {
    text.lines()
        .map(|line| {
            let (name, hex) = line.split_once(' ').expect("a golden line is `Name hex`");
            (name.to_owned(), unhex(hex))
        })
        .collect()
}

fn body<M: Message>(message: &M) -> Vec<u8> {
    encode(message).unwrap().split_off(HEADER)
}

fn messages<M>(samples: Vec<Named<M>>) -> Vec<M> {
    samples.into_iter().map(|(_, message)| message).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2), "half a byte in a golden line");
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

/// The names of an enum's variants, as its derived `Deserialize` asks for them.
fn variants<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names = None;
    let _ = T::deserialize(Names(&mut names));
    names.expect("an enum with derived Deserialize")
}

/// Fails every decode, after it has noted the variants that were asked for.
struct Names<'a>(&'a mut Option<&'static [&'static str]>);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("only the variants are of interest"))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = Some(variants);
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct identifier ignored_any
    }
}
